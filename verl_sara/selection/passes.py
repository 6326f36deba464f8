"""Shuffled passes over the prompts: each pass visits every prompt exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from verl_sara.selection.index import Remap


class ShuffledPasses:
    """An endless queue of fresh permutations.

    A prompt that is busy when its turn comes is deferred, not skipped: it is served as soon as it is free,
    ahead of the rest of the queue. So every pass visits each prompt exactly once, also where one pass ends
    and the next begins within a step.

    Args:
      num_prompts: P, at least 1.
      rng: Source of the permutations, shared with the owner.

    Attributes:
      num_started: Permutations drawn so far.
    """

    def __init__(self, num_prompts: int, rng: np.random.Generator) -> None:
        self._num_prompts = num_prompts
        self._rng = rng
        self._order = np.empty(0, np.int32)
        self._position = 0
        self._deferred: list[int] = []
        self.num_started = 0

    def take(self, n: int, is_free: Callable[[np.ndarray], np.ndarray]) -> list[int]:
        """Returns the next `n` distinct free prompt numbers. At least `n` prompts must be free."""
        chosen: dict[int, None] = {}
        window, self._deferred = np.array(self._deferred, np.int32), []
        while True:
            for number, free in zip(window.tolist(), is_free(window).tolist(), strict=True):
                if free and len(chosen) < n and number not in chosen:
                    chosen[number] = None
                else:
                    self._deferred.append(number)
            if len(chosen) == n:
                return list(chosen)
            window = self._advance(n - len(chosen))

    def give_back(self, numbers: list[int]) -> None:
        """Puts prompts that were taken but not used at the head of the queue."""
        self._deferred = numbers + self._deferred

    def _advance(self, n: int) -> np.ndarray:
        if self._position == len(self._order):
            self._order = np.arange(self._num_prompts, dtype=np.int32)
            self._rng.shuffle(self._order)
            self._position = 0
            self.num_started += 1
        window = self._order[self._position : self._position + n]
        self._position += len(window)
        return window

    def state_dict(self) -> dict[str, Any]:
        """Returns what is left of the queue, in prompt numbers."""
        return {
            "order": self._order[self._position :].copy(),
            "deferred": np.array(self._deferred, np.int32),
            "num_started": self.num_started,
        }

    def load_state_dict(self, state: dict[str, Any], remap: Remap) -> None:
        """Restores the queue. New prompts join the rest of the pass, reshuffled; vanished ones leave."""
        (order,) = remap.keep(state["order"])
        if len(remap.new) and state["num_started"]:
            order = self._rng.permutation(np.concatenate([order, remap.new]))
        self._order, self._position = order.astype(np.int32), 0
        self._deferred = remap.keep(state["deferred"])[0].tolist()
        self.num_started = state["num_started"]
