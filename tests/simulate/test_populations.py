"""Populations against published figures, enumeration, and the renewal rule of the core."""

from itertools import product

import numpy as np
import pytest

from verl_sara.core import UNIFORM, BetaPrior, ConfigError, RenewalOptimal, RunningYield, SaraThreshold, StopLengths
from verl_sara.core.posterior import expected_cost
from verl_sara.core.priors import fit_beta
from verl_sara.simulate.guarantees import POPULATIONS
from verl_sara.simulate.populations import POOLS, BetaMixture, Component, PoolSpec, effective_share

HARD_EASY_MID = POPULATIONS["25 % hard, 35 % easy, 40 % mid"]
EASY_HEAVY = POPULATIONS["25 % hard, 50 % easy, 25 % mid"]
BELL = POPULATIONS["Beta(4, 4)"]


@pytest.mark.parametrize(
    ("name", "saturated", "figures"),
    [
        ("Beta(1, 1)", 0.22, [(0.222, 0.918), (0.333, 0.857), (0.444, 0.771)]),
        ("Beta(.35, .35)", 0.49, [(0.095, 0.898), (0.151, 0.828), (0.214, 0.736)]),
        ("25 % hard, 35 % easy, 40 % mid", 0.62, [(0.052, 0.912), (0.086, 0.849), (0.128, 0.762)]),
        ("25 % hard, 50 % easy, 25 % mid", 0.74, [(0.035, 0.899), (0.058, 0.830), (0.086, 0.740)]),
        ("Beta(4, 4)", 0.05, [(0.476, 0.951), (0.637, 0.905), (0.758, 0.830)]),
    ],
)
def test_wrong_abandons_and_recall_of_the_uniform_prior_rule(name, saturated, figures):
    population = POPULATIONS[name]
    assert 1 - population.effective_share(8) == pytest.approx(saturated, abs=0.0061)
    for tau, (q, recall) in zip((0.3, 0.4, 0.5), figures, strict=True):
        lengths = SaraThreshold(tau).lengths(UNIFORM, 8)
        assert population.wrong_abandon_rate(8, lengths) == pytest.approx(q, abs=6e-4)
        assert population.recall(8, lengths) == pytest.approx(recall, abs=6e-4)


GAINS = [
    # k, population, tau .3, tau .4, optimum, its lengths, fitted prior with tau .3, its lengths
    (8, "Beta(1, 1)", 0.989, 0.980, 1.000, (8, 8), 0.989, (6, 6)),
    (8, "Beta(.35, .35)", 1.039, 1.058, 1.072, (4, 4), 1.070, (3, 3)),
    (8, "Beta(.25, .6)", 1.049, 1.073, 1.181, (2, 8), 1.164, (2, 5)),
    (8, "25 % hard, 35 % easy, 40 % mid", 1.089, 1.137, 1.204, (3, 3), 1.191, (3, 2)),
    (8, "25 % hard, 50 % easy, 25 % mid", 1.110, 1.173, 1.307, (4, 2), 1.232, (2, 2)),
    (8, "Beta(4, 4)", 0.975, 0.956, 1.000, (8, 8), 0.989, (7, 7)),
    (16, "Beta(.35, .35)", 1.058, 1.070, 1.149, (4, 4), 1.126, (6, 6)),
    (16, "25 % hard, 35 % easy, 40 % mid", 1.131, 1.162, 1.404, (3, 3), 1.403, (4, 3)),
    (16, "25 % hard, 50 % easy, 25 % mid", 1.154, 1.193, 1.577, (4, 2), 1.575, (3, 2)),
    (32, "25 % hard, 35 % easy, 40 % mid", 1.105, 1.165, 1.519, (3, 3), 1.460, (7, 5)),
]


@pytest.mark.parametrize(("k", "name", "tau3", "tau4", "best", "best_lengths", "fitted3", "fitted_lengths"), GAINS)
def test_gains_of_the_rules(k, name, tau3, tau4, best, best_lengths, fitted3, fitted_lengths):
    population = POPULATIONS[name]

    def gain(lengths):
        return round(population.yield_per_cost(k, lengths) / population.yield_per_cost(k, StopLengths(k, k)), 3)

    assert gain(SaraThreshold(0.3).lengths(UNIFORM, k)) == tau3
    assert gain(SaraThreshold(0.4).lengths(UNIFORM, k)) == tau4
    assert population.best_lengths(k) == StopLengths(*best_lengths)
    assert gain(StopLengths(*best_lengths)) == best
    prior = fit_beta(population.full_groups(k), k)
    assert SaraThreshold(0.3).lengths(prior, k) == StopLengths(*fitted_lengths)
    assert gain(StopLengths(*fitted_lengths)) == fitted3


@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize("k", [8, 16, 32])
@pytest.mark.parametrize("name", POPULATIONS)
def test_the_renewal_rule_with_a_fitted_prior_is_nearly_optimal(name, k, fill):
    population = POPULATIONS[name]
    prior = fit_beta(population.full_groups(k), k)
    lam = population.yield_per_cost(k, StopLengths(k, k), fill=fill)
    for _ in range(30):
        rule = RenewalOptimal(RunningYield(committed=lam, passes=1.0), tau_low=1.0, fill=fill)
        lengths = rule.lengths(prior, k)
        lam = population.yield_per_cost(k, lengths, fill=fill)
    best = population.yield_per_cost(k, population.best_lengths(k, fill=fill), fill=fill)
    assert lam > 0.992 * best
    if name in ("Beta(1, 1)", "Beta(4, 4)") and fill:
        assert lengths == StopLengths(k, k)


@pytest.mark.parametrize(
    ("population", "fail_cost", "paper", "rollout_optimal", "token_optimal", "lengths"),
    [
        (HARD_EASY_MID, 2.5, 1.130, 1.190, 1.226, (2, 4)),
        (EASY_HEAVY, 2.5, 1.161, 1.159, 1.270, (2, 4)),
        (HARD_EASY_MID, 4.0, 1.127, 1.185, 1.283, (2, 6)),
        (EASY_HEAVY, 4.0, 1.155, 1.101, 1.322, (2, 5)),
    ],
)
def test_gains_per_token(population, fail_cost, paper, rollout_optimal, token_optimal, lengths):
    costs = (1.0, fail_cost)

    def gain(stops):
        full = population.yield_per_cost(8, StopLengths(8, 8), costs=costs)
        return round(population.yield_per_cost(8, stops, costs=costs) / full, 3)

    assert gain(StopLengths(5, 5)) == paper
    assert gain(population.best_lengths(8)) == rollout_optimal
    assert population.best_lengths(8, costs=costs) == StopLengths(*lengths)
    assert gain(StopLengths(*lengths)) == token_optimal


@pytest.mark.parametrize("fill", [True, False])
def test_yield_is_commits_over_the_expected_cost(fill):
    prior = BetaPrior(0.7, 2.0)
    population = BetaMixture(((1.0, prior.alpha, prior.beta),))
    fail, passed = population.runs(6)
    for n0, n1 in product(range(2, 7), repeat=2):
        cost = expected_cost(group_size=6, fail_length=n0, pass_length=n1, prior=prior, completed=fill)
        expected = (1 - fail[n0] - passed[n1]) / cost
        assert population.yield_per_cost(6, StopLengths(n0, n1), fill=fill) == pytest.approx(expected)


@pytest.mark.parametrize("fill", [True, False])
def test_yield_per_token_equals_enumeration(fill):
    population, k, n0, n1, costs = BetaMixture(((0.4, 0.5, 3.0), (0.6, 2.0, 0.7))), 5, 2, 4, (1.0, 3.0)
    commits = cost = 0.0
    for outcomes in product((0, 1), repeat=k):
        weight = 0.0
        for share, a, b in population.components:
            probability, passes, fails = share, a, b
            for passed in outcomes:
                probability *= (passes if passed else fails) / (passes + fails)
                passes, fails = passes + passed, fails + 1 - passed
            weight += probability
        n = next(
            n
            for n in range(1, k + 1)
            if 0 < sum(outcomes[:n]) < n or (n == n0 and not any(outcomes[:n])) or (n == n1 and all(outcomes[:n]))
        )
        is_mixed = 0 < sum(outcomes[:n]) < n
        paid = outcomes if fill and is_mixed else outcomes[:n]
        commits += weight * is_mixed
        cost += weight * sum(costs[0] if passed else costs[1] for passed in paid)
    got = population.yield_per_cost(k, StopLengths(n0, n1), fill=fill, costs=costs)
    assert got == pytest.approx(commits / cost)


def test_full_groups_are_the_beta_binomial():
    counts = BELL.full_groups(8, 1.0)
    assert sum(counts) == pytest.approx(1.0)
    assert counts[8 * 9] + counts[8 * 9 + 8] == pytest.approx(1 - BELL.effective_share(8))


def test_mixture_weights_must_sum_to_one():
    with pytest.raises(ConfigError, match=r"mixture weights sum to 0\.9"):
        BetaMixture(((0.5, 1.0, 1.0), (0.4, 2.0, 2.0)))


@pytest.mark.parametrize(("name", "share"), [("A", 0.44), ("B", 0.33), ("C", 0.25), ("H", 0.34)])
def test_effective_shares_of_the_pools(name, share):
    pool = POOLS[name].build(7500)
    mean = np.mean([effective_share(pool.pass_rates(t), 8) for t in np.linspace(0, 1, 11)])
    assert mean == pytest.approx(share, abs=0.01)


def test_a_pool_drifts_upwards_and_keeps_its_components():
    spec = PoolSpec((Component(0.25, -4.0, 1.0), Component(0.75, 3.0, 0.5)), drift=2.0)
    pool = spec.build(1000)
    assert len(pool.logits) == 1000
    assert np.mean(pool.logits[:250]) == pytest.approx(-4.0)
    assert np.std(pool.logits[250:]) == pytest.approx(0.5, abs=0.01)
    first, last = pool.pass_rates(0.0), pool.pass_rates(1.0)
    assert np.allclose(np.log(last / (1 - last)) - np.log(first / (1 - first)), 2.0)
