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
        self._sums: dict[str, list[float]] = {}

    def add(self, group: Record) -> None:
        """Takes the rollouts of one group."""
        slots, fate = group["slots"], f"fate {group['fate']}"
        for outcome, tokens in zip(slots["outcome"], slots["tokens"], strict=True):
            for name in (OUTCOMES[outcome], fate):
                sums = self._sums.setdefault(name, [0, 0.0, 0.0])
                sums[0] += 1
                sums[1] += tokens
                sums[2] += tokens * tokens

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
