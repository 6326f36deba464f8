"""Where a prompt's Beta prior comes from: fixed, fitted to the stream, or the prompt's own history.

A source is asked once a prompt, before its first rollout, and told afterwards what was seen.
Nothing that it is told changes its answers before `end_step`, so that all prompts of a step have
priors of the same age. Its state crosses steps and checkpoints, exactly.

The bound P(group would be mixed | abandoned) < tau_low (arXiv 2607.26253, abandonment reliability)
holds under the prior in use. It therefore is as good as the fit, and holds for the stream that the
fit has seen: a selector that prefers some prompts changes the population.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from verl_sara.core.errors import ConfigError
from verl_sara.core.posterior import UNIFORM, BetaPrior

LOWEST, HIGHEST = 0.02, 50.0
"""Range of a fitted alpha and beta."""


class PriorSource(Protocol):
    """Gives every prompt its prior and learns from its rollouts."""

    @property
    def fit(self) -> BetaPrior | None:
        """The prior of a prompt that was never seen, as fitted to the stream; None before any fit."""
        ...

    def prior_for(self, prompt_id: str) -> BetaPrior:
        """Returns the prior for the next group of a prompt."""
        ...

    def observe(
        self, prompt_id: str, num_rollouts: int, num_successes: int, prefix: tuple[int, int] | None = None
    ) -> None:
        """Takes the outcomes of one group, abandoned ones included, failed ones excluded.

        Args:
          prompt_id: Identity of the prompt across steps.
          num_rollouts: Rollouts with an outcome, audits included.
          num_successes: Passes among them.
          prefix: (rollouts, passes) of the launch-order prefix at the verdict; None = all of them.
        """
        ...

    def end_step(self) -> None:
        """Ends the step: from now on `prior_for` answers with what was observed."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Returns the state between two steps, of plain numbers, strings, lists and dicts."""
        ...

    def changes(self) -> dict[str, Any]:
        """Returns of the state what the last step changed, for `merge_changes`."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a state exactly; a state of another kind raises KeyError."""
        ...


@dataclass(frozen=True, slots=True)
class FixedPrior:
    """The same prior for every prompt, always: the paper's, Beta(1, 1) by default."""

    prior: BetaPrior = UNIFORM

    @property
    def fit(self) -> None:
        """None: nothing is fitted."""

    def prior_for(self, prompt_id: str) -> BetaPrior:
        """Returns the prior."""
        return self.prior

    def observe(
        self, prompt_id: str, num_rollouts: int, num_successes: int, prefix: tuple[int, int] | None = None
    ) -> None:
        """Does nothing."""

    def end_step(self) -> None:
        """Does nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Returns an empty state."""
        return {}

    def changes(self) -> dict[str, Any]:
        """Returns an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes an empty state."""
        _check_names(state, set())


@dataclass(slots=True)
class EmpiricalBayesPrior:
    """One prior for all prompts, the Beta that makes the prefixes seen so far most probable.

    The stopping rule drops out of the likelihood of a prefix, so abandoned prompts are valid data;
    leaving them out would bias the fit. A decayed histogram follows the policy.

    Attributes:
      group_size: k >= 1; prefixes are at most that long.
      decay: Factor of the histogram per step, in (0, 1].
      pull: Strength of the log-normal pull to Beta(1, 1), in prompts, >= 0.
      prior: The current fit.
      counts: Decayed number of prompts by prefix: entry n (k + 1) + s for s passes of n.
    """

    group_size: int
    decay: float = 0.9
    pull: float = 2.0
    prior: BetaPrior = UNIFORM
    counts: list[float] = field(default_factory=list)
    _pending: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_decay(self.decay)
        self.counts = self.counts or [0.0] * (self.group_size + 1) ** 2

    @property
    def fit(self) -> BetaPrior | None:
        """The current fit; None before the first prompt was seen."""
        return self.prior if any(self.counts) else None

    def prior_for(self, prompt_id: str) -> BetaPrior:
        """Returns the current fit, whatever the prompt."""
        return self.prior

    def observe(
        self, prompt_id: str, num_rollouts: int, num_successes: int, prefix: tuple[int, int] | None = None
    ) -> None:
        """Counts the prefix in the histogram at the end of the step."""
        n, s = prefix or (num_rollouts, num_successes)
        if not 0 <= s <= n <= self.group_size:
            raise ValueError(f"prefix of {n} with {s} passes; allowed: 0 <= s <= n <= {self.group_size}")
        self._pending.append(n * (self.group_size + 1) + s)

    def end_step(self) -> None:
        """Decays the histogram, adds the step's prefixes and fits again."""
        self.counts = [self.decay * count for count in self.counts]
        for entry in self._pending:
            self.counts[entry] += 1.0
        self._pending = []
        self.prior = fit_beta(self.counts, self.group_size, pull=self.pull, start=self.prior)

    def state_dict(self) -> dict[str, Any]:
        """Returns histogram and fit."""
        return {"counts": list(self.counts), "alpha": self.prior.alpha, "beta": self.prior.beta}

    def changes(self) -> dict[str, Any]:
        """Returns histogram and fit: every step changes both."""
        return self.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores histogram and fit."""
        _check_names(state, {"counts", "alpha", "beta"})
        if len(state["counts"]) != (self.group_size + 1) ** 2:
            raise ConfigError(f"the saved prior is not of group_size {self.group_size}")
        self.counts = list(state["counts"])
        self.prior = BetaPrior(state["alpha"], state["beta"])


@dataclass(slots=True)
class HistoryPrior:
    """A prior per prompt: the population's fit plus what the prompt itself showed, discounted.

    A prompt that is not seen drifts back to the fit, and so is probed in full again.

    Attributes:
      population: Fit for all prompts, the prior of a prompt that was never seen.
      decay: Factor of a prompt's counts per step, in (0, 1]. About 0.6 to 0.75 per pass over the
        prompts works best: 0.95 where a pass takes ten steps.
      step: Steps ended so far.
      tallies: Per prompt (passes, fails, step), the counts as of that step.
    """

    population: EmpiricalBayesPrior
    decay: float = 0.95
    step: int = 0
    tallies: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    _pending: list[tuple[str, int, int]] = field(default_factory=list)
    _changed: set[str] = field(default_factory=set, compare=False)

    def __post_init__(self) -> None:
        check_decay(self.decay)

    @property
    def fit(self) -> BetaPrior | None:
        """The population's fit."""
        return self.population.fit

    def prior_for(self, prompt_id: str) -> BetaPrior:
        """Returns the fit plus the prompt's discounted counts."""
        passes, fails = self._tally(prompt_id)
        fit = self.population.prior
        return BetaPrior(fit.alpha + passes, fit.beta + fails)

    def observe(
        self, prompt_id: str, num_rollouts: int, num_successes: int, prefix: tuple[int, int] | None = None
    ) -> None:
        """Adds all outcomes to the prompt's counts and the prefix to the fit, at the end of the step."""
        self.population.observe(prompt_id, num_rollouts, num_successes, prefix)
        self._pending.append((prompt_id, num_successes, num_rollouts - num_successes))

    def end_step(self) -> None:
        """Adds the step's counts and fits the population again."""
        self.population.end_step()
        self.step += 1
        for prompt_id, new_passes, new_fails in self._pending:
            passes, fails = self._tally(prompt_id)
            self.tallies[prompt_id] = (passes + new_passes, fails + new_fails, self.step)
        self._changed = {prompt_id for prompt_id, _, _ in self._pending}
        self._pending = []

    def state_dict(self) -> dict[str, Any]:
        """Returns the population's state and the tallies."""
        return self._state(self.tallies)

    def changes(self) -> dict[str, Any]:
        """Returns the population's state and the tallies of the last step's prompts."""
        return self._state(self._changed)

    def _state(self, prompt_ids: Iterable[str]) -> dict[str, Any]:
        tallies = {prompt_id: list(self.tallies[prompt_id]) for prompt_id in prompt_ids}
        return {"population": self.population.state_dict(), "step": self.step, "tallies": tallies}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores the population's state and the tallies."""
        _check_names(state, {"population", "step", "tallies"})
        self.population.load_state_dict(state["population"])
        self.step = state["step"]
        self.tallies = {prompt_id: (p, f, at) for prompt_id, (p, f, at) in state["tallies"].items()}

    def _tally(self, prompt_id: str) -> tuple[float, float]:
        passes, fails, at = self.tallies.get(prompt_id, (0.0, 0.0, self.step))
        factor = self.decay ** (self.step - at)
        return factor * passes, factor * fails


def merge_changes(state: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Returns a source's `state_dict` from an earlier one and the `changes` since, or another full state."""
    if "tallies" not in changes or "tallies" not in state:
        return changes
    return {**changes, "tallies": {**state["tallies"], **changes["tallies"]}}


def fit_beta(counts: list[float], group_size: int, *, pull: float = 2.0, start: BetaPrior = UNIFORM) -> BetaPrior:
    """Returns the Beta prior of greatest likelihood for a histogram of prefixes.

    Maximises sum over (n, s) of sum_{j<s} log(a+j) + sum_{j<n-s} log(b+j) - sum_{j<n} log(a+b+j),
    less pull/2 (log^2 a + log^2 b), by Newton's method on (log a, log b). The step is shortened as a
    whole, never by coordinate, and halved until the value rises.

    Args:
      counts: Weights of the prefixes, (k+1) x (k+1) in one list, entry n (k+1) + s.
      group_size: k.
      pull: Strength of the pull to (1, 1).
      start: Where to begin.
    """
    side = group_size + 1
    # Each term appears once for every prompt with more than j passes, fails or rollouts.
    passes, fails, rollouts = ([0.0] * group_size for _ in range(3))
    for entry, weight in enumerate(counts):
        n, s = divmod(entry, side)
        if weight > 0.0:
            for length, sums in ((s, passes), (n - s, fails), (n, rollouts)):
                for j in range(length):
                    sums[j] += weight

    def value(x: float, y: float) -> float:
        a, b = math.exp(x), math.exp(y)
        total = -0.5 * pull * (x * x + y * y)
        for j in range(group_size):
            total += passes[j] * math.log(a + j) + fails[j] * math.log(b + j)
            total -= rollouts[j] * math.log(a + b + j)
        return total

    x, y = math.log(start.alpha), math.log(start.beta)
    best = value(x, y)
    for _ in range(100):
        dx, dy = _newton_step(x, y, passes, fails, rollouts, pull)
        scale = 1.0 / max(1.0, abs(dx), abs(dy))
        while (candidate := value(x + scale * dx, y + scale * dy)) < best and scale > 1e-9:
            scale *= 0.5
        if candidate < best or max(abs(dx), abs(dy)) < 1e-10:
            break
        x, y, best = x + scale * dx, y + scale * dy, candidate
    return _within_range(math.exp(x), math.exp(y))


def _newton_step(
    x: float, y: float, passes: list[float], fails: list[float], rollouts: list[float], pull: float
) -> tuple[float, float]:
    """Returns the Newton step in (log a, log b), uphill also where the value is not concave."""
    a, b = math.exp(x), math.exp(y)
    ga = gb = haa = hbb = hab = 0.0
    for j, (p, f, n) in enumerate(zip(passes, fails, rollouts, strict=True)):
        both = 1.0 / (a + b + j)
        ga += p / (a + j) - n * both
        gb += f / (b + j) - n * both
        haa -= p / (a + j) ** 2
        hbb -= f / (b + j) ** 2
        hab += n * both * both
    gx, gy = a * ga - pull * x, b * gb - pull * y
    hxx, hyy = a * ga + a * a * (haa + hab) - pull, b * gb + b * b * (hbb + hab) - pull
    hxy = a * b * hab
    # |H|, the curvature with all signs turned: (H^2 + |det H| I) / sqrt(tr H^2 + 2 |det H|).
    det = abs(hxx * hyy - hxy * hxy)
    norm = math.sqrt(hxx * hxx + 2.0 * hxy * hxy + hyy * hyy + 2.0 * det)
    cxx, cyy = (hxx * hxx + hxy * hxy + det) / norm, (hyy * hyy + hxy * hxy + det) / norm
    cxy = hxy * (hxx + hyy) / norm
    cxx, cyy = cxx + 1e-9 * norm, cyy + 1e-9 * norm
    det = cxx * cyy - cxy * cxy
    return (cyy * gx - cxy * gy) / det, (cxx * gy - cxy * gx) / det


def _within_range(alpha: float, beta: float) -> BetaPrior:
    """Scales a too narrow prior down as a whole, which keeps its mean, and lifts what is too small."""
    shrink = min(1.0, HIGHEST / max(alpha, beta))
    return BetaPrior(*(min(HIGHEST, max(LOWEST, value * shrink)) for value in (alpha, beta)))


def check_decay(decay: float) -> None:
    """Raises ConfigError unless a decay is in (0, 1]."""
    if not 0.0 < decay <= 1.0:
        raise ConfigError(f"decay is {decay!r}; allowed: a number in (0, 1]")


def _check_names(state: dict[str, Any], allowed: set[str]) -> None:
    if set(state) != allowed:
        raise KeyError(f"prior state has {sorted(state)}; allowed: {sorted(allowed)}")
