"""What the stopping rule did, and whether its predictions came true."""

from collections import Counter
from dataclasses import dataclass
from typing import Any

from verl_sara.core import BetaPrior, prob_effective
from verl_sara.metrics.audits import Audits
from verl_sara.metrics.estimates import Estimate, proportion
from verl_sara.metrics.replay import SIDES, is_full

Record = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Calibration:
    """Prefixes of one length and side: what p_eff said, and what became of their full groups.

    Attributes:
      side: "all_fail" or "all_pass".
      length: n, rollouts in the prefix, 1 <= n < k.
      num_groups: Full groups that began with this prefix.
      predicted: Mean p_eff under the priors in use.
      realised: Share of the full groups that are mixed.
    """

    side: str
    length: int
    num_groups: int
    predicted: float
    realised: Estimate


class Stopping:
    """Counts verdicts, calibration and audits, group by group.

    Calibration needs full groups that were not selected by their prefix: those of rules that never
    abandon (presets ds, verl_ds, uniform). Audits are the abandoned groups that were completed.
    """

    def __init__(self) -> None:
        self.verdicts: Counter[tuple[str, int]] = Counter()
        self.mixed_after: Counter[int] = Counter()
        self.num_full = self.num_full_mixed = 0
        self.audits = Audits()
        self._prefixes: dict[tuple[str, int], list[float]] = {}
        self._p_eff: dict[tuple[float, float, int, str], list[float]] = {}

    def add(self, group: Record) -> None:
        """Takes one group."""
        if group["verdict"] in ("commit", "abandon") and group["verdict_length"]:
            self.verdicts[group["reason"], group["verdict_length"]] += 1
        if not is_full(group):
            return
        outcomes = group["slots"]["outcome"]
        is_mixed = 0 < sum(outcomes) < len(outcomes)
        if self.audits.add(group):
            return
        if group["reason"] == "kept" or group["n0"] == group["n1"] == group["group_size"]:
            self._take_full(group, outcomes, is_mixed)

    def _take_full(self, group: Record, outcomes: list[int], is_mixed: bool) -> None:
        first, k = outcomes[0], len(outcomes)
        length = next((n for n, outcome in enumerate(outcomes) if outcome != first), k)
        self.num_full += 1
        self.num_full_mixed += is_mixed
        self.mixed_after[length + 1 if is_mixed else k] += is_mixed
        side = SIDES[first]
        p_eff = self._predictions(*group["prior"], k, side)
        for n in range(1, min(length, k - 1) + 1):
            sums = self._prefixes.setdefault((side, n), [0, 0, 0.0])
            sums[0] += 1
            sums[1] += is_mixed
            sums[2] += p_eff[n - 1]

    def _predictions(self, alpha: float, beta: float, group_size: int, side: str) -> list[float]:
        key = (alpha, beta, group_size, side)
        if key not in self._p_eff:
            prior = BetaPrior(alpha, beta)
            self._p_eff[key] = [
                prob_effective(n, n if side == "all_pass" else 0, group_size=group_size, prior=prior)
                for n in range(1, group_size)
            ]
        return self._p_eff[key]

    def calibration(self) -> list[Calibration]:
        """Returns a row per side and prefix length that was seen, in that order."""
        return [
            Calibration(side, n, int(total), p_eff / total, proportion(int(mixed), int(total)))
            for (side, n), (total, mixed, p_eff) in sorted(self._prefixes.items())
        ]

    def audited(self) -> dict[str, tuple[int, int, Estimate]]:
        """Returns (audits, mixed ones, q with its exact interval) by side and for "both"."""
        return {side: (*self.audits.counts(side), self.audits.rate(side)) for side in (*SIDES, "both")}
