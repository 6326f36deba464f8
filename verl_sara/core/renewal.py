"""Stopping lengths that maximise effective groups per unit of cost, under a reliability cap.

Collecting B effective groups is a renewal process: its long-run yield is P(commit) / E[cost] a
prompt. For a price `lam` per unit of cost a prompt is worth P(commit) - lam E[cost]; the best
stopping lengths for lam equal to the best yield are the optimal ones (Dinkelbach). The running
yield serves as lam, which makes one iteration a training step; it approaches the best yield from
below, so where a fitted prior promises more, that is the price from the first fit on. Under Beta
priors the state of an undecided prompt is the length of its all-equal prefix, so the dynamic
programme is O(k) a side.
"""

import math
from dataclasses import dataclass, field
from typing import Any

from verl_sara.core.errors import ConfigError
from verl_sara.core.posterior import BetaPrior, prob_effective
from verl_sara.core.priors import FixedPrior, PriorSource, check_decay
from verl_sara.core.stopping import MIN_PREFIX, TIE, StopLengths

_SUMS = ("committed", "passes", "fails", "pass_tokens", "fail_tokens")


@dataclass(slots=True)
class RunningYield:
    """Committed groups per unit of cost over the last steps, and the cost of a pass and of a fail.

    Attributes:
      use_tokens: True prices tokens, False rollouts.
      decay: Factor of all sums per step, in (0, 1].
      committed: Decayed number of committed groups.
      passes: Decayed number of passes; `fails` likewise.
      pass_tokens: Decayed number of tokens of the passes; `fail_tokens` likewise.
    """

    use_tokens: bool = False
    decay: float = 0.8
    committed: float = 0.0
    passes: float = 0.0
    fails: float = 0.0
    pass_tokens: float = 0.0
    fail_tokens: float = 0.0
    _pending: list[float] = field(default_factory=lambda: [0.0] * len(_SUMS))

    def __post_init__(self) -> None:
        check_decay(self.decay)

    def observe(self, committed: bool, passes: int, fails: int, pass_tokens: int, fail_tokens: int) -> None:
        """Takes one group, whatever its fate; audits apart. Counts from the end of the step on."""
        news = (committed, passes, fails, pass_tokens, fail_tokens)
        self._pending = [old + new for old, new in zip(self._pending, news, strict=True)]

    def end_step(self) -> None:
        """Folds the step into the running sums."""
        for name, new in zip(_SUMS, self._pending, strict=True):
            setattr(self, name, self.decay * getattr(self, name) + new)
        self._pending = [0.0] * len(_SUMS)

    def costs(self) -> tuple[float, float]:
        """Returns the cost of a pass and of a fail: 1 and 1, or the mean tokens once both were seen."""
        if self.use_tokens and self.passes > 0 and self.fails > 0:
            return self.pass_tokens / self.passes, self.fail_tokens / self.fails
        return 1.0, 1.0

    def rate(self, prior: BetaPrior, group_size: int) -> float:
        """Returns committed groups per unit of cost; that of full groups under `prior` at first."""
        cost_pass, cost_fail = self.costs()
        cost = self.passes * cost_pass + self.fails * cost_fail
        if self.committed > 0.0 and cost > 0.0:
            return self.committed / cost
        mean_cost = (prior.alpha * cost_pass + prior.beta * cost_fail) / (prior.alpha + prior.beta)
        return prob_effective(0, 0, group_size=group_size, prior=prior) / (group_size * mean_cost)

    def state_dict(self) -> dict[str, float]:
        """Returns the sums between two steps."""
        return {name: getattr(self, name) for name in _SUMS}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the sums exactly; a missing or unknown name raises KeyError."""
        if set(state) != set(_SUMS):
            raise KeyError(f"yield state has {sorted(state)}; allowed: {sorted(_SUMS)}")
        for name in _SUMS:
            setattr(self, name, state[name])


@dataclass(slots=True)
class RenewalOptimal:
    """Abandons where going on is worth less than its cost, if p_eff < tau_low allows it.

    The reliability bound of the threshold rule holds, since this rule abandons on a subset of its
    states. Lengths differ between the all-fail and the all-pass side.

    Attributes:
      running_yield: The price of cost; what it observes is the host's to report.
      tau_low: Reliability cap, in [0, 1]; 1 = none.
      min_fail_length: Shortest all-fail prefix to abandon, >= 2. At least 3 is advised with token
        costs, which otherwise drop hard prompts after two fails.
      fill: Whether committed groups are completed to k.
      priors: Source of the population's fit, whose best yield is the least price.
    """

    running_yield: RunningYield
    tau_low: float = 0.3
    min_fail_length: int = MIN_PREFIX
    fill: bool = True
    priors: PriorSource = field(default_factory=FixedPrior)
    _best: tuple[Any, float] = field(default=(None, 0.0), repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau_low <= 1.0:
            raise ConfigError(f"tau_low is {self.tau_low!r}; allowed: a number in [0, 1]")
        if self.min_fail_length < MIN_PREFIX:
            raise ConfigError(f"min_fail_length is {self.min_fail_length!r}; allowed: >= {MIN_PREFIX}")

    def lengths(self, prior: BetaPrior, group_size: int) -> StopLengths:
        """Returns the first lengths at which stopping is optimal and allowed, else k."""
        costs, lam = self.running_yield.costs(), self.price(prior, group_size)
        fail, passed = self._sides(prior, group_size, lam, costs)
        return StopLengths(fail[1], passed[1])

    def root_value(self, prior: BetaPrior, group_size: int) -> float:
        """Returns the worth of starting a prompt, in groups; below 0 its rollouts pay less than others'."""
        return self._root_value(prior, group_size, self.price(prior, group_size), self.running_yield.costs())

    def price(self, prior: BetaPrior, group_size: int) -> float:
        """Returns lam, the worth of a unit of cost: the running yield, or the best one under the fit if greater."""
        running, fit, costs = self.running_yield.rate(prior, group_size), self.priors.fit, self.running_yield.costs()
        if fit is None:
            return running
        key = (fit, group_size, costs)
        if self._best[0] != key:
            self._best = key, self._best_yield(*key)
        return max(running, self._best[1])

    def _best_yield(self, prior: BetaPrior, group_size: int, costs: tuple[float, float]) -> float:
        """Returns the greatest yield of any lengths: the price at which a prompt is worth nothing, by bisection."""
        low, high = 0.0, 1.0 / min(costs)
        while high - low > 1e-9 * high:
            middle = 0.5 * (low + high)
            if self._root_value(prior, group_size, middle, costs) > 0.0:
                low = middle
            else:
                high = middle
        return low

    def _root_value(self, prior: BetaPrior, group_size: int, lam: float, costs: tuple[float, float]) -> float:
        (after_fail, _), (after_pass, _) = self._sides(prior, group_size, lam, costs)
        mean = prior.alpha / (prior.alpha + prior.beta)
        return mean * (after_pass - lam * costs[0]) + (1.0 - mean) * (after_fail - lam * costs[1])

    def _sides(
        self, prior: BetaPrior, group_size: int, lam: float, costs: tuple[float, float]
    ) -> tuple[tuple[float, int], tuple[float, int]]:
        """Solves both sides: worth after a first fail and n0, worth after a first pass and n1."""
        swapped = BetaPrior(prior.beta, prior.alpha)
        return (
            self._side(prior, group_size, lam, costs, self.min_fail_length),
            self._side(swapped, group_size, lam, costs[::-1], MIN_PREFIX),
        )

    def _side(
        self, prior: BetaPrior, group_size: int, lam: float, costs: tuple[float, float], shortest: int
    ) -> tuple[float, int]:
        """Solves the all-fail side; swap prior and costs for the other.

        Returns the worth of a prompt after its first rollout and the length at which it is abandoned.
        """
        a, b, (cost_pass, cost_fail) = prior.alpha, prior.beta, costs
        worth, length, log_all_fail = 0.0, group_size, 0.0
        for n in range(group_size - 1, 0, -1):
            total = a + b + n
            mean = a / total
            after = (a + 1.0) / (total + 1.0)
            rest = group_size - n - 1 if self.fill else 0
            mixed = 1.0 - lam * rest * (after * cost_pass + (1.0 - after) * cost_fail)
            step_cost = lam * (mean * cost_pass + (1.0 - mean) * cost_fail)
            going_on = mean * mixed + (1.0 - mean) * worth - step_cost
            is_stop = n >= shortest and going_on <= 0.0
            worth = 0.0 if is_stop else going_on
            log_all_fail += math.log1p(-mean)
            if is_stop and -math.expm1(log_all_fail) < self.tau_low - TIE:
                length = n
        return worth, length


@dataclass(slots=True)
class GuardedThreshold:
    """The two-threshold rule with the yield guard: abandons only if also p_eff(n) <= lam (k - n).

    With completed groups the threshold rule alone loses yield wherever q > pbar (1 - n*/k), as under
    its own uniform prior. With lam at most the yield of full groups the guard restores yield
    dominance (arXiv 2607.26253, yield dominance).

    Attributes:
      tau_low: In [0, 1].
      running_yield: Gives lam, in rollouts.
    """

    tau_low: float
    running_yield: RunningYield

    def __post_init__(self) -> None:
        if not 0.0 <= self.tau_low <= 1.0:
            raise ConfigError(f"tau_low is {self.tau_low!r}; allowed: a number in [0, 1]")

    def lengths(self, prior: BetaPrior, group_size: int) -> StopLengths:
        """Returns the first n >= 2 on each side that threshold and guard allow, else k."""
        lam = self.running_yield.rate(prior, group_size)
        swapped = BetaPrior(prior.beta, prior.alpha)
        return StopLengths(self._first(prior, group_size, lam), self._first(swapped, group_size, lam))

    def _first(self, prior: BetaPrior, group_size: int, lam: float) -> int:
        for n in range(MIN_PREFIX, group_size):
            p_eff = prob_effective(n, 0, group_size=group_size, prior=prior)
            if p_eff < self.tau_low - TIE and p_eff <= lam * (group_size - n):
                return n
        return group_size
