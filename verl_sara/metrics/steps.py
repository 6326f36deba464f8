"""Numbers of steps: what they cost, and what of it was trained."""

from collections.abc import Sequence
from typing import Any

from verl_sara.core import Fate
from verl_sara.metrics.estimates import Estimate, ratio

Record = dict[str, Any]


def _of(step: Record, fate: Fate | str, unit: str) -> int:
    return step["fates"][fate.value if isinstance(fate, Fate) else fate][unit]


def effective_groups(step: Record) -> int:
    """Groups that were trained and are mixed: the ones that give a gradient."""
    return _of(step, Fate.TRAINED, "groups")


def groups_trained(step: Record) -> int:
    """Groups handed to the optimizer, saturated ones included."""
    return effective_groups(step) + _of(step, Fate.SATURATED_TRAINED, "groups")


def cost_per_effective_group(steps: Sequence[Record], unit: str) -> Estimate:
    """Returns everything launched per effective group; `unit` is "rollouts" or "tokens"."""
    return ratio([_of(s, "launched", unit) for s in steps], [effective_groups(s) for s in steps])


def effective_fraction(steps: Sequence[Record]) -> Estimate:
    """Returns effective groups / groups trained, in [0, 1]."""
    return ratio([effective_groups(s) for s in steps], [groups_trained(s) for s in steps])


def step_metrics(step: Record) -> dict[str, float]:
    """Returns a step's numbers for verl's logger.

    Rounds are told only where the schedule has them. Names end in `_total` where an async aggregator
    has to add them up, and avoid "max" and "min", by which it would choose another reduction.
    """
    numbers: dict[str, float] = {
        "sara/prompts_visited_total": _of(step, "launched", "groups"),
        "sara/groups_trained_total": groups_trained(step),
        "sara/commit_rate": step["commit_rate"],
        "sara/is_exhausted": float(step["is_exhausted"]),
        "sara/collect_s": step["collect_s"],
        "sara/padding_rows_total": step.get("padding_rows", 0),
    }
    for unit in ("rollouts", "tokens"):
        for fate in (*Fate, "launched"):
            name = fate.value if isinstance(fate, Fate) else fate
            numbers[f"sara/{unit}_{name}_total"] = _of(step, fate, unit)
        if effective_groups(step):
            numbers[f"sara/{unit}_per_effective_group"] = cost_per_effective_group([step], unit).value
    for name in ("rounds", "accuracy_launched", "accuracy_trained"):
        if step.get(name) is not None:
            numbers[f"sara/{name}"] = step[name]
    if groups_trained(step):
        numbers["sara/effective_fraction"] = effective_fraction([step]).value
    return numbers
