"""The Beta-binomial predictor: how probable is it that the full group will be mixed?

Closed forms only; standard library only. Notation: `k` rollouts in a full group, `n` seen, `s` of
them passes, Beta(alpha, beta) prior on the pass rate. Paper: arXiv 2607.26253, the section on the
effectiveness predictor.
"""

import math
from dataclasses import dataclass

from verl_sara.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class BetaPrior:
    """Beta prior on a prompt's pass rate.

    Attributes:
      alpha: Pseudo-count of passes, finite and > 0.
      beta: Pseudo-count of fails, finite and > 0.
    """

    alpha: float = 1.0
    beta: float = 1.0

    def __post_init__(self) -> None:
        for name, value in (("alpha", self.alpha), ("beta", self.beta)):
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not (math.isfinite(value) and value > 0):
                raise ConfigError(f"prior {name} is {value!r}; allowed: a finite number > 0")


UNIFORM = BetaPrior(1.0, 1.0)


def log_prob_all_fail(num_seen: int, group_size: int, prior: BetaPrior) -> float:
    """Returns log P(rollouts n+1..k all fail | the first n all failed).

    Summed as log1p so that it stays exact for very small alpha (history priors), where the
    gamma-function form loses all digits. 0 when n >= k.
    """
    total = prior.alpha + prior.beta
    return sum(math.log1p(-prior.alpha / (total + j)) for j in range(num_seen, group_size))


def log_prob_all_pass(num_seen: int, group_size: int, prior: BetaPrior) -> float:
    """Returns log P(rollouts n+1..k all pass | the first n all passed)."""
    return log_prob_all_fail(num_seen, group_size, BetaPrior(prior.beta, prior.alpha))


def prob_effective(num_rollouts: int, num_successes: int, *, group_size: int, prior: BetaPrior) -> float:
    """Returns p_eff, the predictive probability that the full group is effective (mixed).

    A prefix that already is mixed gives exactly 1, whatever n is. An all-equal prefix of length
    n >= 1 gives 1 - prod_{j=n}^{k-1} (b+j)/(a+b+j) with (a, b) = (alpha, beta) for all-fail and
    swapped for all-pass; for the uniform prior that is (k-n)/(k+1). With nothing seen both
    saturated outcomes are possible and both are subtracted.

    Args:
      num_rollouts: n >= 0. More than `group_size` is allowed (a full group stays what it is).
      num_successes: s, 0 <= s <= n.
      group_size: k >= 1.
      prior: Beta prior on the pass rate.

    Returns:
      A probability in [0, 1].

    Raises:
      ValueError: If the counts contradict each other or `group_size` < 1.
    """
    if group_size < 1:
        raise ValueError(f"group_size is {group_size}; allowed: >= 1")
    if num_rollouts < 0 or not 0 <= num_successes <= num_rollouts:
        raise ValueError(f"{num_successes} successes of {num_rollouts} rollouts; allowed: 0 <= s <= n")
    if 0 < num_successes < num_rollouts:
        return 1.0
    if num_rollouts == 0:
        all_fail = math.exp(log_prob_all_fail(0, group_size, prior))
        all_pass = math.exp(log_prob_all_pass(0, group_size, prior))
        return max(0.0, 1.0 - all_fail - all_pass) if group_size > 1 else 0.0
    tail = log_prob_all_pass if num_successes else log_prob_all_fail
    return max(0.0, -math.expm1(tail(num_rollouts, group_size, prior)))


def prob_keep(
    num_successes: int, *, group_size: int, fail_length: int, pass_length: int, recovered: float = 0.0
) -> float:
    """Returns P(the group was kept | its final composition is s passes of k).

    Given the composition, the launch order is exchangeable, so the probability of not having been
    abandoned does not depend on the pass rate: 1 - C(k-n0, s)/C(k, s) - C(k-n1, k-s)/C(k, k-s).
    Its inverse is the Horvitz-Thompson weight of the group.

    Args:
      num_successes: s, 0 <= s <= k.
      group_size: k.
      fail_length: n0, length at which an all-fail prefix is abandoned, 1 <= n0 <= k.
      pass_length: n1, the same for an all-pass prefix.
      recovered: eps in [0, 1], the share of the abandoned groups that are completed and kept after all:
        P(kept) = P + eps (1 - P).
    """
    k, s = group_size, num_successes
    all_fail = math.comb(k - fail_length, s) / math.comb(k, s)
    all_pass = math.comb(k - pass_length, k - s) / math.comb(k, k - s)
    keep = max(0.0, 1.0 - all_fail - all_pass)
    return keep + recovered * (1.0 - keep)


def expected_cost(*, group_size: int, fail_length: int, pass_length: int, prior: BetaPrior, completed: bool) -> float:
    """Returns the expected rollouts spent on one prompt drawn from the prior.

    Args:
      group_size: k.
      fail_length: n0. pass_length: n1.
      prior: Population of pass rates.
      completed: True for E[C], committed groups filled to k; False for E[T], the length of the
        prefix at which the group is decided.

    Both from E[gamma^n] = (alpha)_n / (alpha+beta)_n, rising factorials.
    """
    k = group_size
    fail = [math.exp(log_prob_all_fail(0, n, prior)) for n in range(k + 1)]
    passed = [math.exp(log_prob_all_pass(0, n, prior)) for n in range(k + 1)]
    if not completed:
        return 1.0 + sum(fail[1:fail_length]) + sum(passed[1:pass_length])
    kept = 1.0 - fail[fail_length] - passed[pass_length]
    return k * kept + fail_length * fail[fail_length] + pass_length * passed[pass_length]
