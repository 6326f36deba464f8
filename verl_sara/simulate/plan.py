"""What dynamic sampling, the paper's rule and the tuned one would cost on a user's own prompts.

The distribution of pass rates is estimated from the observed groups without assuming its shape. Two
kinds of numbers follow: exact ones per prompt (yield of any k and any stop lengths), and simulated
steps of the real core on a server, with the prompts' own rates and lengths. Both are repeated on
resampled groups, which gives the intervals.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_sara.core import UNIFORM, ConfigError, SaraThreshold, StopLengths
from verl_sara.simulate.arms import DS, PAPER, TUNED, policy
from verl_sara.simulate.baselines import Cost, whole_batches
from verl_sara.simulate.mixing import Discrete, fit_mixing
from verl_sara.simulate.observed import Observed
from verl_sara.simulate.populations import Pool
from verl_sara.simulate.server import Server
from verl_sara.simulate.table import Table
from verl_sara.simulate.training import Training

ARMS: Mapping[str, Mapping[str, Any]] = {"ds": DS, "paper": PAPER, "tuned": TUNED}
TAUS = tuple(round(0.05 * i, 2) for i in range(2, 19))
SIZES = (4, 8, 16, 32)
WORTH_DOUBLING = 1.25
"""Doubling k is suggested while it brings a quarter more information per rollout; the outcomes cannot tell
how much the gradients of different prompts differ, which is what speaks for more and smaller groups."""
NUM_RESAMPLES = 40
NEGLIGIBLE = 0.005
"""Gains below half a percent are no reason to choose a rule."""


@dataclass(frozen=True)
class PlanSettings:
    """What is planned.

    Attributes:
      group_size: k of the run to come.
      batch_size: B of the run to come.
      num_prompts: Prompts of the training set, None = those observed, or as many as a step needs.
      num_steps: Simulated steps.
      num_replicates: Simulations of resampled groups, at least 2.
      num_slots: Rollouts that the servers run at once.
      seed: Seed.
    """

    group_size: int
    batch_size: int
    num_prompts: int | None = None
    num_steps: int = 12
    num_replicates: int = 8
    num_slots: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("group_size", 2), ("batch_size", 1), ("num_steps", 1), ("num_slots", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} is {getattr(self, name)}; allowed: >= {least}")
        if not 2 <= self.num_replicates <= NUM_RESAMPLES:
            raise ConfigError(f"num_replicates is {self.num_replicates}; allowed: 2 to {NUM_RESAMPLES}")


class ObservedLengths:
    """Draws lengths from those observed with the same outcome on prompts of similar difficulty."""

    EDGES = (0.2, 0.8)

    def __init__(self, observed: Observed) -> None:
        bins: dict[tuple[bool, int], list[int]] = {}
        for group in observed.groups:
            difficulty = int(np.searchsorted(self.EDGES, sum(group.outcomes) / len(group.outcomes)))
            for passed, length in zip(group.outcomes, group.lengths, strict=True):
                bins.setdefault((passed, difficulty), []).append(max(1, length))
        every = [length for lengths in bins.values() for length in lengths]
        self._values = {}
        for passed in (False, True):
            same = [n for (outcome, _), lengths in bins.items() if outcome is passed for n in lengths] or every
            for difficulty in range(len(self.EDGES) + 1):
                found = bins.get((passed, difficulty), [])
                self._values[passed, difficulty] = np.array(found if len(found) >= 30 else same)

    def draw(self, rng: np.random.Generator, outcomes: np.ndarray, pass_rate: float | np.ndarray) -> np.ndarray:
        """Returns lengths for outcomes of any shape; pass rates are broadcast to it."""
        difficulty = np.broadcast_to(np.searchsorted(self.EDGES, pass_rate), outcomes.shape)
        lengths = np.empty(outcomes.shape, np.int64)
        for (passed, level), values in self._values.items():
            here = (outcomes == passed) & (difficulty == level)
            lengths[here] = rng.choice(values, int(here.sum()))
        return lengths


class Planner:
    """Holds the observed groups and their resamples.

    Args:
      observed: What was read.
      settings: What is planned.

    Raises:
      ConfigError: If every observed group is mixed, as in the dump of a run that filters, or none is, or the
        training set is too small for a step.
    """

    def __init__(self, observed: Observed, settings: PlanSettings) -> None:
        self.observed, self.settings = observed, settings
        self.passes = np.array([sum(group.outcomes) for group in observed.groups])
        self.fails = np.array([len(group.outcomes) for group in observed.groups]) - self.passes
        if np.all((self.passes > 0) & (self.fails > 0)):
            raise ConfigError(
                "every group is mixed: the rollouts of a run that filters saturated groups cannot tell how many "
                "prompts are saturated; needed: rollouts of an unfiltered run, a validation, or our own ledger"
            )
        if not np.any((self.passes > 0) & (self.fails > 0)):
            raise ConfigError("no group is mixed: these prompts give nothing to train on, whatever the rule")
        self.lengths = ObservedLengths(observed)
        self._rng = np.random.default_rng(settings.seed)
        self.population = self._fit(np.ones(len(self.passes)))
        self.resampled = [self._fit(weights) for weights in self._resamples()]
        self.num_prompts = self._num_prompts()

    def _num_prompts(self) -> int:
        s = self.settings
        needed = math.ceil(2 * s.batch_size / self.population.effective_share(s.group_size))
        if s.num_prompts is None:
            return max(needed, len({group.prompt_id for group in self.observed.groups}))
        if s.num_prompts < needed:
            raise ConfigError(f"num_prompts is {s.num_prompts}; allowed: >= {needed}, twice what a step visits")
        return s.num_prompts

    def _resamples(self) -> list[np.ndarray]:
        """Returns bootstrap weights of the groups; groups of one prompt stay together."""
        _, prompt = np.unique([group.prompt_id for group in self.observed.groups], return_inverse=True)
        num = int(prompt.max()) + 1
        draws = [self._rng.multinomial(num, np.full(num, 1 / num)) for _ in range(NUM_RESAMPLES)]
        return [draw[prompt].astype(float) for draw in draws]

    def _fit(self, weights: np.ndarray) -> Discrete:
        kinds, inverse = np.unique(np.stack([self.passes, self.fails]), axis=1, return_inverse=True)
        counts = np.bincount(inverse.ravel(), weights, kinds.shape[1])
        return fit_mixing(kinds[0], kinds[1], counts)

    def gain(self, lengths: StopLengths, group_size: int) -> tuple[float, float, float]:
        """Returns effective groups per rollout relative to full groups, with its 95 % interval."""

        def of(population: Discrete) -> float:
            full = population.yield_per_cost(group_size, StopLengths(group_size, group_size))
            return population.yield_per_cost(group_size, lengths) / full

        return interval(of(self.population), [of(population) for population in self.resampled])

    def simulate(self) -> dict[str, list[dict[str, float]]]:
        """Returns, for every arm, rollouts, tokens and time per effective group of each replicate."""
        results: dict[str, list[dict[str, float]]] = {}
        for replicate, population in enumerate(self.resampled[: self.settings.num_replicates]):
            pool = self._pool(population)
            for name, (cost, server) in self._run_arms(pool, self.settings.seed + replicate).items():
                numbers = {"rollouts": cost.rollouts, "tokens": cost.tokens, "time": server.time}
                results.setdefault(name, []).append({unit: n / cost.groups for unit, n in numbers.items()})
        return results

    def _pool(self, population: Discrete) -> Pool:
        """Returns prompts with rates drawn from what their own groups leave possible."""
        chosen = self._rng.integers(0, len(self.passes), self.num_prompts)
        cumulative = population.posterior(self.passes[chosen], self.fails[chosen]).cumsum(axis=1)
        which = (self._rng.random(len(chosen))[:, None] > cumulative).sum(axis=1)
        rates = population.rates[np.minimum(which, len(population.rates) - 1)]
        return Pool(np.log(rates / (1.0 - rates)))

    def _run_arms(self, pool: Pool, seed: int) -> dict[str, tuple[Cost, Server]]:
        s = self.settings
        common: dict[str, Any] = {"num_steps": s.num_steps, "lengths": self.lengths, "seed": seed}
        server = Server(s.num_slots)
        cost = whole_batches(pool, batch_size=s.batch_size, group_size=s.group_size, server=server, **common)
        runs = {"verl_ds": (cost, server)}
        for name, options in ARMS.items():
            server = Server(s.num_slots)
            arm = policy(options, group_size=s.group_size, batch_size=s.batch_size)
            runs[name] = Cost.of(Training(pool, arm, server=server, **common).run()), server
        return runs

    def sizes(self) -> list[int]:
        """Returns the group sizes to compare: extrapolated to twice the observed ones at most."""
        return [size for size in SIZES if size <= max(SIZES[0], 2 * self.observed.group_size)]

    def best_threshold(self, group_size: int) -> tuple[float | None, StopLengths]:
        """Returns the tau_low of greatest yield for the uniform prior, None if never to abandon, and its lengths."""
        never = StopLengths(group_size, group_size)
        best, best_tau, best_yield = never, None, self.population.yield_per_cost(group_size, never)
        for tau in TAUS:
            lengths = SaraThreshold(tau).lengths(UNIFORM, group_size)
            value = self.population.yield_per_cost(group_size, lengths)
            if value > best_yield * (1.0 + NEGLIGIBLE):
                best, best_tau, best_yield = lengths, tau, value
        return best_tau, best


def interval(value: float, replicates: Sequence[float]) -> tuple[float, float, float]:
    """Returns the value with a 95 % interval from its spread over the replicates."""
    half = 1.96 * float(np.std(replicates, ddof=1))
    return value, value - half, value + half


def information(population: Discrete, group_size: int, lengths: StopLengths) -> float:
    """Returns E[s (k - s) / k; kept] per rollout, the squared signal-to-noise that a rollout buys.

    A mixed group of s passes carries s (k - s) / k, whichever its prompt; counting effective groups would
    favour small groups, and this favours large ones, since what prompts differ in is left out.
    """
    k, rates = group_size, population.rates
    total = k * (k - 1) * rates * (1.0 - rates)
    # what abandoned groups would have carried: their prefix is all-equal, the rest is not
    for length, same in ((lengths.fail, 1.0 - rates), (lengths.passed, rates)):
        rest = k - length
        other = rest * (1.0 - same)
        second = other**2 + rest * (1.0 - same) * same
        total = total - same**length * (k * other - second)
    kept = float(population.weights @ total) / k
    commit = 1.0 - population.runs(k)[0][lengths.fail] - population.runs(k)[1][lengths.passed]
    return kept * population.yield_per_cost(k, lengths) / float(commit)


def options_table(planner: Planner) -> Table:
    """Which k, tau_low and probe suit the prompts."""
    k = planner.settings.group_size
    table = Table(
        "Options, exact for one prompt at a time; gain = effective groups per rollout relative to full groups",
        ("k", "effective", "gain, tau 0.4", "best tau", "n*", "gain", "q", "best n0, n1", "gain", "information"),
        notes=[
            "q = P(full group mixed | abandoned) at the best tau. Information = E[s (k - s) / k] per rollout with the",
            f"best n0, n1, relative to full groups of {k}: effective groups alone favour small k. What is said of more",
            f"than {planner.observed.group_size} rollouts is extrapolated.",
        ],
    )
    base = information(planner.population, k, StopLengths(k, k))
    for size in sorted({*planner.sizes(), k}):
        tau, lengths = planner.best_threshold(size)
        best = planner.population.best_lengths(size)
        numbers = {
            "effective_share": planner.population.effective_share(size),
            "gain_paper": planner.gain(SaraThreshold(0.4).lengths(UNIFORM, size), size),
            "tau_low": tau,
            "n_star": lengths.fail,
            "gain_threshold": planner.gain(lengths, size),
            "q": planner.population.wrong_abandon_rate(size, lengths),
            "best_lengths": [best.fail, best.passed],
            "gain_best": planner.gain(best, size),
            "information": information(planner.population, size, best) / base,
        }
        table.numbers[str(size)] = numbers
        table.rows.append(
            (
                str(size),
                f"{numbers['effective_share']:.0%}",
                f"{numbers['gain_paper'][0]:.3f}",
                "never" if tau is None else f"{tau:g}",
                str(lengths.fail),
                f"{numbers['gain_threshold'][0]:.3f}",
                f"{numbers['q']:.2f}",
                f"{best.fail}, {best.passed}",
                f"{numbers['gain_best'][0]:.3f}",
                f"{numbers['information']:.2f}",
            )
        )
    return table


def costs_table(planner: Planner) -> Table:
    """What the arms cost per effective group, and what they save."""
    results = planner.simulate()
    s, unit = planner.settings, planner.observed.length_unit
    table = Table(
        f"Per effective group, simulated: k = {s.group_size}, B = {s.batch_size}, {planner.num_prompts} prompts, "
        f"{s.num_slots} slots",
        ("", "rollouts", "saved vs ds", "saved vs verl_ds", f"{unit or 'length'} saved", "wall-clock saved"),
        notes=[
            "verl_ds = whole batches of B prompts, as verl samples; ds = batches of the missing number of prompts.",
            "Lengths and wall-clock are against verl_ds. Pass rates stay as they are. Intervals: 95 %, from resamples.",
        ],
    )
    for name, runs in results.items():
        own = [run["rollouts"] for run in runs]
        numbers: dict[str, Any] = {"rollouts": interval(float(np.mean(own)), own)}
        for key, baseline, quantity in (
            ("rollouts_saved_vs_ds", "ds", "rollouts"),
            ("rollouts_saved_vs_verl_ds", "verl_ds", "rollouts"),
            ("tokens_saved", "verl_ds", "tokens"),
            ("time_saved", "verl_ds", "time"),
        ):
            saved = [1.0 - a[quantity] / b[quantity] for a, b in zip(runs, results[baseline], strict=True)]
            known = quantity == "rollouts" or bool(unit)
            numbers[key] = interval(float(np.mean(saved)), saved) if known else None
        table.numbers[name] = numbers
        cells = [f"{numbers['rollouts'][0]:.1f}"]
        cells += [percent(value) for key, value in numbers.items() if key != "rollouts"]
        table.rows.append((name, *cells))
    return table


def percent(value: tuple[float, float, float] | None) -> str:
    """Returns an estimate with its interval as text."""
    return "unknown" if value is None else f"{value[0]:.0%} [{value[1]:.0%}, {value[2]:.0%}]"


def recommendation(planner: Planner, options: Table) -> dict[str, Any]:
    """Returns the suggested k, and for the planned k the tau_low (None = never abandon) and the probe."""
    size, *larger = planner.sizes()
    for candidate in larger:
        if options.numbers[str(candidate)]["information"] < WORTH_DOUBLING * options.numbers[str(size)]["information"]:
            break
        size = candidate
    numbers = options.numbers[str(planner.settings.group_size)]
    # the longest probe that no stop length cuts short: it costs nothing and spares stages
    return {"group_size": size, "tau_low": numbers["tau_low"], "probe_size": min(numbers["best_lengths"])}


def verdict(planner: Planner, options: Table, costs: Table) -> tuple[str, list[str]]:
    """Returns "saves", "unclear" or "costs_more" for the paper's rule, and the sentences that say so."""
    k = planner.settings.group_size
    numbers, advice = options.numbers[str(k)], recommendation(planner, options)
    gain, low, high = numbers["gain_paper"]
    word = "saves" if low > 1.0 else "costs_more" if high < 1.0 else "unclear"
    ideal = "dynamic sampling that stops exactly at the B-th effective group"
    lines = {
        "saves": [f"The paper's rule pays on these prompts: of the rollouts of {ideal},", "it saves "],
        "costs_more": [f"SARA WOULD COST MORE on these prompts: than {ideal},", "the paper's rule needs "],
        "unclear": [f"No clear gain on these prompts: of the rollouts of {ideal},", "the paper's rule saves "],
    }[word]
    if word == "costs_more":
        lines[1] += percent((1.0 / gain - 1.0, 1.0 / high - 1.0, 1.0 / low - 1.0)) + " more."
    else:
        lines[1] += percent((1.0 - 1.0 / gain, 1.0 - 1.0 / low, 1.0 - 1.0 / high)) + "."
    best, (n0, n1) = numbers["gain_best"][0], numbers["best_lengths"]
    if best <= 1.0 + NEGLIGIBLE:
        lines.append("No stop length beats full groups: use +sara=ds, or +sara=uniform if few groups are saturated.")
    else:
        tau = "tau_low=0" if advice["tau_low"] is None else f"tau_low={advice['tau_low']:g}"
        lines += [
            f"Best for k = {k}: abandon after {n0} fails and after {n1} passes, x{best:.2f} groups per rollout;",
            f"+sara=tuned finds that by itself; with +sara=paper: {tau} probe_size={advice['probe_size']}.",
        ]
    lines.append(
        f"Suggested k: {advice['group_size']}; up to it, doubling brings a quarter more information per rollout."
    )
    tuned = costs.numbers["tuned"]["rollouts_saved_vs_ds"]
    if tuned[2] < 0.0:
        lines.append(f"Preset tuned would cost more than ds as well: it saves {percent(tuned)}.")
    return word, lines
