"""The paper's claims, checked numerically, with where each stops holding (arXiv 2607.26253).

Exact numbers come from Beta mixtures; beside them stands a Monte-Carlo run of the core's own groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import numpy as np

from verl_sara.core import (
    UNIFORM,
    BetaPrior,
    Group,
    GuardedThreshold,
    RunningYield,
    SaraThreshold,
    StopLengths,
    Verdict,
    prob_effective,
    stage_boundaries,
)
from verl_sara.core.priors import fit_beta
from verl_sara.simulate.gradient import gradient_link
from verl_sara.simulate.lengths import Lengths
from verl_sara.simulate.populations import POOLS, BetaMixture
from verl_sara.simulate.table import Table

HARD, EASY, MID = (0.3, 30.0), (30.0, 0.3), (1.5, 1.5)
POPULATIONS: Mapping[str, BetaMixture] = {
    "Beta(1, 1)": BetaMixture(((1.0, 1.0, 1.0),)),
    "Beta(.35, .35)": BetaMixture(((1.0, 0.35, 0.35),)),
    "Beta(.25, .6)": BetaMixture(((1.0, 0.25, 0.6),)),
    "25 % hard, 35 % easy, 40 % mid": BetaMixture(((0.25, *HARD), (0.35, *EASY), (0.40, *MID))),
    "25 % hard, 50 % easy, 25 % mid": BetaMixture(((0.25, *HARD), (0.50, *EASY), (0.25, *MID))),
    "Beta(4, 4)": BetaMixture(((1.0, 4.0, 4.0),)),
}
"""U-shaped, lopsided and mixed populations, and a bell, on which early stopping cannot pay."""

K, TAU = 8, 0.4


@dataclass
class Sampled:
    """A Monte-Carlo run of single groups through the core.

    Attributes:
      wrong: q, share of the abandoned groups whose full group is mixed.
      prefix_length: Mean rollouts until the verdict.
      filled_cost: Mean rollouts with committed groups completed to k.
    """

    wrong: float
    prefix_length: float
    filled_cost: float


def sample_groups(
    population: BetaMixture, lengths: StopLengths, *, group_size: int = K, num_prompts: int, seed: int
) -> Sampled:
    """Runs `num_prompts` groups, each a rollout at a time, and looks at what their full groups are."""
    rng = np.random.default_rng(seed)
    weights = [weight for weight, _, _ in population.components]
    which = rng.choice(len(weights), num_prompts, p=weights)
    shapes = np.array([shape for _, *shape in population.components])[which]
    outcomes = rng.random((num_prompts, group_size)) < rng.beta(shapes[:, 0], shapes[:, 1])[:, None]
    abandoned = wrong = verdict_length = cost = 0
    for row in outcomes.tolist():
        group = Group("", "", 0, group_size, UNIFORM, lengths, stage_boundaries(group_size, 1, 1))
        while count := group.next_grant():
            for slot in group.launch(count, 0):
                group.record(slot, row[slot], 0)
        verdict_length += group.verdict_length or 0
        cost += group.num_launched
        if group.verdict is Verdict.ABANDON:
            abandoned += 1
            wrong += any(row) and not all(row)
    return Sampled(wrong / max(1, abandoned), verdict_length / num_prompts, cost / num_prompts)


def reliability(*, num_prompts: int = 20_000, seed: int = 0) -> Table:
    """Claim 1: P(full group mixed | abandoned) < tau_low, under the prior that is used."""
    table = Table(
        f"1. Reliability, k = {K}: q = P(full group mixed | abandoned) must stay below tau_low = {TAU}",
        ("population", "prior", "n0, n1", "p_eff", "q exact", "q sampled", "holds"),
        notes=[
            "An identity under the prior in use: exact for Beta(1, 1), conservative for U shapes, violated by",
            "the bell. A fitted prior restores it, as far as one Beta can follow the population; an audit tests",
            "it without a model.",
        ],
    )
    for name, population in POPULATIONS.items():
        fitted = fit_beta(population.full_groups(K), K)
        for label, prior in (("uniform", UNIFORM), (f"fitted ({fitted.alpha:.2f}, {fitted.beta:.2f})", fitted)):
            lengths = SaraThreshold(TAU).lengths(prior, K)
            sampled = sample_groups(population, lengths, num_prompts=num_prompts, seed=seed).wrong
            q, p_eff = population.wrong_abandon_rate(K, lengths), largest_p_eff(lengths, prior)
            stops = f"{lengths.fail}, {lengths.passed}"
            row = (name, label, stops, f"{p_eff:.3f}", f"{q:.3f}", f"{sampled:.3f}", "yes" if q < TAU else "NO")
            table.rows.append(row)
            key = f"{name}, {label.split()[0]}"
            table.numbers[key] = {"p_eff": p_eff, "q": q, "q_sampled": sampled, "holds": q < TAU}
    return table


def largest_p_eff(lengths: StopLengths, prior: BetaPrior) -> float:
    """Returns the larger p_eff of the two sides where they are abandoned."""
    states = ((lengths.fail, 0), (lengths.passed, lengths.passed))
    return max(prob_effective(n, s, group_size=K, prior=prior) for n, s in states)


def order_of_arrival(*, num_prompts: int = 400_000, seed: int = 0) -> Table:
    """Claim 1, continued: why verdicts look at launch order, never at who finished first."""
    rng = np.random.default_rng(seed)
    logits = POOLS["B"].build(7500).logits
    rates = 1.0 / (1.0 + np.exp(-rng.choice(logits, num_prompts)))[:, None]
    outcomes = rng.random((num_prompts, K)) < rates
    finished = np.argsort(Lengths().draw(rng, outcomes, rates), axis=1)
    by_completion = np.take_along_axis(outcomes, finished, axis=1)
    is_mixed = outcomes.any(axis=1) & ~outcomes.all(axis=1)
    table = Table(
        f"1b. Order: q when all {K} rollouts are launched together and the verdict falls on n of them (pool B)",
        ("n", "order", "q all-fail", "q all-pass", "q"),
        notes=["Passes are shorter, so the first results over-represent them: deciding on those breaks the bound."],
    )
    for n, (order, seen) in product((3, 5), (("launch", outcomes), ("completion", by_completion))):
        prefix = seen[:, :n]
        fails, passes = ~prefix.any(axis=1), prefix.all(axis=1)
        q = {
            "all_fail": float(is_mixed[fails].mean()),
            "all_pass": float(is_mixed[passes].mean()),
            "both": float(is_mixed[fails | passes].mean()),
        }
        table.rows.append((str(n), order, *(f"{value:.3f}" for value in q.values())))
        table.numbers[f"{order}, n = {n}"] = q
    return table


def expected_rollouts(*, num_prompts: int = 20_000, seed: int = 0) -> Table:
    """Claim 2: the expected rollouts of a prompt, E[T] until the verdict and E[C] with groups filled."""
    tau = 0.3
    table = Table(
        f"2. Expected rollouts per prompt, uniform-prior rule with tau_low = {tau}",
        ("population", "k", "n*", "E[T]", "sampled", "saved", "E[C]", "sampled", "saved"),
        notes=[
            "Both stay below k. Only the prefix E[T] saves more with growing k; with completed groups and the",
            "uniform prior the saving E[C] shrinks with k on a uniform population.",
        ],
    )
    for name, k in product(("Beta(1, 1)", "25 % hard, 35 % easy, 40 % mid", "Beta(4, 4)"), (4, 8, 16, 32)):
        population, lengths = POPULATIONS[name], SaraThreshold(tau).lengths(UNIFORM, k)
        fail, passed = population.runs(k)
        n = lengths.fail
        prefix = 1.0 + fail[1:n].sum() + passed[1:n].sum()
        abandoned = fail[n] + passed[n]
        filled = k * (1.0 - abandoned) + n * abandoned
        got = sample_groups(population, lengths, group_size=k, num_prompts=num_prompts, seed=seed)
        cells = (f"{prefix:.2f}", f"{got.prefix_length:.2f}", f"{1 - prefix / k:.0%}")
        cells += (f"{filled:.2f}", f"{got.filled_cost:.2f}", f"{1 - filled / k:.0%}")
        table.rows.append((name, str(k), str(n), *cells))
        table.numbers[f"{name}, k = {k}"] = {
            "prefix": float(prefix),
            "prefix_sampled": got.prefix_length,
            "filled": float(filled),
            "filled_sampled": got.filled_cost,
        }
    return table


def yield_dominance() -> Table:
    """Claim 3: effective groups per rollout are no fewer than with full groups."""
    table = Table(
        f"3. Yield relative to full groups, k = {K}, uniform-prior rule with tau_low = {TAU} (n* = 5)",
        ("population", "prefix groups", "worst n0, n1", "filled groups", "q", "pbar (1 - n*/k)", "holds", "guarded"),
    )
    n = SaraThreshold(TAU).lengths(UNIFORM, K)
    for name, population in POPULATIONS.items():
        full = population.yield_per_cost(K, StopLengths(K, K))
        guard = GuardedThreshold(TAU, RunningYield(committed=full, passes=1.0))
        guarded = guard.lengths(fit_beta(population.full_groups(K), K), K)
        numbers = {
            "prefix": population.yield_per_cost(K, n, fill=False) / full,
            "prefix_worst": worst_prefix_yield(population, K),
            "filled": population.yield_per_cost(K, n) / full,
            "q": population.wrong_abandon_rate(K, n),
            "condition": population.effective_share(K) * (1.0 - n.fail / K),
            "guarded": population.yield_per_cost(K, guarded) / full,
        }
        holds = "yes" if numbers["filled"] >= 1.0 else "NO"
        cells = [f"{value:.3f}" for value in numbers.values()]
        table.rows.append((name, *cells[:5], holds, cells[5]))
        table.numbers[name] = numbers
    violations = condition_violations()
    table.numbers["condition_violations"] = violations
    table.notes = [
        "Prefix groups: never below 1, whatever the lengths (worst n0, n1 >= 2 in the third column).",
        "Filled groups: at least 1 exactly where q <= pbar (1 - n*/k); violations of that equivalence over all",
        f"populations, k in 4, 8, 16, 32 and n* in 2..k: {violations}. Guarded: with p_eff <= yield (k - n) under",
        "a fitted prior, and the yield of full groups.",
    ]
    return table


def worst_prefix_yield(population: BetaMixture, group_size: int) -> float:
    """Returns the least yield of prefix groups over all n0, n1 >= 2, relative to full groups."""
    every = [StopLengths(n0, n1) for n0, n1 in product(range(2, group_size + 1), repeat=2)]
    full = population.yield_per_cost(group_size, StopLengths(group_size, group_size))
    return min(population.yield_per_cost(group_size, lengths, fill=False) for lengths in every) / full


def condition_violations() -> int:
    """Counts where "yield of filled groups >= full groups" and "q <= pbar (1 - n*/k)" disagree."""
    violations = 0
    for population, k in product(POPULATIONS.values(), (4, 8, 16, 32)):
        full = population.yield_per_cost(k, StopLengths(k, k))
        for n in range(2, k):
            lengths = StopLengths(n, n)
            gain = population.yield_per_cost(k, lengths) / full - 1.0
            slack = population.effective_share(k) * (1.0 - n / k) - population.wrong_abandon_rate(k, lengths)
            violations += abs(gain) > 1e-9 and (gain > 0) != (slack > 0)
    return violations


def guarantees(*, seed: int = 0) -> dict[str, Table]:
    """Returns all claims by name."""
    return {
        "abandonment_reliability": reliability(seed=seed),
        "order_of_arrival": order_of_arrival(seed=seed),
        "expected_rollouts": expected_rollouts(seed=seed),
        "yield_dominance": yield_dominance(),
        "gradient_link": gradient_link(seed=seed),
    }
