"""Dynamics-Predictive Sampling (arXiv 2603.10887): prompts ranked by predicted probability of "mixed"."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from verl_sara.selection.base import prefixed
from verl_sara.selection.evidence import MIXED, GroupEvidence
from verl_sara.selection.hmm import BeliefTable
from verl_sara.selection.index import Remap
from verl_sara.selection.ranked import RankedSelector

_FADED = 1e-6
_BLOCK = 1 << 16


class DpsSelector(RankedSelector):
    """Top of the prior probability of "mixed" under one hidden Markov model per prompt (see `hmm`).

    Assumes that a prompt's class moves by a slowly changing Markov chain, one move per training step. A
    finished group reveals the class; an abandoned one supports mixed with its `prob_effective` and its
    saturated side with the rest (`soft`), or that side alone (`hard`). A belief within 1e-6 of a never-seen
    prompt's is forgotten.

    Args:
      prompt_ids: One unique id per row, [P].
      seed: Seed of ties and exploration.
      explore_fraction: Share of selections drawn uniformly, in [0, 1]. Not in the paper, which has none.
      stale_after: Steps without a visit after which a prompt last seen mixed counts as stale, at least 1.
      decay: Weight lambda kept of the transition counts per step, in [0, 1]; the authors use 0.7 on MATH and
        0.5 on Countdown and Geometry3k. With 1 nothing is forgotten and memory grows with the prompts
        visited.
      prior_alpha: Dirichlet prior alpha_0 of the transitions: one positive number or 3 x 3 of them, entry (i,
        j) for moves from class j to class i, classes in the order unsolved, mixed, solved.
      prior_pi: Class distribution before any observation, 3 positive numbers that sum to 1.
      abandoned_evidence: `soft` or `hard`.

    Raises:
      ValueError: If a parameter is out of range.
    """

    name = "dps"

    def __init__(
        self,
        prompt_ids: Sequence[str],
        *,
        seed: int = 0,
        explore_fraction: float = 0.1,
        stale_after: int = 50,
        decay: float = 0.7,
        prior_alpha: float | Sequence[Sequence[float]] = 1.0,
        prior_pi: Sequence[float] = (1 / 3, 1 / 3, 1 / 3),
        abandoned_evidence: Literal["soft", "hard"] = "soft",
    ) -> None:
        alpha_0 = np.array(prior_alpha, float) * np.ones((3, 3))
        pi = np.array(prior_pi, float)
        if not 0.0 <= decay <= 1.0:
            raise ValueError(f"decay is {decay}; it must lie in [0, 1]")
        if np.ndim(prior_alpha) not in (0, 2) or alpha_0.shape != (3, 3) or not (alpha_0 > 0).all():
            raise ValueError(f"prior_alpha is {prior_alpha}; it must be one positive number or 3 x 3 of them")
        if pi.shape != (3,) or not (pi > 0).all() or abs(pi.sum() - 1) > 1e-6:
            raise ValueError(f"prior_pi is {prior_pi}; it must be 3 positive numbers that sum to 1")
        if abandoned_evidence not in ("soft", "hard"):
            raise ValueError(f"abandoned_evidence is {abandoned_evidence!r}; allowed: soft, hard")
        super().__init__(
            prompt_ids,
            seed=seed,
            explore_fraction=explore_fraction,
            stale_after=stale_after,
            decay=decay,
            prior_alpha=alpha_0.tolist(),
            prior_pi=pi.tolist(),
            abandoned_evidence=abandoned_evidence,
        )
        self._is_hard = abandoned_evidence == "hard"
        self._fade_after = (
            1.0 if decay == 0 else math.inf if decay == 1 else math.log(_FADED * (1 - decay), decay)
        )
        self._beliefs = BeliefTable(alpha_0, pi, decay)
        self._slot_of = np.zeros(len(self._index), np.int32)
        self._pending: dict[int, tuple[float, ...]] = {}

    def prior(self, prompt_ids: Sequence[str]) -> np.ndarray:
        """Returns the class distribution predicted for the coming step, columns as `CLASSES`, [n, 3]."""
        return self._beliefs.prior[:, self._slot_of[self._index.numbers(prompt_ids)]].T

    def _scores(self, numbers: np.ndarray | None) -> np.ndarray:
        slots = self._slot_of if numbers is None else self._slot_of[numbers]
        scores = np.empty(len(slots), np.float32)
        for start in range(0, len(slots), _BLOCK):  # numpy widens the indices it is given
            part = slice(start, start + _BLOCK)
            scores[part] = self._beliefs.prior[MIXED][slots[part]]
        return scores

    def _class_probs(self, numbers: np.ndarray, group_sizes: np.ndarray) -> np.ndarray:
        return self._beliefs.prior[:, self._slot_of[numbers]].T.astype(float)

    def _update(self, numbers: np.ndarray, results: list[GroupEvidence], weights: np.ndarray) -> None:
        self._pending.update(zip(numbers.tolist(), map(tuple, weights.tolist()), strict=True))

    def end_step(self) -> None:
        numbers, evidence = self._pending_arrays()
        unseen = numbers[self._slot_of[numbers] == 0]
        self._slot_of[unseen] = self._beliefs.add(unseen)
        self._beliefs.advance(self._slot_of[numbers], evidence.T)
        self._pending.clear()
        self._forget()
        super().end_step()

    def _forget(self) -> None:
        table = self._beliefs
        is_faded = self._step - self._last_step[table.numbers] > self._fade_after
        is_faded[0] = False
        candidates = np.flatnonzero(is_faded)
        distance = np.abs(table.prior[:, candidates] - table.prior[:, :1]).max(axis=0)
        is_faded[candidates[distance > _FADED]] = False
        if is_faded.any():
            self._slot_of[table.numbers[is_faded]] = 0
            table.drop(is_faded)
            self._slot_of[table.numbers[1:]] = np.arange(1, len(table))

    def _pending_arrays(self) -> tuple[np.ndarray, np.ndarray]:
        evidence = np.array(list(self._pending.values()), float).reshape(-1, 3)
        return np.array(list(self._pending), np.int64), evidence

    def state_dict(self) -> dict[str, Any]:
        table, (numbers, evidence) = self._beliefs, self._pending_arrays()
        beliefs = {key: getattr(table, key).copy() for key in ("numbers", "alpha", "posterior", "prior")}
        return super().state_dict() | {
            "beliefs": beliefs,
            "pending": {"numbers": numbers, "evidence": evidence},
        }

    def _restore(self, state: dict[str, Any], remap: Remap) -> None:
        super()._restore(state, remap)
        beliefs, pending = state["beliefs"], state["pending"]
        columns = [beliefs[key] for key in ("alpha", "posterior", "prior")]
        numbers, *kept = remap.keep(beliefs["numbers"][1:], *(column[..., 1:] for column in columns))
        joined = [
            np.concatenate([old[..., :1], new], axis=-1) for old, new in zip(columns, kept, strict=True)
        ]
        self._beliefs.load(np.append(-1, numbers), *joined)
        self._slot_of[:] = 0
        self._slot_of[numbers] = np.arange(1, len(numbers) + 1)
        numbers, evidence = remap.keep(pending["numbers"], pending["evidence"].T)
        self._pending = dict(zip(numbers.tolist(), map(tuple, evidence.T.tolist()), strict=True))

    def metrics(self) -> dict[str, float]:
        entropy, prob_mixed = self._beliefs.entropy(), self._beliefs.prior[MIXED]
        num_prompts, num_active = len(self._index), len(self._beliefs) - 1
        values = {
            "belief_entropy": (entropy.sum() + (num_prompts - num_active - 1) * entropy[0]) / num_prompts,
            "belief_mixed_share": (prob_mixed.sum() + (num_prompts - num_active - 1) * prob_mixed[0])
            / num_prompts,
            "active_beliefs": num_active,
        }
        return super().metrics() | prefixed(values)
