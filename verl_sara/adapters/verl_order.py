"""The prompts in the order of verl's own sampler, each once per pass whatever a step leaves unused."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_sara.selection import GroupEvidence, PromptSelector
from verl_sara.selection.index import Remap
from verl_sara.selection.passes import ShuffledPasses


class SamplerPasses:
    """The permutations of a sampler, in prompt numbers, in place of a random generator.

    Args:
      sampler: Yields every row once per iteration.
      numbers: Prompt number of each row, int [P].
    """

    def __init__(self, sampler: Any, numbers: np.ndarray) -> None:
        self._sampler, self._numbers = sampler, numbers

    def shuffle(self, order: np.ndarray) -> None:
        """Fills `order`, [P], with the sampler's next pass."""
        order[:] = self._numbers[list(self._sampler)]

    @staticmethod
    def permutation(numbers: np.ndarray) -> np.ndarray:
        """Returns `numbers`: prompts that are new in a resumed run come last in the pass."""
        return numbers


class VerlOrder(PromptSelector):
    """Serves what a sampler like verl's yields, in its order. Learns nothing.

    verl's data loader draws from its sampler for every prompt that is fetched, started or not; this
    selector draws from a sampler of its own, equal to verl's, for those that are started. Prompts
    given back come first in the next step; one that is in flight when its turn comes waits for it.

    Args:
      prompt_ids: One unique id per row, [P].
      sampler: From verl's `create_rl_sampler`, not shared with a data loader.
    """

    name = "verl"

    def __init__(self, prompt_ids: Sequence[str], sampler: Any) -> None:
        super().__init__(prompt_ids, seed=0, stale_after=50)
        self._generator = getattr(sampler, "generator", None)
        source: Any = SamplerPasses(sampler, np.argsort(self._index.rows))
        self._passes = ShuffledPasses(len(prompt_ids), source)

    def select(self, n: int) -> np.ndarray:
        """Returns the rows of the next `n` prompts.

        When verl's own buffer wants more than are not in flight, all count as landed: like plain verl, a
        step then goes on with the next pass.
        """
        if n > len(self._index) - self._num_in_flight:
            self._land(np.arange(len(self._index)))
        return super().select(n)

    def release(self, prompt_ids: Sequence[str]) -> None:
        """Takes back prompts that were never started, those in flight among them."""
        numbers = self._index.numbers(prompt_ids)
        super().release([one for one, number in zip(prompt_ids, numbers, strict=True) if self._flight[number]])

    def state_dict(self) -> dict[str, Any]:
        """Returns the snapshot, the generator's state included."""
        generator = None if self._generator is None else self._generator.get_state().numpy()
        return {**super().state_dict(), "generator": generator}

    def _restore(self, state: dict[str, Any], remap: Remap) -> None:
        super()._restore(state, remap)
        if self._generator is not None and state["generator"] is not None:
            import torch

            self._generator.set_state(torch.from_numpy(state["generator"]))

    def _pick(self, n: int) -> list[int]:
        return self._take_from_pass(n)

    def _absorb(self, numbers: np.ndarray, results: list[GroupEvidence]) -> None:
        pass
