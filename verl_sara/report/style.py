"""How figures look: one palette that colour-blind readers can tell apart, one set of sizes."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import ParamSpec

import matplotlib
from matplotlib.artist import Artist
from matplotlib.figure import Figure

P = ParamSpec("P")

# Okabe and Ito, "Color universal design", 2008; arms differ in marker and line style as well.
ARM_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
ARM_MARKERS = ("o", "s", "^", "D", "v", "P", "X")
ARM_LINES = ("-", "--", "-.", ":")

FATE_COLOURS = {
    "trained": "#0072B2",
    "saturated_trained": "#56B4E9",
    "abandoned": "#D55E00",
    "surplus": "#E69F00",
    "undecided": "#D9D9D9",
    "audit": "#CC79A7",
    "failed": "#000000",
    "lost": "#F0E442",
}
PHASE_COLOURS = {
    "generate": "#0072B2",
    "update": "#E69F00",
    "weights": "#009E73",
    "wait": "#999999",
}
HATCHES = {"saturated_trained": "..", "surplus": "//", "audit": "xx", "lost": "\\\\", "weights": "//"}

SETTINGS = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#DDDDDD",
    "axes.axisbelow": True,
    "legend.frameon": False,
    "svg.hashsalt": "verl-sara",
}


def arm_style(labels: Sequence[str]) -> dict[str, dict[str, str]]:
    """Returns colour, marker and line style by arm; the same arm looks the same in every figure."""
    return {
        label: {
            "color": ARM_COLOURS[i % len(ARM_COLOURS)],
            "marker": ARM_MARKERS[i % len(ARM_MARKERS)],
            "linestyle": ARM_LINES[i % len(ARM_LINES)],
        }
        for i, label in enumerate(labels)
    }


def plain(text: str) -> str:
    """Returns a name as figures show it: shortened, and never read as a formula or as a hidden label."""
    short = text if len(text) <= 40 else f"{text[:24]}…{text[-15:]}"
    return f" {short}".replace("$", r"\$") if short.startswith("_") else short.replace("$", r"\$")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Makes a function draw in this style and leave the caller's own settings as they are."""

    @wraps(draw)
    def drawn(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with matplotlib.rc_context(SETTINGS):
            return draw(*args, **kwargs)

    return drawn


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure, in inches, whose parts make room for each other."""
    return Figure(figsize=(width, height), layout="constrained")


def legend_below(figure: Figure, handles: Sequence[Artist]) -> None:
    """Puts a legend under the axes, where it hides nothing."""
    if handles:
        labels = [str(handle.get_label()) for handle in handles]
        widest = max(map(len, labels))
        columns = int(12 * figure.get_figwidth()) // (widest + 6)
        figure.legend(handles, labels, loc="outside lower center", ncols=max(1, min(5, columns)))
