"""Figures of cost: what an effective group costs, what of it was saved, accuracy against cost."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from verl_sara.core import Fate
from verl_sara.metrics import cost_per_effective_group, effective_groups
from verl_sara.report.bands import BAND, draw_seeds, has_seeds
from verl_sara.report.runs import Runs
from verl_sara.report.style import FATE_COLOURS, HATCHES, arm_style, legend_below, new_figure, plain, styled
from verl_sara.summary import Arm

FATES = (*(fate.value for fate in Fate), "lost")


@styled
def cost_by_fate(runs: Runs, unit: str) -> Figure:
    """Returns bars of `unit` ("rollouts" or "tokens") per effective group, split by fate; seeds pooled."""
    groups = {label: [a for a in arms if a.ledger] for label, arms in runs.by_label.items()}
    groups = {label: arms for label, arms in groups.items() if arms}
    figure = new_figure(8, 1.7 + 0.45 * len(groups))
    axes = figure.subplots()
    used = []
    for position, arms in enumerate(groups.values()):
        costs = [line for arm in arms for line in arm.costs()]
        effective = sum(map(effective_groups, costs)) or 1
        left = 0.0
        for fate in FATES:
            width = sum(line["fates"].get(fate, {}).get(unit, 0) for line in costs) / effective
            if width:
                used.append(fate)
                axes.barh(position, width, left=left, color=FATE_COLOURS[fate], hatch=HATCHES.get(fate), height=0.6)
            left += width
        total = cost_per_effective_group(costs, unit)
        if total.high == total.high:
            axes.plot([total.low, total.high], [position] * 2, color="black", linewidth=1.5, marker="|")
        end = max(left, total.high if total.high == total.high else left)
        axes.annotate(f"{left:,.1f}", (end, position), (6, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(groups)), [plain(name) for name in groups])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.12)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{unit} launched per effective group (line: 95 % interval over steps)")
    handles = [
        axes.barh(0, 0, color=FATE_COLOURS[fate], hatch=HATCHES.get(fate), label=fate.replace("_", " "))
        for fate in FATES
        if fate in used
    ]
    legend_below(figure, handles)
    return figure


@styled
def savings(runs: Runs) -> Figure:
    """Returns savings in rollouts and tokens, a panel per kind: measured, replayed, counterfactual."""
    panels = _saving_rows(runs)
    heights = [max(1, len(rows)) for rows in panels.values()]
    figure = new_figure(8, 1.6 + 0.42 * sum(heights) + 0.5 * len(panels))
    all_axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (title, rows) in zip(all_axes, panels.items(), strict=True):
        for position, (_, by_unit) in enumerate(rows):
            for unit, shift, colour, marker in (
                ("rollouts", -0.14, "#0072B2", "o"),
                ("tokens", 0.14, "#D55E00", "s"),
            ):
                _draw_saving(axes, position + shift, by_unit.get(unit), colour, marker)
        axes.set_yticks(range(len(rows)), [plain(name) for name, _ in rows])
        axes.set_ylim(max(1, len(rows)) - 0.5, -0.5)
        axes.axvline(0, color="black", linewidth=1)
        axes.set_title(title, loc="left", fontsize=10)
        axes.xaxis.set_major_formatter(lambda x, _: f"{100 * x:.0f} %")
    all_axes[-1].set_xlabel("saved per effective group, with 95 % intervals")
    handles = [
        all_axes[0].plot([], [], color="#0072B2", marker="o", label="rollouts")[0],
        all_axes[0].plot([], [], color="#D55E00", marker="s", label="tokens")[0],
    ]
    legend_below(figure, handles)
    return figure


Span = tuple[float | None, float | None, float | None, float | None]


def _saving_rows(runs: Runs) -> dict[str, list[tuple[str, dict[str, Span]]]]:
    """Returns panels of (name, {unit: (value or lower bound, upper bound, low, high)})."""
    summary = runs.summary
    measured, bounds, replayed = [], [], []
    for label, entry in summary["savings"].items():
        for base, found in entry["measured"].items():
            if "refused" not in found:
                spans = {unit: (found[unit][0], found[unit][0], *found[unit][1:]) for unit in found}
                measured.append((f"{label} vs {base}", spans))
        ideal = entry["counterfactual"]["ideal_ds"]["rollouts"]
        bounds.append((f"{label} vs ideal DS", {"rollouts": (*ideal["bounds"], *ideal["interval"])}))
    for arm in runs.full:
        key = f"paper_vs_{arm.name}"
        spans = {}
        for unit, suffix in (("rollouts", ""), ("tokens", "_tokens")):
            value, (low, high) = summary["replay"][key + suffix], summary["replay"][f"{key}{suffix}_interval"]
            if value is not None:
                spans[unit] = (
                    1 - value,
                    1 - value,
                    None if low is None else 1 - high,
                    None if low is None else 1 - low,
                )
        replayed.append((f"paper's rule on {arm.name}", spans))
    panels = {
        "measured: two arms that were run": measured,
        "replayed: the rule on another arm's full groups, paired": replayed,
        "counterfactual: own ledger against ideal dynamic sampling, bounds": bounds,
    }
    return {title: rows for title, rows in panels.items() if rows} or {"nothing to compare": []}


def _draw_saving(axes: Axes, position: float, span: Span | None, colour: str, marker: str) -> None:
    if span is None or span[0] is None:
        return
    lower, upper, low, high = span
    if low is not None and high is not None:
        axes.plot([low, high], [position] * 2, color=colour, linewidth=1.2)
    if upper is not None and upper != lower:
        axes.plot([lower, upper], [position] * 2, color=colour, linewidth=5, solid_capstyle="butt", alpha=0.5)
    ends = [lower] if upper in (None, lower) else [lower, upper]
    axes.plot(ends, [position] * len(ends), color=colour, marker=marker, linestyle="")


@styled
def accuracy_against(runs: Runs, unit: str) -> Figure:
    """Returns validation accuracy against cumulative `unit`; seeds as a band from least to greatest."""
    figure = new_figure(7, 4)
    axes = figure.subplots()
    styles = arm_style(list(runs.by_label))
    for label, arms in runs.by_label.items():
        draw_seeds(axes, label, [_accuracy_curve(arm, unit) for arm in arms], styles[label])
    axes.set_xlabel(f"{unit} launched so far, all attempts")
    axes.set_ylabel(f"validation accuracy{BAND if has_seeds(runs) else ''}")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:,.0f}")
    legend_below(figure, axes.lines)
    if not axes.lines:
        axes.text(0.5, 0.5, "no validation was logged", transform=axes.transAxes, ha="center")
    return figure


def _accuracy_curve(arm: Arm, unit: str) -> dict[int, tuple[float, float]]:
    """Returns {step: (cost so far, accuracy)} of every validation of a run with a ledger."""
    if arm.ledger is None:
        return {}
    spent, total = {0: 0.0}, 0.0
    for line in arm.costs():
        total += line["fates"]["launched"][unit]
        spent[line["step"]] = total
    return {step: (spent[step], value) for step, value in arm.log.validation() if step in spent}
