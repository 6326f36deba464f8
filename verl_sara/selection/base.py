"""The protocol of a selector, with the part that all share: flights, visits, passes, state and metrics.

How prompts are chosen lives in `uniform`, `ranked`, `dps` and `mopps`.
"""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from verl_sara.selection.evidence import MIXED, GroupEvidence
from verl_sara.selection.index import PromptIndex, Remap
from verl_sara.selection.passes import ShuffledPasses

SCHEMA = 1
METRIC_PREFIX = "sara/selection/"

FREE, FROM_RANKING, FROM_PASS = range(3)


class PromptsExhausted(RuntimeError):
    """More prompts are asked for than are not in flight."""


@dataclass(frozen=True)
class RestoreReport:
    """What became of the prompts of a saved state: `num_restored`, `num_new`, `num_vanished`."""

    num_restored: int
    num_new: int
    num_vanished: int


class PromptSelector(ABC):
    """Chooses which prompts enter a training step, and learns from their groups.

    A prompt is in flight from `select` until `observe` or `release`. Beliefs used for ranking move in
    `end_step` only. A subclass chooses in `_pick`; whatever state it adds goes through `state_dict` and
    `_restore`.

    Args:
      prompt_ids: One unique id per row, [P].
      seed: Seed of every random choice.
      stale_after: Steps without a visit after which a prompt last seen mixed counts as stale, at least 1.
      params: The remaining parameters, saved with the state for comparison.

    Raises:
      ValueError: If the ids are empty or repeated, or `stale_after` is below 1.
    """

    name: ClassVar[str]

    def __init__(self, prompt_ids: Sequence[str], *, seed: int, stale_after: int, **params: Any) -> None:
        if stale_after < 1:
            raise ValueError(f"stale_after is {stale_after}; it must be at least 1")
        self._params = {"seed": seed, "stale_after": stale_after, **params}
        self._index = PromptIndex(prompt_ids)
        self._rng = np.random.default_rng(seed)
        self._passes = ShuffledPasses(len(self._index), self._rng)
        self._flight = np.zeros(len(self._index), np.uint8)
        self._num_in_flight = 0
        self._last_step = np.full(len(self._index), -1, np.int32)
        self._last_class = np.full(len(self._index), -1, np.int8)
        self._step = 0
        self._num_drawn = 0
        self._num_released = 0

    def select(self, n: int) -> np.ndarray:
        """Returns the rows of `n` distinct prompts, none in flight, best first, int64 [n].

        Raises:
          ValueError: If `n` is negative.
          PromptsExhausted: If fewer than `n` prompts are not in flight; nothing is selected then.
        """
        num_free = len(self._index) - self._num_in_flight
        if n < 0:
            raise ValueError(f"cannot select {n} prompts; n must be 0 or more")
        if n > num_free:
            raise PromptsExhausted(
                f"asked for {n} prompts, but of the {len(self._index)} in the data set {self._num_in_flight} "
                f"are in flight and {num_free} left: observe some, use smaller batches or more data"
            )
        numbers = self._pick(n)
        self._num_drawn += n
        return self._index.rows[numbers].astype(np.int64)

    def observe(self, results: Iterable[GroupEvidence]) -> None:
        """Takes the outcomes of groups, in flight or not. An unobserved one only ends its flight.

        Raises:
          ValueError: If a prompt is not in the data set; nothing is taken then.
        """
        results = list(results)
        numbers = self._index.numbers([result.prompt_id for result in results])
        is_seen = np.array([result.realised_class is not None for result in results], bool)
        seen = [result for result in results if result.realised_class is not None]
        if seen:
            self._absorb(numbers[is_seen], seen)
            self._last_step[numbers[is_seen]] = self._step
            self._last_class[numbers[is_seen]] = [result.realised_class for result in seen]
        self._land(numbers)

    def release(self, prompt_ids: Sequence[str]) -> None:
        """Takes back prompts that were selected but never launched.

        A pass serves them again first; one that came from a ranking waits for the next ranking.

        Raises:
          ValueError: If a prompt is not in the data set, or not in flight; nothing is released then.
        """
        prompt_ids = list(dict.fromkeys(prompt_ids))
        numbers = self._index.numbers(prompt_ids)
        idle = np.flatnonzero(self._flight[numbers] == FREE)
        if len(idle):
            raise ValueError(
                f"prompt {prompt_ids[int(idle[0])]!r} is not in flight, so it cannot be released"
            )
        self._passes.give_back(numbers[self._flight[numbers] == FROM_PASS].tolist())
        self._num_released += len(numbers)
        self._land(numbers)

    def in_flight(self) -> np.ndarray:
        """Returns the rows of the prompts selected and neither observed nor released, int64, sorted."""
        return np.sort(self._index.rows[np.flatnonzero(self._flight)]).astype(np.int64)

    def end_step(self) -> None:
        """Closes a training step: one belief transition."""
        self._step += 1

    def metrics(self) -> dict[str, float]:
        """Returns the figures of the current step, or of the one just ended, named `sara/selection/...`.

        `prompts_drawn` (selected and not released) and `passes` (that over P) count since the run began;
        `stale_mixed_share` is taken over the prompts last seen mixed. No name contains a word that makes
        verl's asynchronous metrics aggregator reduce it by maximum, minimum or sum.
        """
        num_prompts, num_drawn = len(self._index), self._num_drawn - self._num_released
        is_mixed = self._last_class == MIXED
        num_stale = np.count_nonzero(is_mixed & (self._last_step < self._step - self._params["stale_after"]))
        values = {
            "prompts_drawn": num_drawn,
            "passes": num_drawn / num_prompts,
            "shuffled_passes_started": self._passes.num_started,
            "in_flight": self._num_in_flight,
            "never_visited_share": np.count_nonzero(self._last_step < 0) / num_prompts,
            "stale_mixed_share": num_stale / max(1, np.count_nonzero(is_mixed)),
        }
        return prefixed(values)

    def state_dict(self) -> dict[str, Any]:
        """Returns a snapshot: nested dicts of numpy arrays and plain values.

        Prompts appear by their number, which is their place in the sorted `keys` (64-bit hashes of the ids).
        """
        flight, visited = np.flatnonzero(self._flight), np.flatnonzero(self._last_step >= 0)
        return {
            "schema": SCHEMA,
            "selector": self.name,
            "params": dict(self._params),
            "keys": self._index.keys.copy(),
            "rng": self._rng.bit_generator.state,
            "step": self._step,
            "num_drawn": self._num_drawn,
            "num_released": self._num_released,
            "passes": self._passes.state_dict(),
            "flight": {"numbers": flight.astype(np.int32), "origin": self._flight[flight]},
            "visits": {
                "numbers": visited.astype(np.int32),
                "step": self._last_step[visited],
                "class": self._last_class[visited],
            },
        }

    def load_state_dict(self, state: dict[str, Any]) -> RestoreReport:
        """Restores a snapshot: prompts are found by id, new ones start at the prior, vanished ones drop out.

        With the same prompts, in any order, the selector continues exactly as the saved one would. Parameters
        stay those of this selector; a warning names the ones that differ.

        Raises:
          ValueError: If the snapshot has another schema version or is of another selector.
        """
        if state.get("schema") != SCHEMA:
            raise ValueError(
                f"the saved selection state has schema {state.get('schema')!r}, this version reads schema "
                f"{SCHEMA}: resume with the version that wrote it, or start without the saved state"
            )
        if state["selector"] != self.name:
            raise ValueError(
                f"the saved state is of selector {state['selector']!r}, this run uses {self.name!r}"
            )
        changed = [key for key, value in self._params.items() if state["params"].get(key) != value]
        if changed:
            saved, present = (
                {key: params.get(key) for key in changed} for params in (state["params"], self._params)
            )
            warnings.warn(f"selection parameters differ: saved {saved}, now {present}", stacklevel=2)
        remap = self._index.remap(state["keys"])
        self._restore(state, remap)
        num_restored = len(self._index) - len(remap.new)
        return RestoreReport(num_restored, len(remap.new), len(state["keys"]) - num_restored)

    def _restore(self, state: dict[str, Any], remap: Remap) -> None:
        self._rng.bit_generator.state = state["rng"]
        self._step = state["step"]
        self._num_drawn, self._num_released = state["num_drawn"], state["num_released"]
        self._passes.load_state_dict(state["passes"], remap)
        self._flight[:], self._last_step[:], self._last_class[:] = FREE, -1, -1
        numbers, origin = remap.keep(state["flight"]["numbers"], state["flight"]["origin"])
        self._flight[numbers], self._num_in_flight = origin, len(numbers)
        numbers, step, last_class = remap.keep(
            *(state["visits"][key] for key in ("numbers", "step", "class"))
        )
        self._last_step[numbers], self._last_class[numbers] = step, last_class

    def _is_free(self, numbers: np.ndarray) -> np.ndarray:
        return self._flight[numbers] == FREE

    def _take_from_pass(self, n: int) -> list[int]:
        chosen = self._passes.take(n, self._is_free)
        self._launch(chosen, FROM_PASS)
        return chosen

    def _launch(self, numbers: list[int], origin: int) -> None:
        self._flight[numbers] = origin
        self._num_in_flight += len(numbers)

    def _land(self, numbers: np.ndarray) -> None:
        numbers = np.unique(numbers)
        self._num_in_flight -= np.count_nonzero(self._flight[numbers])
        self._flight[numbers] = FREE

    @abstractmethod
    def _pick(self, n: int) -> list[int]:
        """Chooses and launches `n` free prompts; at least `n` are free."""

    @abstractmethod
    def _absorb(self, numbers: np.ndarray, results: list[GroupEvidence]) -> None:
        """Takes observed outcomes, before their visit is recorded."""


def prefixed(values: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics under their full names."""
    return {METRIC_PREFIX + name: float(value) for name, value in values.items()}
