"""Plans on synthetic data whose truth is known: estimates, verdicts, advice."""

from itertools import product

import numpy as np
import pytest

from verl_sara.core import ConfigError, StopLengths
from verl_sara.simulate.mixing import Discrete, fit_mixing
from verl_sara.simulate.observed import Observed, ObservedGroup
from verl_sara.simulate.plan import (
    ObservedLengths,
    Planner,
    PlanSettings,
    costs_table,
    information,
    options_table,
    recommendation,
    verdict,
)
from verl_sara.simulate.populations import POOLS, BetaMixture

K = 8


def observe(rates, *, seed=0, k=K, stop=K):
    """Groups of k, all-equal prefixes cut at `stop`; fails are twice as long."""
    rng, groups = np.random.default_rng(seed), []
    for number, rate in enumerate(rates):
        outcomes = [bool(x) for x in rng.random(k) < rate]
        if len(set(outcomes[:stop])) == 1:
            outcomes = outcomes[:stop]
        groups.append(ObservedGroup(f"p{number}", outcomes, [100 if x else 200 for x in outcomes]))
    return Observed(groups, k, 32, "tokens", stop < k, [])


def plan(rates, **changes):
    settings = PlanSettings(K, 16, num_steps=2, num_replicates=2, num_slots=64)
    planner = Planner(observe(rates, **changes), settings)
    options, costs = options_table(planner), costs_table(planner)
    return planner, options, costs


BELL = np.random.default_rng(1).beta(4, 4, 1500)
POOL = np.random.default_rng(2).permutation(POOLS["B"].build(1500).pass_rates(0.5))


@pytest.mark.parametrize("stop", [3, 5, K])
@pytest.mark.parametrize("rates", [BELL, POOL])
def test_the_distribution_is_recovered_from_full_and_from_stopped_groups(rates, stop):
    observed = observe(rates, stop=stop)
    passes = np.array([sum(group.outcomes) for group in observed.groups])
    fails = np.array([len(group.outcomes) for group in observed.groups]) - passes
    fit = fit_mixing(passes, fails, np.ones(len(passes)))
    fail, passed = fit.runs(K)
    for n in range(1, K + 1):
        assert fail[n] == pytest.approx(np.mean((1 - rates) ** n), abs=0.03)
        assert passed[n] == pytest.approx(np.mean(rates**n), abs=0.03)
    assert fit.weights.sum() == pytest.approx(1.0)


def test_the_posterior_follows_the_counts():
    fit = Discrete(np.array([0.5, 0.5]), np.array([0.1, 0.9]))
    posterior = fit.posterior(np.array([0, 4]), np.array([4, 0]))
    assert posterior[0, 0] == pytest.approx(0.9**4 / (0.9**4 + 0.1**4))
    assert posterior[1, 1] == pytest.approx(posterior[0, 0])


def test_a_pool_on_which_stopping_pays():
    planner, options, costs = plan(POOL)
    word, sentences = verdict(planner, options, costs)
    assert word == "saves" and "pays on these prompts" in sentences[0]
    row = options.numbers["8"]
    gain, low, high = row["gain_paper"]
    assert low < 1.13 < high or gain == pytest.approx(1.13, abs=0.04)
    assert row["gain_best"][0] >= row["gain_threshold"][0] >= gain
    assert row["best_lengths"] == [3, 3] or min(row["best_lengths"]) in (2, 3, 4)
    assert set(costs.numbers) == {"verl_ds", "ds", "paper", "tuned"}
    assert costs.numbers["paper"]["rollouts"][0] < costs.numbers["ds"]["rollouts"][0]
    assert costs.numbers["tuned"]["rollouts_saved_vs_ds"][0] > 0.0


def test_a_pool_on_which_stopping_costs():
    planner, options, costs = plan(BELL)
    word, sentences = verdict(planner, options, costs)
    assert word == "costs_more"
    assert "SARA WOULD COST MORE" in sentences[0] and "more." in sentences[1]
    assert any("No stop length beats full groups" in sentence for sentence in sentences)
    assert options.numbers["8"]["tau_low"] is None
    assert options.numbers["8"]["gain_paper"][0] == pytest.approx(0.956, abs=0.01)
    assert recommendation(planner, options) == {"group_size": 4, "tau_low": None, "probe_size": K}


def test_few_groups_make_an_unclear_verdict():
    # on Beta(.75, .75) the rule neither gains nor loses 2 %
    planner, options, costs = plan(np.random.default_rng(3).beta(0.75, 0.75, 80))
    word, sentences = verdict(planner, options, costs)
    assert word == "unclear" and "No clear gain" in sentences[0]


def test_unknown_lengths_leave_time_and_tokens_open():
    observed = observe(POOL[:400])
    observed.length_unit = ""
    planner = Planner(observed, PlanSettings(K, 16, num_steps=1, num_replicates=2))
    numbers = costs_table(planner).numbers["paper"]
    assert numbers["tokens_saved"] is None and numbers["time_saved"] is None
    assert numbers["rollouts_saved_vs_ds"] is not None


@pytest.mark.parametrize("n0, n1", [(2, 2), (2, 4), (3, 2), (5, 5)])
def test_information_equals_enumeration(n0, n1):
    population = Discrete(np.array([0.3, 0.5, 0.2]), np.array([0.05, 0.4, 0.9]))
    k, kept, cost = 5, 0.0, 0.0
    for outcomes in product((0, 1), repeat=k):
        s = sum(outcomes)
        weight = float(population.weights @ (population.rates**s * (1 - population.rates) ** (k - s)))
        is_abandoned = not any(outcomes[:n0]) or all(outcomes[:n1])
        kept += 0.0 if is_abandoned else weight * s * (k - s) / k
        cost += weight * ((n1 if outcomes[0] else n0) if is_abandoned else k)
    assert information(population, k, StopLengths(n0, n1)) == pytest.approx(kept / cost)


def test_information_of_full_groups_grows_slowly_with_k():
    population = BetaMixture(((1.0, 4.0, 4.0),))
    grid = np.linspace(0.01, 0.99, 99)
    density = grid**3 * (1 - grid) ** 3
    discrete = Discrete(density / density.sum(), grid)
    spread = float(discrete.weights @ (grid * (1 - grid)))
    for k in (4, 8, 16):
        assert information(discrete, k, StopLengths(k, k)) == pytest.approx(spread * (k - 1) / k)
    assert population.effective_share(8) == pytest.approx(discrete.effective_share(8), abs=1e-3)


def test_lengths_are_drawn_from_the_same_outcome():
    lengths = ObservedLengths(observe(POOL[:300]))
    outcomes = np.array([[True, False], [False, True]])
    drawn = lengths.draw(np.random.default_rng(0), outcomes, np.array([[0.5], [0.99]]))
    assert drawn.tolist() == [[100, 200], [200, 100]]


def test_data_that_cannot_be_planned_on():
    settings = PlanSettings(K, 16)
    mixed = Observed([ObservedGroup("a", [True, False], [1, 1])], 2, None, "", False, [])
    with pytest.raises(ConfigError, match="every group is mixed"):
        Planner(mixed, settings)
    equal = Observed([ObservedGroup("a", [True, True], [1, 1])], 2, None, "", False, [])
    with pytest.raises(ConfigError, match="no group is mixed"):
        Planner(equal, settings)
    with pytest.raises(ConfigError, match=r"num_prompts is 10; allowed: >= \d+"):
        Planner(observe(POOL[:200]), PlanSettings(K, 16, num_prompts=10))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"group_size": 1}, "group_size is 1; allowed: >= 2"),
        ({"batch_size": 0}, "batch_size is 0; allowed: >= 1"),
        ({"num_steps": 0}, "num_steps is 0; allowed: >= 1"),
        ({"num_slots": 0}, "num_slots is 0; allowed: >= 1"),
        ({"num_replicates": 1}, "num_replicates is 1; allowed: 2 to 40"),
    ],
)
def test_settings_out_of_range(changes, message):
    with pytest.raises(ConfigError, match=message):
        PlanSettings(**({"group_size": 8, "batch_size": 4} | changes))
