"""Wrong abandons, as audited: abandoned groups that were completed, and how many of them are mixed.

The bounds are exact (Clopper-Pearson) and need no prior: they test the reliability that the stopping
rule promises under its prior (arXiv 2607.26253, abandonment reliability), for the stream that was
audited.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from verl_sara.core import Fate
from verl_sara.metrics.estimates import Estimate, clopper_pearson
from verl_sara.metrics.replay import SIDES, is_full

Record = dict[str, Any]


def is_audit(group: Record) -> bool:
    """Whether a group was abandoned and completed all the same, whatever became of it then."""
    is_longer = group["verdict"] == "abandon" and len(group["slots"]["outcome"]) > (group["verdict_length"] or 0)
    return is_full(group) and (is_longer or group["fate"] == Fate.AUDIT.value)


class Audits:
    """Counts audits by side: [audits, mixed ones, sum of p_eff at the verdict]."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {side: [0, 0, 0.0] for side in SIDES}

    def add(self, group: Record) -> bool:
        """Takes one group line and returns whether it is an audit."""
        if not is_audit(group):
            return False
        outcomes = group["slots"]["outcome"]
        sums = self._sums[group["reason"]]
        sums[0] += 1
        sums[1] += 0 < sum(outcomes) < len(outcomes)
        sums[2] += group["p_eff"] or 0.0
        return True

    def counts(self, side: str = "both") -> tuple[int, int]:
        """Returns (audits, mixed ones) of "all_fail", "all_pass" or "both"."""
        sides = SIDES if side == "both" else (side,)
        return sum(int(self._sums[one][0]) for one in sides), sum(int(self._sums[one][1]) for one in sides)

    def rate(self, side: str = "both") -> Estimate:
        """Returns q, the share of mixed ones, with its interval; NaN without an audit."""
        total, mixed = self.counts(side)
        return clopper_pearson(mixed, total)

    def predicted(self) -> float:
        """Returns what the prior expected of q: mean p_eff at the verdict of the audited; NaN without any."""
        total, _ = self.counts()
        return sum(sums[2] for sums in self._sums.values()) / total if total else math.nan

    def state_dict(self) -> dict[str, list[float]]:
        """Returns the counts."""
        return {side: list(sums) for side, sums in self._sums.items()}

    def load_state_dict(self, state: Mapping[str, Sequence[float]]) -> None:
        """Restores the counts."""
        self._sums = {side: list(state[side]) for side in SIDES}


def audit_metrics(step: Audits, run: Audits) -> dict[str, float]:
    """Returns the numbers for verl's logger: of a step's audits and of all of the run so far."""
    numbers: dict[str, float] = {"sara/audits_total": step.counts()[0], "sara/audits_run": run.counts()[0]}
    for suffix, audits in (("", step), ("_run", run)):
        if not audits.counts()[0]:
            continue
        rate, name = audits.rate(), f"sara/wrong_abandon_rate{suffix}"
        numbers |= {name: rate.value, f"{name}_lower": rate.low, f"{name}_upper": rate.high}
        numbers[f"{name}_predicted"] = audits.predicted()
    return numbers
