"""The part shared by selectors that rank the prompts: ranking, ties, exploration, prediction score."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_sara.selection.base import FREE, FROM_RANKING, PromptSelector, prefixed
from verl_sara.selection.evidence import GroupEvidence
from verl_sara.selection.index import Remap
from verl_sara.selection.prediction import PredictionScore

RANKING_SIZE = 8192
"""Prompts ranked at once. A step that uses up this many ranks the remaining ones anew."""

_SEEN_THIS_STEP_PENALTY = 4.0


class RankedSelector(PromptSelector):
    """Serves prompts from the top of a ranking that stands for a whole step, ties broken at random.

    A share `explore_fraction` of the selections, evenly spread, comes from shuffled passes instead, so that
    every prompt is visited in bounded time whatever the ranking says. Prompts observed in this step rank
    last.

    Args:
      prompt_ids: One unique id per row, [P].
      explore_fraction: Share of selections drawn uniformly, in [0, 1].
      params: Parameters for `PromptSelector`.

    Raises:
      ValueError: If `explore_fraction` is outside [0, 1].
    """

    def __init__(self, prompt_ids: Sequence[str], *, explore_fraction: float, **params: Any) -> None:
        if not 0.0 <= explore_fraction <= 1.0:
            raise ValueError(f"explore_fraction is {explore_fraction}; it must lie in [0, 1]")
        if explore_fraction == 0.0:
            warnings.warn(
                f"{self.name} selection with explore_fraction=0: pure ranking keeps retraining the same "
                "prompts and starves most others of medium difficulty; 0.05 to 0.1 keeps them visited",
                stacklevel=3,
            )
        super().__init__(prompt_ids, explore_fraction=explore_fraction, **params)
        self._ranking = np.empty(0, np.int32)
        self._cursor = 0
        self._score = PredictionScore()

    def _pick(self, n: int) -> list[int]:
        drawn = self._num_drawn + np.arange(n + 1)
        is_explored = np.diff(np.floor(drawn * self._params["explore_fraction"])) > 0
        return [self._take_from_pass(1)[0] if explore else self._next_ranked() for explore in is_explored]

    def _next_ranked(self) -> int:
        while True:
            if self._cursor == len(self._ranking):
                self._rank()
            number = int(self._ranking[self._cursor])
            self._cursor += 1
            if self._flight[number] == FREE:
                self._launch([number], FROM_RANKING)
                return number

    def _rank(self) -> None:
        scores = self._scores()
        scores[self._last_step == self._step] -= _SEEN_THIS_STEP_PENALTY
        scores[self._flight != FREE] = -np.inf
        size = min(RANKING_SIZE, np.count_nonzero(scores > -np.inf))
        self._ranking = top(scores, size, self._rng).astype(np.int32)
        self._cursor = 0

    def _absorb(self, numbers: np.ndarray, results: list[GroupEvidence]) -> None:
        weights = np.array([result.class_weights(is_hard=self._is_hard) for result in results])
        group_sizes = np.array([result.group_size for result in results])
        self._score.add(self._class_probs(numbers, group_sizes), weights)
        self._update(numbers, results, weights)

    def end_step(self) -> None:
        super().end_step()
        self._score.close()
        self._ranking, self._cursor = self._ranking[:0], 0

    def metrics(self) -> dict[str, float]:
        return super().metrics() | prefixed(self._score.metrics())

    def state_dict(self) -> dict[str, Any]:
        ranking = self._ranking[self._cursor :].copy()
        return super().state_dict() | {"ranking": ranking, "score": self._score.state_dict()}

    def _restore(self, state: dict[str, Any], remap: Remap) -> None:
        super()._restore(state, remap)
        self._ranking, self._cursor = remap.keep(state["ranking"])[0].astype(np.int32), 0
        self._score.load_state_dict(state["score"])

    _is_hard = False

    @abstractmethod
    def _scores(self) -> np.ndarray:
        """Returns a fresh float32 [P]: larger is better, values in [-1, 1], -inf for non-candidates.

        At least one free prompt is a candidate.
        """

    @abstractmethod
    def _class_probs(self, numbers: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
        """Returns the predicted class distribution of each prompt, [n, 3]."""

    @abstractmethod
    def _update(self, numbers: np.ndarray, results: list[GroupEvidence], weights: np.ndarray) -> None:
        """Takes outcomes with their class weights, [n, 3]."""


def top(scores: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the indices of the `size` largest scores, in descending order, ties in random order."""
    if size == 0:
        return np.empty(0, np.int64)
    sample = scores[:: len(scores) // 4096 + 1]
    rank = max(0, int(len(sample) * (1 - 8 * size / len(scores))))
    pivot = np.partition(sample, rank)[rank]  # below the threshold, or equal to it on many ties
    num_above = np.count_nonzero(scores > pivot)
    if num_above < size <= np.count_nonzero(scores >= pivot):
        threshold = pivot  # np.partition is slow on ties, and never-seen prompts all tie
    else:
        pool = scores[scores > pivot] if num_above >= size else scores
        threshold = np.partition(pool, len(pool) - size)[len(pool) - size]
    above, tied = np.flatnonzero(scores > threshold), np.flatnonzero(scores == threshold)
    drawn = rng.choice(len(tied), size - len(above), replace=False)
    chosen = np.concatenate([above, tied[drawn]])
    return chosen[np.lexsort((rng.random(size), -scores[chosen]))]
