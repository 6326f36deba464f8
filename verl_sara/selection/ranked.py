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
_BLOCK = 1 << 16


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
        candidates = self._candidates()
        scores, view = self._scores(candidates), slice(None) if candidates is None else candidates
        scores[self._last_step[view] == self._step] -= _SEEN_THIS_STEP_PENALTY
        num_free = len(scores)
        if candidates is None:
            scores[self._flight != FREE] = -np.inf
            num_free -= self._num_in_flight
        ranking = top(scores, min(RANKING_SIZE, num_free), self._rng)
        self._ranking = (ranking if candidates is None else candidates[ranking]).astype(np.int32)
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

    def _candidates(self) -> np.ndarray | None:
        """Returns the free prompts to rank, at least one; None for all of them."""
        return None

    @abstractmethod
    def _scores(self, numbers: np.ndarray | None) -> np.ndarray:
        """Returns fresh float32 scores in [-1, 1], larger is better, of the prompts; None for all P."""

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
    above, is_tied = np.flatnonzero(scores > threshold), scores == threshold
    ranks = rng.choice(np.count_nonzero(is_tied), size - len(above), replace=False)
    chosen = np.concatenate([above, _members(is_tied, ranks)])
    return chosen[np.lexsort((rng.random(size), -scores[chosen]))]


def _members(is_member: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Returns `np.flatnonzero(is_member)[ranks]`, in ascending order, without an index of millions of ties."""
    ranks, found, passed = np.sort(ranks), [], 0
    for start in range(0, len(is_member), _BLOCK):
        block = is_member[start : start + _BLOCK]
        count = np.count_nonzero(block)
        low, high = np.searchsorted(ranks, (passed, passed + count))
        if low < high:
            found.append(start + np.flatnonzero(block)[ranks[low:high] - passed])
        passed += count
    return np.concatenate(found) if found else np.empty(0, np.int64)
