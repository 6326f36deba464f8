"""MoPPS (arXiv 2507.04632): Thompson sampling of each prompt's pass rate from a decayed Beta posterior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from verl_sara.selection.evidence import GroupEvidence
from verl_sara.selection.index import Remap
from verl_sara.selection.ranked import RankedSelector


class MoppsSelector(RankedSelector):
    """Prompts whose drawn pass rate is nearest to a target, or lies in an interval.

    On an observation of s successes in n rollouts

        alpha = decay alpha + (1 - decay) alpha_0 + s,    beta = decay beta + (1 - decay) beta_0 + n - s

    and nothing moves otherwise. An abandoned group contributes the counts of its prefix.

    Args:
      prompt_ids: One unique id per row, [P].
      seed: Seed of draws, ties and exploration.
      explore_fraction: Share of selections drawn uniformly, in [0, 1]. Not in the paper, which has none.
      stale_after: Steps without a visit after which a prompt last seen mixed counts as stale, at least 1.
      decay: Weight lambda kept of the counts per observation, in [0, 1]; the authors use 1.0 on MATH and 0.5
        on Countdown.
      prior: Beta prior (alpha_0, beta_0), both positive.
      target: Pass rate in [0, 1] to be near to. Read when `interval` is None.
      interval: Pass rates (low, high); prompts drawn inside rank equal, the others by their distance to it.
      num_candidates: Prompts, drawn afresh for each ranking, among which to choose; None for all of them. The
        authors use 16 (MATH) or 8 (Countdown) times the batch.

    Raises:
      ValueError: If a parameter is out of range.
    """

    name = "mopps"

    def __init__(  # noqa: PLR0913 (the parameters are the keys of the YAML file)
        self,
        prompt_ids: Sequence[str],
        *,
        seed: int = 0,
        explore_fraction: float = 0.1,
        stale_after: int = 50,
        decay: float = 1.0,
        prior: Sequence[float] = (1.0, 1.0),
        target: float = 0.5,
        interval: Sequence[float] | None = None,
        num_candidates: int | None = 65536,
    ) -> None:
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"decay is {decay}; it must lie in [0, 1]")
        if len(prior) != 2 or min(prior) <= 0:
            raise ValueError(f"prior is {prior}; it must be two positive numbers")
        self._low, self._high = (target, target) if interval is None else tuple(interval)
        if not 0.0 <= self._low <= self._high <= 1.0:
            raise ValueError(f"target {target} and interval {interval} must lie in [0, 1], low before high")
        if num_candidates is not None and num_candidates < 1:
            raise ValueError(
                f"num_candidates is {num_candidates}; it must be at least 1, or null for all prompts"
            )
        super().__init__(
            prompt_ids,
            seed=seed,
            explore_fraction=explore_fraction,
            stale_after=stale_after,
            decay=decay,
            prior=list(prior),
            target=target,
            interval=None if interval is None else list(interval),
            num_candidates=num_candidates,
        )
        self._prior = np.array(prior, np.float32)
        self._counts = np.tile(self._prior[:, None], len(self._index))

    def posterior(self, prompt_ids: Sequence[str]) -> np.ndarray:
        """Returns the Beta parameters (alpha, beta) of each prompt, [n, 2]."""
        return self._counts[:, self._index.numbers(prompt_ids)].T

    def _candidates(self) -> np.ndarray | None:
        num_candidates, num_prompts = self._params["num_candidates"], len(self._index)
        if num_candidates is None or num_candidates >= num_prompts - self._num_in_flight:
            return None
        drawn = self._rng.choice(num_prompts, num_candidates + self._num_in_flight, replace=False)
        return drawn[self._is_free(drawn)][:num_candidates]

    def _scores(self, numbers: np.ndarray | None) -> np.ndarray:
        pass_rates = self._rng.beta(*(self._counts if numbers is None else self._counts[:, numbers]))
        outside = np.maximum(self._low - pass_rates, pass_rates - self._high)
        return -np.maximum(outside, 0.0).astype(np.float32)

    def _class_probs(self, numbers: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
        alpha, beta = self._counts[:, numbers, None].astype(float)
        order = np.arange(group_sizes.max())
        is_drawn = order < group_sizes[:, None]
        prob_fail = np.where(is_drawn, (beta + order) / (alpha + beta + order), 1.0).prod(axis=1)
        prob_pass = np.where(is_drawn, (alpha + order) / (alpha + beta + order), 1.0).prod(axis=1)
        prob_mixed = np.maximum(0.0, 1.0 - prob_fail - prob_pass)
        return np.stack([prob_fail, prob_mixed, prob_pass], axis=1)

    def _update(self, numbers: np.ndarray, results: list[GroupEvidence], weights: np.ndarray) -> None:
        decay, rest = self._params["decay"], (1 - self._params["decay"]) * self._prior
        for number, result in zip(numbers.tolist(), results, strict=True):
            seen = (result.num_successes, result.num_rollouts - result.num_successes)
            self._counts[:, number] = decay * self._counts[:, number] + rest + seen

    def state_dict(self) -> dict[str, Any]:
        visited = np.flatnonzero(self._last_step >= 0)
        return super().state_dict() | {"counts": self._counts[:, visited]}

    def _restore(self, state: dict[str, Any], remap: Remap) -> None:
        super()._restore(state, remap)
        numbers, counts = remap.keep(state["visits"]["numbers"], state["counts"])
        self._counts[:] = self._prior[:, None]
        self._counts[:, numbers] = counts
