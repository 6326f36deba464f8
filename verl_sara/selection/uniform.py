"""Uniform selection: shuffled passes over the data set."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verl_sara.selection.base import PromptSelector
from verl_sara.selection.evidence import GroupEvidence


class UniformSelector(PromptSelector):
    """Every prompt once per pass, each pass in a fresh order. Learns nothing.

    Args:
      prompt_ids: One unique id per row, [P].
      seed: Seed of the permutations.
      stale_after: Steps without a visit after which a prompt last seen mixed counts as stale, at least 1.
    """

    name = "uniform"

    def __init__(self, prompt_ids: Sequence[str], *, seed: int = 0, stale_after: int = 50) -> None:
        super().__init__(prompt_ids, seed=seed, stale_after=stale_after)

    def _pick(self, n: int) -> list[int]:
        return self._take_from_pass(n)

    def _absorb(self, numbers: np.ndarray, results: list[GroupEvidence]) -> None:
        pass
