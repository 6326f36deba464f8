"""Tokens of rollouts by outcome and by fate of their group: why tokens save more or less than rollouts."""

import math
from collections.abc import Mapping
from typing import Any

from verl_sara.metrics.estimates import Z95, Estimate

Record = dict[str, Any]
OUTCOMES: Mapping[int | None, str] = {1: "passed", 0: "failed", None: "no outcome"}


class Lengths:
    """Running mean of tokens per rollout, by outcome and by fate."""

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {name: [0, 0, 0] for name in OUTCOMES.values()}
        self._by_outcome = {outcome: self._sums[name] for outcome, name in OUTCOMES.items()}

    def add(self, group: Record) -> None:
        """Takes the rollouts of one group."""
        of_fate = self._sums.setdefault(f"fate {group['fate']}", [0, 0, 0])
        for outcome, tokens in zip(group["slots"]["outcome"], group["slots"]["tokens"], strict=True):
            square = tokens * tokens
            for sums in (self._by_outcome[outcome], of_fate):
                sums[0] += 1
                sums[1] += tokens
                sums[2] += square

    def count(self, name: str) -> int:
        """Returns the rollouts of an outcome ("passed", "failed", "no outcome") or "fate <fate>"."""
        return int(self._sums.get(name, [0])[0])

    def mean(self, name: str) -> Estimate:
        """Returns their mean tokens, rollouts taken as independent; NaN if there are none."""
        count, total, squares = self._sums.get(name, (0, 0.0, 0.0))
        if not count:
            return Estimate(math.nan)
        mean = total / count
        if count < 2:
            return Estimate(mean)
        half = Z95 * math.sqrt(max(0.0, squares / count - mean * mean) / (count - 1))
        return Estimate(mean, mean - half, mean + half)
