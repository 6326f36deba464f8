"""Tokens of rollouts by outcome and by fate of their group: why tokens save more or less than rollouts."""

import math
from itertools import compress
from operator import mul
from typing import Any

from verl_sara.metrics.estimates import Z95, Estimate

Record = dict[str, Any]


class Lengths:
    """Running mean of tokens per rollout, by outcome and by fate."""

    def __init__(self) -> None:
        self._sums: dict[str, list[int]] = {}

    def add(self, group: Record) -> None:
        """Takes the rollouts of one group."""
        outcomes, tokens = group["slots"]["outcome"], group["slots"]["tokens"]
        passed = list(compress(tokens, outcomes))
        self._take("passed", passed)
        if len(passed) < len(tokens):
            unknown = [count for outcome, count in zip(outcomes, tokens, strict=True) if outcome is None]
            failed = tokens
            if passed or unknown:
                failed = [count for outcome, count in zip(outcomes, tokens, strict=True) if outcome == 0]
            self._take("failed", failed)
            self._take("no outcome", unknown)
        self._take(f"fate {group['fate']}", tokens)

    def _take(self, name: str, tokens: list[int]) -> None:
        if tokens:
            sums = self._sums.setdefault(name, [0, 0, 0])
            sums[0] += len(tokens)
            sums[1] += sum(tokens)
            sums[2] += sum(map(mul, tokens, tokens))

    def count(self, name: str) -> int:
        """Returns the rollouts of an outcome ("passed", "failed", "no outcome") or "fate <fate>"."""
        return self._sums.get(name, [0])[0]

    def mean(self, name: str) -> Estimate:
        """Returns their mean tokens, rollouts taken as independent; NaN if there are none."""
        count, total, squares = self._sums.get(name, (0, 0, 0))
        if not count:
            return Estimate(math.nan)
        mean = total / count
        if count < 2:
            return Estimate(mean)
        half = Z95 * math.sqrt(max(0.0, squares / count - mean * mean) / (count - 1))
        return Estimate(mean, mean - half, mean + half)
