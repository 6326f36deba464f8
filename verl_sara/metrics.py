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

from verl_sara.core import BetaPrior, Fate, StopLengths, StoppingRule, align_lengths, stage_boundaries

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


# ---- full groups under another rule -----------------------------------------------------------


class RatioOfRatios:
    """Running (sum a / sum b) / (sum c / sum d) of paired terms, with a delta-method interval.

    Memory does not grow with the number of terms.
    """

    def __init__(self) -> None:
        self.count = 0
        self._sums = [0.0] * 4
        self._products = [[0.0] * 4 for _ in range(4)]

    def add(self, *terms: float) -> None:
        """Takes one pair (a, b, c, d)."""
        self.count += 1
        for i, x in enumerate(terms):
            self._sums[i] += x
            for j, y in enumerate(terms):
                self._products[i][j] += x * y

    def estimate(self) -> Estimate:
        """Returns the ratio, its interval on the log scale; NaN if a sum is 0."""
        if not all(self._sums):
            return Estimate(math.nan)
        a, b, c, d = self._sums
        value = (a / b) / (c / d)
        if self.count < 2:
            return Estimate(value)
        weights = [1 / a, -1 / b, -1 / c, 1 / d]
        # the weighted terms add up to 0, so their second moment is their variance
        squares = sum(weights[i] * weights[j] * self._products[i][j] for i in range(4) for j in range(4))
        spread = Z95 * math.sqrt(max(0.0, squares * self.count / (self.count - 1)))
        return Estimate(value, value * math.exp(-spread), value * math.exp(spread))


def is_full(group: Record) -> bool:
    """Whether all k outcomes of a group are known."""
    outcomes = group["slots"]["outcome"]
    return len(outcomes) == group["group_size"] and None not in outcomes


@dataclass(frozen=True, slots=True)
class Replayed:
    """A rule's cost per effective group relative to full groups on the same outcomes; below 1 it saves.

    Attributes:
      rollouts: Ratio of rollouts per effective group.
      tokens: Ratio of tokens per effective group.
      num_groups: Full groups that were replayed.
    """

    rollouts: Estimate
    tokens: Estimate
    num_groups: int


class Replay:
    """Runs a rule over full groups, in their launch order, one by one.

    An abandoned group costs its stop length, any other k. A renewal ratio: waves, surplus and budget
    play no part. The intervals treat the groups as independent.
    """

    def __init__(self, rule: StoppingRule, *, prior: BetaPrior, probe_size: int, increment: int) -> None:
        self._rule, self._prior, self._probe_size, self._increment = rule, prior, probe_size, increment
        self._lengths: dict[int, StopLengths] = {}
        self._rollouts, self._tokens = RatioOfRatios(), RatioOfRatios()

    def add(self, group: Record) -> None:
        """Takes one group; those that are not full are passed over."""
        if not is_full(group):
            return
        outcomes, tokens, k = group["slots"]["outcome"], group["slots"]["tokens"], group["group_size"]
        lengths = self._stop_lengths(k)
        is_abandoned = not any(outcomes[: lengths.fail]) or all(outcomes[: lengths.passed])
        is_mixed = 0 < sum(outcomes) < k
        stop = (lengths.passed if outcomes[0] else lengths.fail) if is_abandoned else k
        is_kept = is_mixed and not is_abandoned
        self._rollouts.add(stop, is_kept, k, is_mixed)
        self._tokens.add(sum(tokens[:stop]), is_kept, sum(tokens), is_mixed)

    def _stop_lengths(self, group_size: int) -> StopLengths:
        if group_size not in self._lengths:
            boundaries = stage_boundaries(group_size, self._probe_size, self._increment)
            lengths = self._rule.lengths(self._prior, group_size)
            self._lengths[group_size] = align_lengths(lengths, boundaries)
        return self._lengths[group_size]

    def result(self) -> Replayed:
        """Returns the ratios over the groups that were taken."""
        return Replayed(self._rollouts.estimate(), self._tokens.estimate(), self._rollouts.count)


def replay(
    groups: Iterable[Record], rule: StoppingRule, *, prior: BetaPrior, probe_size: int, increment: int
) -> Estimate:
    """Returns the rule's rollouts per effective group relative to full groups on the same outcomes.

    Raises:
      ValueError: If no full group is there.
    """
    runner = Replay(rule, prior=prior, probe_size=probe_size, increment=increment)
    for group in groups:
        runner.add(group)
    result = runner.result()
    if not result.num_groups:
        raise ValueError("no full group to replay; needed: a ledger of the preset ds, verl_ds or uniform")
    return result.rollouts


# ---- ideal dynamic sampling, from an arm's own ledger -----------------------------------------


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
        passed = sum(x or 0 for x in outcomes)
        is_mixed = 0 < passed < len(outcomes)
        sums = self._steps.setdefault((group.get("attempt", 1), group["step"]), [0.0, 0.0, 0.0])
        sums[0] += group["group_size"]
        sums[1] += is_mixed
        sums[2] += 1.0 if is_mixed else (0.0 if known else group["p_eff"] or 0.0)

    def saving(self, costs: dict[tuple[int, int], tuple[float, float]]) -> Bounds:
        """Returns the bounds of 1 - (an arm's rollouts per effective group) / (ideal dynamic sampling's).

        Args:
          costs: (rollouts, effective groups) of the arm by (attempt, step).
        """
        ends = []
        for column in (2, 1):
            quotient = RatioOfRatios()
            for key in costs.keys() | self._steps.keys():
                sums = self._steps.get(key, [0.0, 0.0, 0.0])
                quotient.add(*costs.get(key, (0.0, 0.0)), sums[0], sums[column])
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
