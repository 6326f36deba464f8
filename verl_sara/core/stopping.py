"""When to give up on a prompt: rules that turn a prior into two prefix lengths.

For a fixed prior, p_eff falls strictly along an all-equal prefix, so any threshold rule is a
truncation: it abandons an all-fail prefix at a length n0 and an all-pass prefix at n1, and k means
never before the group is full. A rule is therefore a function from a prior to `StopLengths`; the
group machine knows lengths only.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from verl_sara.core.errors import ConfigError
from verl_sara.core.posterior import BetaPrior, prob_effective

MIN_PREFIX = 2
"""Shortest prefix that may be abandoned. One rollout is no evidence; at n = 1 a U-shaped prior
would abandon every prompt and collection would never end."""

TIE = 1e-12
"""Thresholds fall exactly on p_eff values (1/3 at k=8, n=5): only a value below tau by more than
this counts as below."""


@dataclass(frozen=True, slots=True)
class StopLengths:
    """Prefix lengths at which an all-fail / all-pass prefix is abandoned; `group_size` = never."""

    fail: int
    passed: int


class StoppingRule(Protocol):
    """Decides, once per prompt and before its first rollout, how long to wait for a mixed group."""

    def lengths(self, prior: BetaPrior, group_size: int) -> StopLengths:
        """Returns n0 and n1, both in [min(2, k), k]."""
        ...


@dataclass(frozen=True, slots=True)
class FullGroup:
    """Never abandons before the group is full: uniform collection and dynamic sampling."""

    def lengths(self, prior: BetaPrior, group_size: int) -> StopLengths:
        """Returns (k, k)."""
        return StopLengths(group_size, group_size)


@dataclass(frozen=True, slots=True)
class SaraThreshold:
    """The paper's two-threshold rule: abandon when p_eff < tau_low.

    Attributes:
      tau_low: In [0, 1]. The bound P(group would be mixed | abandoned) < tau_low holds under the
        prior in use (arXiv 2607.26253, abandonment reliability).
    """

    tau_low: float

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau_low <= 1.0:
            raise ConfigError(f"tau_low is {self.tau_low!r}; allowed: a number in [0, 1]")

    def lengths(self, prior: BetaPrior, group_size: int) -> StopLengths:
        """Returns the first n >= 2 on each side with p_eff(n) < tau_low, else k."""
        return _threshold_lengths(self.tau_low, prior, group_size)


@lru_cache(maxsize=4096)
def _threshold_lengths(tau_low: float, prior: BetaPrior, group_size: int) -> StopLengths:
    def first(passed: bool) -> int:
        for n in range(MIN_PREFIX, group_size):
            p_eff = prob_effective(n, n if passed else 0, group_size=group_size, prior=prior)
            if p_eff < tau_low - TIE:
                return n
        return group_size

    return StopLengths(fail=first(False), passed=first(True))


def stage_boundaries(group_size: int, probe_size: int, increment: int) -> tuple[int, ...]:
    """Returns the group lengths at which a verdict can fall: probe, probe + increment, ..., k."""
    inner = range(min(probe_size, group_size), group_size, increment)
    return (*inner, group_size)


def align_lengths(lengths: StopLengths, boundaries: tuple[int, ...]) -> StopLengths:
    """Returns the lengths rounded up to the next stage boundary."""

    def up(length: int) -> int:
        return next(b for b in boundaries if b >= length)

    return StopLengths(up(lengths.fail), up(lengths.passed))
