"""Beliefs of Dynamics-Predictive Sampling (arXiv 2603.10887): one 3-state HMM per prompt, vectorised.

Only prompts whose belief differs from that of a never-seen one have a slot. Slot 0 stands for all the others:
unobserved beliefs evolve alike, so one copy is exact for all of them.
"""

from __future__ import annotations

import numpy as np

_BLOCK = 1 << 14
_SPARE = 0.25


class BeliefTable:
    """Posterior, prior and transition pseudo-counts of each slot, slots on the last axis.

    With transition matrix Phi = alpha / (column totals of alpha), a step is

        posterior = evidence where observed, else prior
        xi        = evidence x Phi x previous posterior, scaled to one count    (observed slots)
        alpha     = decay alpha + (1 - decay) alpha_0 + xi
        prior     = Phi posterior

    Args:
      alpha_0: Dirichlet prior, positive, [3, 3]; entry (i, j) counts transitions from class j to class i.
      pi: Class distribution before any observation, [3].
      decay: Weight lambda kept of the counts per step, in [0, 1].

    Attributes:
      numbers: Prompt number of each slot, -1 for slot 0, int32 [M].
      alpha: float32 [3, 3, M].
      posterior: Class distribution after the last step's evidence, float32 [3, M].
      prior: Class distribution predicted for the coming step, float32 [3, M].
    """

    def __init__(self, alpha_0: np.ndarray, pi: np.ndarray, decay: float) -> None:
        self._alpha_0 = alpha_0.astype(np.float32)[..., None]
        self._decay = np.float32(decay)
        self.load(
            np.array([-1]),
            np.array(self._alpha_0),
            np.array(pi, np.float32)[:, None],
            np.array(pi, np.float32)[:, None],
        )

    def load(self, numbers: np.ndarray, alpha: np.ndarray, posterior: np.ndarray, prior: np.ndarray) -> None:
        """Replaces all slots by copies of the given arrays; the first one must be slot 0."""
        self._buffers = (
            numbers.astype(np.int32),
            alpha.astype(np.float32),
            posterior.astype(np.float32),
            prior.astype(np.float32),
        )
        self._show(len(numbers))

    def _show(self, size: int) -> None:
        self.numbers, self.alpha, self.posterior, self.prior = (
            buffer[..., :size] for buffer in self._buffers
        )

    def __len__(self) -> int:
        return len(self.numbers)

    def add(self, numbers: np.ndarray) -> np.ndarray:
        """Gives prompts without a slot one that starts like slot 0; returns the slots, int64 [n]."""
        old, size = len(self), len(self) + len(numbers)
        if size > len(self._buffers[0]):
            capacity = size + int(_SPARE * size)
            self._buffers = tuple(_enlarged(buffer, old, capacity) for buffer in self._buffers)
        self._show(size)
        self.numbers[old:] = numbers
        for column in (self.alpha, self.posterior, self.prior):
            column[..., old:] = column[..., :1]
        return np.arange(old, size)

    def drop(self, is_dropped: np.ndarray) -> None:
        """Removes slots (bool [M], never slot 0); the others close up in order."""
        kept = np.flatnonzero(~is_dropped)
        for column in (self.numbers, self.alpha, self.posterior, self.prior):
            column[..., : len(kept)] = column[..., kept]
        self._show(len(kept))

    def advance(self, slots: np.ndarray, evidence: np.ndarray) -> None:
        """Moves every slot on by one step; `evidence` holds class weights of the observed slots, [3, n]."""
        observed = self.alpha[..., slots]
        xi = evidence[:, None] * (observed / observed.sum(0)) * self.posterior[:, slots]
        xi /= xi.sum((0, 1))
        self.posterior[:] = self.prior
        self.posterior[:, slots] = evidence
        self.alpha *= self._decay
        self.alpha += (1 - self._decay) * self._alpha_0
        self.alpha[..., slots] += xi.astype(np.float32)
        for start in range(0, len(self), _BLOCK):  # in cache-sized blocks
            alpha = self.alpha[..., start : start + _BLOCK]
            prior = (alpha * (self.posterior[:, start : start + _BLOCK] / alpha.sum(0))).sum(1)
            np.divide(prior, prior.sum(0), out=self.prior[:, start : start + _BLOCK])

    def entropy(self) -> np.ndarray:
        """Returns the entropy of each slot's prior in nats, [M]."""
        return -(self.prior * np.log(np.maximum(self.prior, 1e-30))).sum(0)


def _enlarged(buffer: np.ndarray, size: int, capacity: int) -> np.ndarray:
    larger = np.empty((*buffer.shape[:-1], capacity), buffer.dtype)
    larger[..., :size] = buffer[..., :size]
    return larger
