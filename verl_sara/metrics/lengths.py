"""Tokens of rollouts by outcome and by fate of their group: why tokens save more or less than rollouts."""

import math
from collections import Counter
from typing import Any

from verl_sara.metrics.estimates import Z95, Estimate

Record = dict[str, Any]
OUTCOMES = {"passed": 1, "failed": 0, "no outcome": None}


class Lengths:
    """Mean tokens per rollout, by outcome and by fate. Memory grows with the distinct lengths only."""

    def __init__(self) -> None:
        self._rollouts: dict[str, Counter[tuple[int | None, int]]] = {}

    def add(self, group: Record) -> None:
        """Takes the rollouts of one group."""
        of_fate = self._rollouts.get(group["fate"])
        if of_fate is None:
            of_fate = self._rollouts[group["fate"]] = Counter()
        slots = group["slots"]
        of_fate.update(zip(slots["outcome"], slots["tokens"], strict=True))

    def _lengths(self, name: str) -> list[tuple[int, int]]:
        """Returns (tokens, rollouts) of an outcome or of "fate <fate>"."""
        if name in OUTCOMES:
            every = (pair for of_fate in self._rollouts.values() for pair in of_fate.items())
            return [(tokens, count) for (outcome, tokens), count in every if outcome == OUTCOMES[name]]
        of_fate = self._rollouts.get(name.removeprefix("fate "), Counter())
        return [(tokens, count) for (_, tokens), count in of_fate.items()]

    def count(self, name: str) -> int:
        """Returns the rollouts of an outcome ("passed", "failed", "no outcome") or "fate <fate>"."""
        return sum(count for _, count in self._lengths(name))

    def mean(self, name: str) -> Estimate:
        """Returns their mean tokens, rollouts taken as independent; NaN if there are none."""
        lengths, total = self._lengths(name), self.count(name)
        if not total:
            return Estimate(math.nan)
        mean = sum(tokens * count for tokens, count in lengths) / total
        if total < 2:
            return Estimate(mean)
        variance = sum((tokens - mean) ** 2 * count for tokens, count in lengths) / (total - 1)
        half = Z95 * math.sqrt(variance / total)
        return Estimate(mean, mean - half, mean + half)
