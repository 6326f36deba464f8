"""The only definition of each number, used live by the trainer and offline by the reports.

Rates of one run are ratios of sums over steps; their intervals treat the steps as independent
(delta method, 95 %). Three kinds of saving are told apart and never mixed: measured (two arms that
were run), replayed (the rule run over another arm's full groups: paired, same outcomes) and
counterfactual (from an arm's own ledger, where what abandoned groups would have become is unknown).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from verl_sara.core import BetaPrior, Fate, StoppingRule, align_lengths, stage_boundaries

Z95 = 1.959963984540054
Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number with its 95 % interval; both ends are NaN where no interval can be given."""

    value: float
    low: float = math.nan
    high: float = math.nan

    def as_list(self) -> list[float | None]:
        """Returns [value, low, high] with None for NaN, for JSON."""
        return [None if math.isnan(x) else x for x in (self.value, self.low, self.high)]


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Estimate:
    """Returns sum(numerators) / sum(denominators) with a delta-method interval over the pairs."""
    total, n = sum(denominators), len(denominators)
    if not total:
        return Estimate(math.nan)
    value = sum(numerators) / total
    if n < 2:
        return Estimate(value)
    squares = sum((x - value * y) ** 2 for x, y in zip(numerators, denominators, strict=True))
    half = Z95 * math.sqrt(squares * n / (n - 1)) / total
    return Estimate(value, value - half, value + half)


def saving(cost: Estimate, baseline: Estimate) -> Estimate:
    """Returns 1 - cost / baseline for two independent estimates, interval on the log ratio."""
    if not (cost.value > 0 and baseline.value > 0):
        return Estimate(math.nan)
    quotient = cost.value / baseline.value
    spread = math.hypot(*((e.high - e.low) / (2 * e.value) for e in (cost, baseline)))
    return Estimate(1 - quotient, 1 - quotient * math.exp(spread), 1 - quotient * math.exp(-spread))


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

    Names end in `_total` where an async aggregator has to add them up, and avoid "max" and "min",
    by which it would choose another reduction.
    """
    numbers: dict[str, float] = {
        "sara/prompts_visited_total": _of(step, "launched", "groups"),
        "sara/groups_trained_total": groups_trained(step),
        "sara/rounds": step["rounds"],
        "sara/commit_rate": step["commit_rate"],
        "sara/is_exhausted": float(step["is_exhausted"]),
        "sara/collect_s": step["collect_s"],
    }
    for unit in ("rollouts", "tokens"):
        for fate in (*Fate, "launched"):
            name = fate.value if isinstance(fate, Fate) else fate
            numbers[f"sara/{unit}_{name}_total"] = _of(step, fate, unit)
        if effective_groups(step):
            numbers[f"sara/{unit}_per_effective_group"] = cost_per_effective_group([step], unit).value
    if groups_trained(step):
        numbers["sara/effective_fraction"] = effective_fraction([step]).value
    return numbers


# ---- arms and comparisons ---------------------------------------------------------------------


def is_full(group: Record) -> bool:
    """Whether all k outcomes of a group are known."""
    return len(group["slots"]["outcome"]) == group["group_size"] and None not in group["slots"]["outcome"]


def replay(groups: Iterable[Record], rule: StoppingRule, *, prior: BetaPrior, probe_size: int, increment: int) -> Estimate:
    """Returns the rule's rollouts per effective group relative to full groups on the same outcomes.

    Every full group of the ledger is run through the rule in its launch order: it costs the stop
    length if it is abandoned and k otherwise. Renewal ratio, so waves and surplus play no part;
    below 1 the rule saves. The interval treats the groups as independent.

    Raises:
      ValueError: If no full group is there.
    """
    costs: list[float] = []
    kept: list[float] = []
    full: list[float] = []
    mixed: list[float] = []
    for group in groups:
        if not is_full(group):
            continue
        outcomes, k = group["slots"]["outcome"], group["group_size"]
        boundaries = stage_boundaries(k, probe_size, increment)
        lengths = align_lengths(rule.lengths(prior, k), boundaries)
        abandoned = not any(outcomes[: lengths.fail]) or all(outcomes[: lengths.passed])
        is_mixed = 0 < sum(outcomes) < k
        costs.append((lengths.passed if outcomes[0] else lengths.fail) if abandoned else k)
        kept.append(float(is_mixed and not abandoned))
        full.append(k)
        mixed.append(float(is_mixed))
    if not costs:
        raise ValueError("no full group to replay; needed: a ledger of the preset ds, verl_ds or uniform")
    if not (sum(kept) and sum(mixed)):
        return Estimate(math.nan)
    value = (sum(costs) / sum(kept)) / (sum(full) / sum(mixed))
    terms = [
        c / sum(costs) - e / sum(kept) - f / sum(full) + m / sum(mixed)
        for c, e, f, m in zip(costs, kept, full, mixed, strict=True)
    ]
    spread = Z95 * math.sqrt(sum(t * t for t in terms))
    return Estimate(value, value * math.exp(-spread), value * math.exp(spread))


def ideal_ds_cost(groups: Iterable[Record]) -> tuple[float, float]:
    """Returns bounds (low, high) on ideal dynamic sampling's rollouts per effective group.

    Ideal = full groups, stop at the B-th effective one: k / P(full group mixed), estimated from the
    decided groups. A group that was abandoned early would have become mixed with an unknown
    probability between 0 (upper bound of the cost) and its p_eff (lower bound).
    """
    decided, least, most, k = 0, 0.0, 0.0, 0
    for group in groups:
        known = is_full(group)
        if not known and group["verdict"] not in ("commit", "abandon"):
            continue
        decided += 1
        k = group["group_size"]
        passed = sum(x or 0 for x in group["slots"]["outcome"])
        mixed = 0 < passed < len(group["slots"]["outcome"])
        least += mixed
        most += 1.0 if mixed else (0.0 if known else group["p_eff"] or 0.0)
    if not most:
        return math.nan, math.nan
    return k * decided / most, (k * decided / least if least else math.inf)
