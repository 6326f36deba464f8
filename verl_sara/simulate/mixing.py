"""The distribution of pass rates behind observed groups, without assuming its shape."""

from dataclasses import dataclass

import numpy as np

from verl_sara.simulate.populations import Population

GRID = 1.0 / (1.0 + np.exp(-np.linspace(-10.0, 10.0, 81)))
"""Pass rates on which the distribution is estimated, evenly spaced in logits."""


@dataclass(frozen=True)
class Discrete(Population):
    """A population on finitely many pass rates.

    Attributes:
      weights: Share of prompts at each rate, [R].
      rates: Pass rates, [R].
    """

    weights: np.ndarray
    rates: np.ndarray

    def runs(self, longest: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns P(the first n rollouts all fail) and P(they all pass), n = 0..longest."""
        n = np.arange(longest + 1)
        return self.weights @ (1.0 - self.rates)[:, None] ** n, self.weights @ self.rates[:, None] ** n

    def posterior(self, passes: np.ndarray, fails: np.ndarray) -> np.ndarray:
        """Returns P(rate | passes and fails of a prompt), [N, R]."""
        joint = self.weights * likelihood(passes, fails, self.rates)
        return joint / joint.sum(axis=1, keepdims=True)


def likelihood(passes: np.ndarray, fails: np.ndarray, rates: np.ndarray) -> np.ndarray:
    """Returns rate^passes (1 - rate)^fails, [N, R]; what stopped a prompt drops out of it."""
    return np.exp(np.outer(passes, np.log(rates)) + np.outer(fails, np.log1p(-rates)))


def fit_mixing(passes: np.ndarray, fails: np.ndarray, counts: np.ndarray, *, num_iterations: int = 400) -> Discrete:
    """Returns the distribution of greatest likelihood on the grid, by expectation maximisation.

    Args:
      passes: Passes of each kind of group, [N].
      fails: Fails of each kind of group, [N].
      counts: How often it was seen, [N].
      num_iterations: Iterations, from the uniform distribution.
    """
    matrix = likelihood(passes, fails, GRID)
    weights, total = np.full(len(GRID), 1.0 / len(GRID)), counts.sum()
    for _ in range(num_iterations):
        weights = weights * ((counts / (matrix @ weights)) @ matrix) / total
    return Discrete(weights, GRID)
