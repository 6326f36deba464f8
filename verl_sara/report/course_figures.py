"""Figures over the course of training: what was trained, how the rule stopped, where the time went."""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from verl_sara.metrics import effective_groups, groups_trained
from verl_sara.report.runs import Runs
from verl_sara.report.style import HATCHES, PHASE_COLOURS, arm_style, legend_below, new_figure, plain, styled
from verl_sara.summary import Arm
from verl_sara.summary.numbers import wall_split

VERDICT_COLOURS = {"mixed": "#0072B2", "all_fail": "#D55E00", "all_pass": "#009E73"}
VERDICT_NAMES = {"mixed": "committed", "all_fail": "abandoned, all fail", "all_pass": "abandoned, all pass"}
SIDE_MARKS = {"all_fail": ("#D55E00", "o"), "all_pass": ("#009E73", "s")}


@styled
def batch_over_training(runs: Runs) -> Figure:
    """Returns effective fraction, prompts visited and rollouts per step, a line per run."""
    figure = new_figure(7, 7.5)
    panels = figure.subplots(3, 1, sharex=True)
    styles = arm_style(list(runs.by_label))
    for arm in runs.with_ledger:
        steps = arm.history()
        numbers = [step["step"] for step in steps]
        fraction = [effective_groups(s) / groups_trained(s) if groups_trained(s) else math.nan for s in steps]
        launched = [step["fates"]["launched"] for step in steps]
        columns = (fraction, [n["groups"] for n in launched], [n["rollouts"] for n in launched])
        for axes, values in zip(panels, columns, strict=True):
            axes.plot(numbers, values, markersize=4, label=_label(runs, arm), **styles[arm.label])
    panels[0].set_ylabel("effective fraction\nof the trained batch")
    panels[0].set_ylim(-0.03, 1.06)
    panels[1].set_ylabel("prompts visited")
    panels[2].set_ylabel("rollouts launched")
    for axes in panels[1:]:
        axes.set_ylim(bottom=0)
    panels[2].set_xlabel("step")
    panels[2].xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, panels[0].get_legend_handles_labels()[0])
    return figure


@styled
def verdicts(runs: Runs) -> Figure:
    """Returns, for every run whose rule may abandon, the verdicts by the rollouts they took."""
    arms = stopping_arms(runs)
    figure = new_figure(7, 1.2 + 2.3 * max(1, len(arms)))
    all_axes = figure.subplots(max(1, len(arms)), 1, squeeze=False, sharex=True)[:, 0]
    longest = max((length for arm in arms for _, length in arm.stopping.verdicts), default=1)
    lengths = range(1, longest + 1)
    for axes, arm in zip(all_axes, arms, strict=False):
        bottom = [0] * len(lengths)
        for reason, colour in VERDICT_COLOURS.items():
            counts = [arm.stopping.verdicts[reason, length] for length in lengths]
            axes.bar(lengths, counts, bottom=bottom, color=colour, label=VERDICT_NAMES[reason])
            bottom = [a + b for a, b in zip(bottom, counts, strict=True)]
        axes.set_title(plain(arm.name), loc="left", fontsize=10)
        axes.set_ylabel("groups")
        axes.set_xticks(lengths)
        axes.grid(axis="x", visible=False)
    all_axes[-1].set_xlabel("rollouts launched when the verdict fell")
    if arms:
        legend_below(figure, all_axes[0].get_legend_handles_labels()[0])
    else:
        _say(all_axes[0], "no arm whose rule may abandon")
    return figure


def stopping_arms(runs: Runs) -> list[Arm]:
    """Returns the runs whose rule may abandon a prompt early."""
    return [arm for arm in runs.with_ledger if arm.options.get("rule") != "full" and arm.stopping.verdicts]


@styled
def calibration(runs: Runs) -> Figure:
    """Returns predicted p_eff against the share of full groups that came out mixed, by prefix."""
    arms = runs.full
    figure = new_figure(max(4.5, 3.6 * len(arms)), 4.2)
    all_axes = figure.subplots(1, max(1, len(arms)), squeeze=False, sharey=True)[0]
    for axes, arm in zip(all_axes, arms, strict=False):
        axes.plot([0, 1], [0, 1], color="black", linewidth=1, linestyle=":", label="prediction came true")
        for side, (colour, marker) in SIDE_MARKS.items():
            rows = [row for row in arm.stopping.calibration() if row.side == side]
            shares = [row.realised.value for row in rows]
            low = [row.realised.value - row.realised.low for row in rows]
            high = [row.realised.high - row.realised.value for row in rows]
            shift = 0.006 if side == "all_pass" else -0.006
            places = [row.predicted + shift for row in rows]
            name = f"prefix {side.replace('_', ' ')}"
            axes.errorbar(places, shares, [low, high], color=colour, marker=marker, linestyle="", label=name, capsize=2)
        axes.set_title(f"{plain(arm.name)}, {arm.stopping.num_full} full groups", fontsize=10)
        axes.set_xlabel("predicted p_eff")
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
    all_axes[0].set_ylabel("share that became mixed (95 %)")
    if arms:
        legend_below(figure, all_axes[0].get_legend_handles_labels()[0])
    else:
        _say(all_axes[0], "no arm with full groups")
    return figure


@styled
def replayed_cost(runs: Runs) -> Figure:
    """Returns the replayed cost of the paper's rule against its threshold, per arm of full groups."""
    arms = runs.full
    figure = new_figure(7, 4)
    axes = figure.subplots()
    styles = arm_style(list(runs.by_label))
    for arm in arms:
        taus, values, low, high = [], [], [], []
        for tau, result in runs.replays(arm).items():
            estimate = result.rollouts
            if estimate.value == estimate.value:
                taus.append(tau)
                values.append(estimate.value)
                low.append(estimate.low)
                high.append(estimate.high)
        axes.plot(taus, values, label=plain(arm.name), markersize=5, **styles[arm.label])
        axes.fill_between(taus, low, high, color=styles[arm.label]["color"], alpha=0.15, linewidth=0)
    axes.axhline(1, color="black", linewidth=1, linestyle=":")
    axes.set_xlabel("abandon threshold tau_low (prior of the rule, probe 2, +1)")
    axes.set_ylabel("rollouts per effective group\n/ that of full groups (band: 95 %)")
    legend_below(figure, axes.get_legend_handles_labels()[0])
    if not arms:
        _say(axes, "no arm with full groups")
    return figure


@styled
def wall_clock(runs: Runs) -> Figure:
    """Returns bars of the seconds per step, split by phase."""
    splits = {name: wall_split(arm.log) for name, arm in runs.arms.items()}
    splits = {name: split for name, split in splits.items() if split["total"] is not None}
    figure = new_figure(8, 1.7 + 0.45 * max(1, len(splits)))
    axes = figure.subplots()
    for position, (name, split) in enumerate(splits.items()):
        num_rows = sum("timing_s/step" in row.data for row in runs.arms[name].log.rows)
        left = 0.0
        for phase, colour in PHASE_COLOURS.items():
            width = (split[phase] or 0.0) / num_rows
            label = phase if position == 0 else None
            axes.barh(position, width, left=left, color=colour, hatch=HATCHES.get(phase), height=0.6, label=label)
            left += width
        axes.annotate(f"{left:,.1f}", (left, position), (4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(splits)), [plain(name) for name in splits])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.margins(x=0.1)
    axes.set_xlabel("seconds per step, checkpoints and validation apart")
    if splits:
        legend_below(figure, axes.get_legend_handles_labels()[0])
    else:
        _say(axes, "verl's log has no times")
    return figure


@styled
def rounds_and_occupancy(runs: Runs) -> Figure:
    """Returns rounds per step and the occupancy of the collection, a line per run."""
    figure = new_figure(7, 5)
    panels = figure.subplots(2, 1, sharex=True)
    styles = arm_style(list(runs.by_label))
    for arm in runs.with_ledger:
        steps = arm.history()
        numbers = [step["step"] for step in steps]
        if arm.options.get("mode") != "observe":
            panels[0].plot(numbers, [s.get("rounds", math.nan) for s in steps], markersize=4, **styles[arm.label])
        busy = arm.occupancy.by_step()
        values = [busy.get((step["attempt"], step["step"]), math.nan) for step in steps]
        panels[1].plot(numbers, values, markersize=4, label=_label(runs, arm), **styles[arm.label])
    panels[0].set_ylabel("rounds per step")
    panels[0].set_ylim(bottom=0)
    panels[1].set_ylabel("mean / most groups\nin service at once")
    panels[1].set_ylim(0, 1.05)
    panels[1].set_xlabel("step")
    panels[1].xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, panels[1].get_legend_handles_labels()[0])
    return figure


def _label(runs: Runs, arm: Arm) -> str:
    """Returns the name of the arm for its first seed, a hidden label for the others."""
    return plain(arm.label) if runs.by_label[arm.label][0] is arm else "_"


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")
    axes.set_axis_off()
