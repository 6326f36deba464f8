"""Ideal dynamic sampling, estimated from an arm's own ledger: bounds, since abandoned groups are unknown."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_sara.metrics.estimates import Estimate, RatioOfRatios, ratio
from verl_sara.metrics.replay import is_full

Record = dict[str, Any]
Costs = Mapping[tuple[int, int], tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """A number that is known to lie between two estimates."""

    low: Estimate
    high: Estimate

    def as_dict(self) -> dict[str, list[float | None]]:
        """Returns {"bounds", "interval"} for JSON; the interval holds both ends' intervals."""
        ends = [self.low.value, self.high.value]
        outer = [self.low.low, self.high.high]
        return {
            name: [x if math.isfinite(x) else None for x in pair]
            for name, pair in (("bounds", ends), ("interval", outer))
        }


class IdealDs:
    """Bounds on what ideal dynamic sampling would have cost on the prompts that an arm decided.

    Ideal = full groups, stop at the B-th effective one: k / P(full group mixed), estimated from the
    decided groups. A group that was abandoned early would have become mixed with an unknown
    probability between 0 (upper bound of the cost) and its p_eff (lower bound).
    """

    def __init__(self) -> None:
        self._steps: dict[tuple[int, int], list[float]] = {}

    def add(self, group: Record) -> None:
        """Takes one group; those without a verdict are passed over, unless they are full."""
        known = is_full(group)
        if not known and group["verdict"] not in ("commit", "abandon"):
            return
        outcomes = group["slots"]["outcome"]
        is_mixed = 0 in outcomes and 1 in outcomes
        sums = self._steps.setdefault((group.get("attempt", 1), group["step"]), [0.0, 0.0, 0.0])
        sums[0] += group["group_size"]
        sums[1] += is_mixed
        sums[2] += 1.0 if is_mixed else (0.0 if known else group["p_eff"] or 0.0)

    def saving(self, costs: Costs, others: Sequence[tuple["IdealDs", Costs]] = ()) -> Bounds:
        """Returns the bounds of 1 - (rollouts per effective group) / (ideal dynamic sampling's).

        Args:
          costs: (rollouts, effective groups) of the run by (attempt, step).
          others: Further runs to pool with this one.
        """
        ends = []
        for column in (2, 1):
            quotient = RatioOfRatios()
            for ideal, own in ((self, costs), *others):
                for key in sorted(own.keys() | ideal._steps.keys()):
                    sums = ideal._steps.get(key, [0.0, 0.0, 0.0])
                    quotient.add(*own.get(key, (0.0, 0.0)), sums[0], sums[column])
            estimate = quotient.estimate()
            ends.append(Estimate(1 - estimate.value, 1 - estimate.high, 1 - estimate.low))
        return Bounds(*ends)

    def cost(self) -> Bounds:
        """Returns rollouts per effective group; the upper end is infinite if nothing was mixed."""
        rollouts, least, most = ([sums[i] for sums in self._steps.values()] for i in range(3))
        high = ratio(rollouts, least) if sum(least) else Estimate(math.inf if rollouts else math.nan)
        return Bounds(ratio(rollouts, most), high)


def ideal_ds_cost(groups: Iterable[Record]) -> tuple[float, float]:
    """Returns bounds (low, high) on ideal dynamic sampling's rollouts per effective group; see IdealDs."""
    ideal = IdealDs()
    for group in groups:
        ideal.add(group)
    bounds = ideal.cost()
    return bounds.low.value, bounds.high.value
