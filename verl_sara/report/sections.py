"""The questions that a report answers, each with its figures and tables. The notebooks show the same ones."""

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from verl_sara.report import cost_figures, course_figures, tables
from verl_sara.report.runs import Runs
from verl_sara.report.table import Table


@dataclass(frozen=True)
class Picture:
    """A figure as PNG bytes, with its name and what it shows."""

    name: str
    caption: str
    png: bytes

    def _repr_png_(self) -> bytes:
        """Shows it in a notebook."""
        return self.png


@dataclass(frozen=True)
class Section:
    """One question with its answer.

    Attributes:
      name: Short name, also of the notebook.
      title: Heading.
      question: What the reader wants to know.
      pictures: Figures.
      tables: Tables; the last is the one that a paper would print.
    """

    name: str
    title: str
    question: str
    pictures: Sequence[Picture]
    tables: Sequence[Table]


def picture(name: str, caption: str, figure: Figure) -> Picture:
    """Returns a figure as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=130, metadata={"Software": None})
    return Picture(name, caption, buffer.getvalue())


def overview(runs: Runs) -> Section:
    """All runs side by side."""
    return Section("overview", "Overview", "What did every run spend, and what for?", [], [tables.side_by_side(runs)])


def rollout_savings(runs: Runs) -> Section:
    """How many rollouts an effective group costs."""
    return Section(
        "rollout_savings",
        "Rollout savings",
        "How many rollouts does an effective group cost, and how many does SARA save?",
        [
            picture("savings", "Savings by kind; kinds are not to be mixed.", cost_figures.savings(runs)),
            picture(
                "rollouts_by_fate",
                "Rollouts per effective group by what became of their group.",
                cost_figures.cost_by_fate(runs, "rollouts"),
            ),
            picture(
                "accuracy_rollouts",
                "Validation accuracy against rollouts.",
                cost_figures.accuracy_against(runs, "rollouts"),
            ),
        ],
        [
            tables.measured(runs),
            tables.replayed(runs),
            tables.counterfactual(runs),
            tables.cost(runs, "rollouts"),
        ],
    )


def token_savings(runs: Runs) -> Section:
    """How many tokens an effective group costs."""
    return Section(
        "token_savings",
        "Token savings",
        "How many tokens does an effective group cost, and why do tokens save more or less than rollouts?",
        [
            picture(
                "tokens_by_fate",
                "Tokens per effective group by what became of their group.",
                cost_figures.cost_by_fate(runs, "tokens"),
            ),
            picture(
                "accuracy_tokens",
                "Validation accuracy against generated tokens.",
                cost_figures.accuracy_against(runs, "tokens"),
            ),
        ],
        [tables.lengths(runs), tables.cost(runs, "tokens")],
    )


def effective_batch(runs: Runs) -> Section:
    """What the optimizer was given."""
    return Section(
        "effective_batch",
        "Effective batch over training",
        "Does every step train on mixed groups only, and how many prompts does that take?",
        [picture("batch", "What every step trained on, and cost.", course_figures.batch_over_training(runs))],
        [tables.batch(runs)],
    )


def stopping(runs: Runs) -> Section:
    """When the rule stopped and whether it was right."""
    return Section(
        "stopping",
        "Stopping and calibration",
        "After how many rollouts do verdicts fall, does p_eff come true, and how often is an abandon wrong?",
        [
            picture("verdicts", "Verdicts by the rollouts they took.", course_figures.verdicts(runs)),
            picture("calibration", "p_eff against what came true.", course_figures.calibration(runs)),
        ],
        [tables.verdicts(runs), tables.calibration(runs), tables.reliability(runs), tables.wrong_abandons(runs)],
    )


def ablations(runs: Runs) -> Section:
    """How runs and thresholds compare."""
    return Section(
        "ablations",
        "Algorithms and ablations",
        "How do the runs differ, and what would another threshold have cost on the same groups?",
        [picture("thresholds", "The paper's rule by threshold, replayed.", course_figures.replayed_cost(runs))],
        [tables.ablation(runs), tables.settings(runs)],
    )


def wall_clock(runs: Runs) -> Section:
    """Where the time went."""
    return Section(
        "wall_clock",
        "Wall-clock",
        "Where does the time of a step go, how many rounds does it take, and how much stands idle?",
        [
            picture("wall_clock", "Seconds per step by phase.", course_figures.wall_clock(runs)),
            picture("rounds", "Rounds and occupancy.", course_figures.rounds_and_occupancy(runs)),
        ],
        [tables.wall(runs)],
    )


SECTIONS: tuple[Callable[[Runs], Section], ...] = (
    overview,
    rollout_savings,
    token_savings,
    effective_batch,
    stopping,
    ablations,
    wall_clock,
)
