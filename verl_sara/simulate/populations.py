"""Populations of prompts: Beta mixtures, exactly, and finite pools whose pass rates drift."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import NormalDist

import numpy as np

from verl_sara.core import BetaPrior, ConfigError, StopLengths


class Population(ABC):
    """Pass rates of infinitely many prompts, known through the probabilities of all-equal prefixes."""

    @abstractmethod
    def runs(self, longest: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns P(the first n rollouts all fail) and P(they all pass), n = 0..longest."""

    def effective_share(self, group_size: int) -> float:
        """Returns pbar, P(a full group is mixed)."""
        fail, passed = self.runs(group_size)
        return float(1.0 - fail[group_size] - passed[group_size])

    def wrong_abandon_rate(self, group_size: int, lengths: StopLengths) -> float:
        """Returns q, P(the full group would have been mixed | abandoned); 0 if nothing is abandoned."""
        fail, passed = self.runs(group_size)
        abandoned = fail[lengths.fail] + passed[lengths.passed]
        return float(1.0 - (fail[group_size] + passed[group_size]) / abandoned)

    def recall(self, group_size: int, lengths: StopLengths) -> float:
        """Returns P(committed | the full group would have been mixed)."""
        fail, passed = self.runs(group_size)
        return float((1.0 - fail[lengths.fail] - passed[lengths.passed]) / self.effective_share(group_size))

    def yield_per_cost(
        self,
        group_size: int,
        lengths: StopLengths,
        *,
        fill: bool = True,
        costs: tuple[float, float] = (1.0, 1.0),
    ) -> float:
        """Returns committed groups per unit of cost, P(commit) / E[cost].

        Args:
          group_size: k.
          lengths: n0 and n1.
          fill: Whether committed groups are completed to k.
          costs: Cost of a pass and of a fail.
        """
        n0, n1, (cost_pass, cost_fail) = lengths.fail, lengths.passed, costs
        fail, passed = self.runs(group_size + 1)
        first_pass = 1.0 - fail[1]
        if fill:
            # of all k rollouts, those after n0 equal fails or n1 equal passes are saved
            left0, left1 = group_size - n0, group_size - n1
            passes = group_size * first_pass - left0 * (fail[n0] - fail[n0 + 1]) - left1 * passed[n1 + 1]
            fails = group_size * fail[1] - left0 * fail[n0 + 1] - left1 * (passed[n1] - passed[n1 + 1])
        else:
            # a rollout is paid after every prefix that is all-equal and not yet abandoned
            passes = first_pass + fail[1] - fail[n0] + passed[2 : n1 + 1].sum()
            fails = fail[1] + fail[2 : n0 + 1].sum() + passed[1] - passed[n1]
        commit = 1.0 - fail[n0] - passed[n1]
        return float(commit / (passes * cost_pass + fails * cost_fail))

    def best_lengths(
        self, group_size: int, *, fill: bool = True, costs: tuple[float, float] = (1.0, 1.0)
    ) -> StopLengths:
        """Returns the lengths of greatest yield, by trying all of at least 2; the longest on a tie."""
        every = range(group_size, 1, -1)
        candidates = [StopLengths(n0, n1) for n0, n1 in product(every, repeat=2)]
        return max(
            candidates,
            key=lambda lengths: round(self.yield_per_cost(group_size, lengths, fill=fill, costs=costs), 12),
        )


@dataclass(frozen=True)
class BetaMixture(Population):
    """A population whose pass rates are a mixture of Beta distributions. Every number is exact.

    Attributes:
      components: (weight, alpha, beta), weights summing to 1.
    """

    components: tuple[tuple[float, float, float], ...]

    def __post_init__(self) -> None:
        for _, alpha, beta in self.components:
            BetaPrior(alpha, beta)
        total = sum(weight for weight, _, _ in self.components)
        if abs(total - 1.0) > 1e-9 or min(weight for weight, _, _ in self.components) < 0:
            raise ConfigError(f"mixture weights sum to {total}; allowed: weights >= 0 with sum 1")

    def runs(self, longest: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns P(the first n rollouts all fail) and P(they all pass), n = 0..longest."""
        j = np.arange(longest)
        fail, passed = np.zeros(longest + 1), np.zeros(longest + 1)
        for weight, alpha, beta in self.components:
            total = alpha + beta + j
            fail += weight * np.append(1.0, np.cumprod((beta + j) / total))
            passed += weight * np.append(1.0, np.cumprod((alpha + j) / total))
        return fail, passed

    def full_groups(self, group_size: int, num_prompts: float = 1e6) -> list[float]:
        """Returns the expected histogram of full groups, as `verl_sara.core.priors.fit_beta` takes it."""
        k = group_size
        counts = [0.0] * (k + 1) ** 2
        for weight, alpha, beta in self.components:
            share = 1.0  # P(s passes) of the Beta-binomial, by recurrence in s
            for j in range(k):
                share *= (beta + j) / (alpha + beta + j)
            for s in range(k + 1):
                counts[k * (k + 1) + s] += num_prompts * weight * share
                if s < k:
                    share *= (k - s) / (s + 1) * (alpha + s) / (beta + k - s - 1)
        return counts


@dataclass(frozen=True)
class Component:
    """One kind of prompt: share of the pool, mean and standard deviation of the logit of the pass rate."""

    share: float
    mean: float
    sd: float


@dataclass(frozen=True)
class PoolSpec:
    """A logit-normal mixture whose logits all drift upwards over training, as the policy learns.

    Attributes:
      components: Kinds of prompts, shares summing to 1.
      drift: Logits gained from the first step to the last; centred, so that half is gained midway.
    """

    components: tuple[Component, ...]
    drift: float

    def build(self, num_prompts: int) -> "Pool":
        """Returns a pool of `num_prompts` prompts, evenly spaced in each component's quantiles."""
        ends = np.cumsum([component.share for component in self.components])
        sizes = np.diff([0, *(round(num_prompts * end) for end in ends)])
        parts = []
        for component, size in zip(self.components, sizes, strict=True):
            normal = NormalDist(component.mean, component.sd)
            parts += [normal.inv_cdf((i + 0.5) / size) for i in range(size)]
        return Pool(np.array(parts), self.drift)


@dataclass(frozen=True)
class Pool:
    """A finite pool of prompts.

    Attributes:
      logits: Logit of each prompt's pass rate midway through training, [P].
      drift: Logits gained over training.
    """

    logits: np.ndarray
    drift: float = 0.0

    def pass_rates(self, progress: float) -> np.ndarray:
        """Returns the pass rates when a share `progress` of the training is done, [P] in (0, 1)."""
        return 1.0 / (1.0 + np.exp(-(self.logits + self.drift * (progress - 0.5))))


def _hard_easy_mid(hard: float, easy: float, mid: float) -> PoolSpec:
    parts = zip((hard, easy, mid), (-5.5, 5.5, 0.0), strict=True)
    return PoolSpec(tuple(Component(share, mean, 1.5) for share, mean in parts), drift=1.0)


POOLS = {
    "A": _hard_easy_mid(0.255, 0.255, 0.49),
    "B": _hard_easy_mid(0.328, 0.328, 0.344),
    "C": _hard_easy_mid(0.384, 0.384, 0.232),
    "H": _hard_easy_mid(0.50, 0.15, 0.35),
}
"""Pools with 44, 33, 25 and 34 % of the groups of 8 effective under uniform selection; H is hard-heavy.
B is the one on which the published savings (arXiv 2607.26253) come out."""


def effective_share(pass_rates: np.ndarray | Sequence[float], group_size: int) -> float:
    """Returns the mean probability that a full group is mixed."""
    rates = np.asarray(pass_rates)
    return float(np.mean(1.0 - rates**group_size - (1.0 - rates) ** group_size))
