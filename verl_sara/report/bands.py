"""Curves of an arm over its seeds: the mean as a line, the range as a band."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from verl_sara.report.runs import Runs
from verl_sara.report.style import plain

Curve = Mapping[int, tuple[float, float]]
MOST_MARKERS = 24
BAND = "\n(mean of seeds; band: range)"


def has_seeds(runs: Runs) -> bool:
    """Whether an arm was run more than once."""
    return any(len(arms) > 1 for arms in runs.by_label.values())


def draw_seeds(axes: Axes, name: str, curves: Sequence[Curve], style: Mapping[str, Any]) -> None:
    """Draws {step: (x, y)} of every seed of an arm, at the steps that all seeds have.

    One seed is drawn as it is. Of several the mean is drawn, with a band from least to greatest, and n is
    told in the legend.
    """
    curves = [curve for curve in curves if curve]
    if not curves:
        return
    steps = sorted(set.intersection(*(set(curve) for curve in curves)))
    points = [[curve[step] for curve in curves] for step in steps]
    places, means = ([sum(pair[i] for pair in point) / len(point) for point in points] for i in (0, 1))
    label = plain(name) if len(curves) == 1 else f"{plain(name)} (n = {len(curves)} seeds)"
    axes.plot(places, means, label=label, markersize=4, markevery=-(-len(steps) // MOST_MARKERS) or 1, **style)
    if len(curves) > 1:
        low, high = ([end(y for _, y in point) for point in points] for end in (min, max))
        axes.fill_between(places, low, high, color=style["color"], alpha=0.2, linewidth=0)
