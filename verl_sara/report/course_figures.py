"""Figures over the course of training: what was trained, how the rule stopped, where the time went."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from verl_sara.metrics import effective_groups, groups_trained
from verl_sara.report.bands import BAND, draw_seeds, has_seeds
from verl_sara.report.runs import Runs
from verl_sara.report.style import HATCHES, PHASE_COLOURS, arm_style, legend_below, new_figure, plain, styled
from verl_sara.summary import Arm
from verl_sara.summary.numbers import step_seconds, wall_split

VERDICT_FILLS = {"mixed": ("#0072B2", ""), "all_fail": ("#D55E00", "//"), "all_pass": ("#009E73", "..")}
VERDICT_NAMES = {"mixed": "committed", "all_fail": "abandoned, all fail", "all_pass": "abandoned, all pass"}
SIDE_MARKS = {"all_fail": ("#D55E00", "o"), "all_pass": ("#009E73", "s")}


@styled
def batch_over_training(runs: Runs) -> Figure:
    """Returns effective fraction, prompts visited and rollouts per step, a line per arm."""
    figure = new_figure(7, 7.5)
    panels = figure.subplots(3, 1, sharex=True)
    numbers: tuple[Callable[[dict[str, Any]], float], ...] = (
        lambda step: effective_groups(step) / groups_trained(step) if groups_trained(step) else math.nan,
        lambda step: step["fates"]["launched"]["groups"],
        lambda step: step["fates"]["launched"]["rollouts"],
    )
    names = ("effective fraction\nof the trained batch", "prompts visited", "rollouts launched")
    for axes, number, name in zip(panels, numbers, names, strict=True):
        _draw_steps(axes, runs, lambda arm, number=number: {step["step"]: number(step) for step in arm.history()})
        axes.set_ylabel(name)
        axes.set_ylim(bottom=0)
    panels[0].set_ylim(-0.03, 1.06)
    _finish_steps(figure, panels, runs)
    return figure


def _draw_steps(axes: Axes, runs: Runs, values_of: Callable[[Arm], dict[int, float]]) -> None:
    """Draws a number per step of every arm with a ledger."""
    styles = arm_style(list(runs.by_label))
    for label, arms in runs.by_label.items():
        curves = [{step: (step, value) for step, value in values_of(arm).items()} for arm in arms if arm.ledger]
        draw_seeds(axes, label, curves, styles[label])


def _finish_steps(figure: Figure, panels: Sequence[Axes], runs: Runs) -> None:
    """Labels the steps below the last panel, and puts the legend of all under it."""
    panels[-1].set_xlabel(f"step{BAND if has_seeds(runs) else ''}")
    panels[-1].xaxis.get_major_locator().set_params(integer=True)
    legend_below(figure, panels[-1].get_legend_handles_labels()[0])


@styled
def verdicts(runs: Runs) -> Figure:
    """Returns, for every arm whose rule may abandon, the verdicts by the rollouts they took; seeds pooled."""
    pooled: dict[str, Counter[tuple[str, int]]] = {}
    for arm in stopping_arms(runs):
        pooled.setdefault(arm.label, Counter()).update(arm.stopping.verdicts)
    figure = new_figure(7, 1.2 + 2.3 * max(1, len(pooled)))
    all_axes = figure.subplots(max(1, len(pooled)), 1, squeeze=False, sharex=True)[:, 0]
    lengths = range(1, max((length for counts in pooled.values() for _, length in counts), default=1) + 1)
    for axes, (label, counts) in zip(all_axes, pooled.items(), strict=False):
        bottom = [0] * len(lengths)
        for reason, (colour, hatch) in VERDICT_FILLS.items():
            heights = [counts[reason, length] for length in lengths]
            axes.bar(lengths, heights, bottom=bottom, color=colour, hatch=hatch, label=VERDICT_NAMES[reason])
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        axes.set_title(f"{plain(label)}, {counts.total():,} groups", loc="left", fontsize=10)
        axes.set_ylabel("groups")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(axis="x", visible=False)
    all_axes[-1].set_xlabel("rollouts launched when the verdict fell")
    if pooled:
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
    columns = max(1, min(3, len(arms)))
    num_rows = max(1, -(-len(arms) // columns))
    figure = new_figure(max(4.5, 3.2 * columns), 1.2 + 2.9 * num_rows)
    grid = figure.subplots(num_rows, columns, squeeze=False, sharex=True, sharey=True)
    for axes, arm in zip_longest(grid.flat, arms):
        if arm is None:
            axes.set_visible(False)
            continue
        _draw_calibration(axes, arm)
    for axes in grid[:, 0]:
        axes.set_ylabel("share that became mixed\n(95 % interval)")
    for axes in grid.flat[max(0, len(arms) - columns) : len(arms)]:
        axes.set_xlabel("predicted p_eff")
        axes.tick_params(labelbottom=True)
    if arms:
        legend_below(figure, grid[0, 0].get_legend_handles_labels()[0])
    else:
        grid[0, 0].set_visible(True)
        _say(grid[0, 0], "no arm with full groups")
    return figure


def _draw_calibration(axes: Axes, arm: Arm) -> None:
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
    axes.set_title(f"{plain(arm.name)}, {arm.stopping.num_full} full groups", loc="left", fontsize=10)
    axes.set_xlim(-0.02, 1.02)
    axes.set_ylim(-0.02, 1.02)


@styled
def replayed_cost(runs: Runs) -> Figure:
    """Returns the replayed cost of the paper's rule against its threshold, per arm of full groups; seeds pooled."""
    by_label = {label: [arm for arm in arms if arm in runs.full] for label, arms in runs.by_label.items()}
    by_label = {label: arms for label, arms in by_label.items() if arms}
    figure = new_figure(7, 4)
    axes = figure.subplots()
    styles = arm_style(list(runs.by_label))
    for label, arms in by_label.items():
        found = {tau: result.rollouts for tau, result in runs.replays(*arms).items()}
        found = {tau: estimate for tau, estimate in found.items() if not math.isnan(estimate.value)}
        num_groups = sum(arm.stopping.num_full for arm in arms)
        name = f"{plain(label)} (n = {num_groups:,} groups)"
        axes.plot(list(found), [e.value for e in found.values()], label=name, markersize=5, **styles[label])
        low, high = [e.low for e in found.values()], [e.high for e in found.values()]
        axes.fill_between(list(found), low, high, color=styles[label]["color"], alpha=0.15, linewidth=0)
    axes.axhline(1, color="black", linewidth=1, linestyle=":")
    axes.set_xlabel("abandon threshold tau_low (prior of the rule, probe 2, +1)")
    axes.set_ylabel("rollouts per effective group\n/ that of full groups (band: 95 %)")
    legend_below(figure, axes.get_legend_handles_labels()[0])
    if not by_label:
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
        num_rows = len(step_seconds(runs.arms[name].log))
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
    """Returns rounds per step and the occupancy of the collection, a line per arm."""
    figure = new_figure(7, 5)
    panels = figure.subplots(2, 1, sharex=True)
    _draw_steps(panels[0], runs, Arm.rounds)
    panels[0].set_ylabel("rounds per step")
    panels[0].set_ylim(bottom=0)
    _draw_steps(panels[1], runs, _occupancy)
    panels[1].set_ylabel("mean / most groups\nin service at once")
    panels[1].set_ylim(0, 1.05)
    _finish_steps(figure, panels, runs)
    return figure


def _occupancy(arm: Arm) -> dict[int, float]:
    busy = arm.occupancy.by_step()
    return {step["step"]: busy.get((step["attempt"], step["step"]), math.nan) for step in arm.history()}


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")
    axes.set_axis_off()
