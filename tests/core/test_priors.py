"""Prior sources: recovery of known populations, range, state, and when observations count."""

import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_sara.core.errors import ConfigError
from verl_sara.core.posterior import UNIFORM, BetaPrior, log_prob_all_fail, log_prob_all_pass
from verl_sara.core.priors import EmpiricalBayesPrior, FixedPrior, HistoryPrior, fit_beta

K = 8


def expected_histogram(prior, n0, n1, num_prompts=1e6):
    """The prefixes of a Beta population stopped at the first mixed one, at n0 fails or n1 passes."""
    counts = [0.0] * (K + 1) ** 2
    total = prior.alpha + prior.beta
    for log_run, opposite, longest, is_pass in (
        (log_prob_all_fail, prior.alpha, n0, False),
        (log_prob_all_pass, prior.beta, n1, True),
    ):
        for n in range(1, longest):
            turns = math.exp(log_run(0, n, prior)) * opposite / (total + n)
            counts[(n + 1) * (K + 1) + (n if is_pass else 1)] += num_prompts * turns
        counts[longest * (K + 1) + longest * is_pass] += num_prompts * math.exp(log_run(0, longest, prior))
    return counts


@pytest.mark.parametrize("prior", [BetaPrior(0.35, 0.35), BetaPrior(2.0, 5.0), UNIFORM, BetaPrior(4.0, 4.0)])
@pytest.mark.parametrize("n0, n1", [(2, 2), (3, 3), (5, 5), (2, 6), (K, K)])
def test_stopped_prefixes_recover_the_population(prior, n0, n1):
    fit = fit_beta(expected_histogram(prior, n0, n1), K)
    assert fit.alpha == pytest.approx(prior.alpha, rel=2e-3)
    assert fit.beta == pytest.approx(prior.beta, rel=2e-3)


@pytest.mark.parametrize("n0", [2, 3, 5])
def test_sampled_prefixes_recover_the_population(n0):
    rng, source = random.Random(7), EmpiricalBayesPrior(K)
    for _ in range(20_000):
        rate, n, s = rng.betavariate(0.35, 0.35), 0, 0
        while n < K and s in (0, n) and n < n0:
            s += rng.random() < rate
            n += 1
        source.observe("p", n, s)
    source.end_step()
    assert source.prior.alpha == pytest.approx(0.35, abs=0.015)
    assert source.prior.beta == pytest.approx(0.35, abs=0.015)


def test_leaving_out_the_abandoned_biases_the_fit():
    prior = BetaPrior(0.35, 0.35)
    counts = expected_histogram(prior, 3, 3)
    counts[3 * (K + 1)] = counts[3 * (K + 1) + 3] = 0.0
    assert fit_beta(counts, K).alpha > 2.0


HISTOGRAMS = st.dictionaries(
    st.integers(1, K).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
    st.floats(0.0, 1e4, allow_subnormal=False),
    max_size=12,
)


def penalised_likelihood(counts, alpha, beta):
    value = -(math.log(alpha) ** 2) - math.log(beta) ** 2
    for entry, weight in enumerate(counts):
        n, s = divmod(entry, K + 1)
        value += weight * math.fsum(
            [math.log(alpha + j) for j in range(s)]
            + [math.log(beta + j) for j in range(n - s)]
            + [-math.log(alpha + beta + j) for j in range(n)]
        )
    return value


@settings(max_examples=200, deadline=None)
@given(HISTOGRAMS, st.sampled_from([UNIFORM, BetaPrior(0.02, 50.0), BetaPrior(30.0, 0.05)]))
def test_the_fit_is_a_maximum_wherever_it_starts(histogram, start):
    counts = [0.0] * (K + 1) ** 2
    for (n, s), weight in histogram.items():
        counts[n * (K + 1) + s] = weight
    fit = fit_beta(counts, K, start=start)
    assert 0.02 <= fit.alpha <= 50.0 and 0.02 <= fit.beta <= 50.0
    if min(fit.alpha, fit.beta) > 0.021 and max(fit.alpha, fit.beta) < 49.9:
        here = penalised_likelihood(counts, fit.alpha, fit.beta)
        for da, db in ((1.05, 1), (1 / 1.05, 1), (1, 1.05), (1, 1 / 1.05), (1.05, 1.05), (1.05, 1 / 1.05)):
            there = penalised_likelihood(counts, fit.alpha * da, fit.beta * db)
            assert there <= here + 1e-9 * abs(here) + 1e-12


def test_a_narrow_population_keeps_its_mean_at_the_end_of_the_range():
    counts = [0.0] * (K + 1) ** 2
    counts[K * (K + 1) + 2] = 1e9  # every prompt passes 2 of 8
    fit = fit_beta(counts, K)
    assert fit.beta == 50.0
    assert fit.alpha / (fit.alpha + fit.beta) == pytest.approx(0.25, abs=0.005)


def test_nothing_seen_means_the_uniform_prior():
    source = EmpiricalBayesPrior(K)
    source.end_step()
    assert source.prior == UNIFORM
    # and one prompt moves it a little only
    source.observe("p", K, 0)
    source.end_step()
    assert 0.5 < source.prior.alpha < 1.0 < source.prior.beta < 1.5


def test_the_prefix_is_fitted_and_all_outcomes_make_the_history():
    source = HistoryPrior(EmpiricalBayesPrior(K), decay=0.5)
    source.observe("p", K, 3, (2, 1))
    source.end_step()
    assert source.population.counts[2 * (K + 1) + 1] == 1.0
    fit = source.population.prior
    assert source.prior_for("p") == BetaPrior(fit.alpha + 3, fit.beta + 5)
    assert source.prior_for("other") == fit
    source.end_step()
    fit = source.population.prior
    assert source.prior_for("p") == BetaPrior(fit.alpha + 1.5, fit.beta + 2.5)


def test_priors_do_not_change_within_a_step():
    source = HistoryPrior(EmpiricalBayesPrior(K))
    before = source.prior_for("p")
    source.observe("p", 4, 0)
    assert source.prior_for("p") == before
    source.end_step()
    assert source.prior_for("p") != before


def test_an_unseen_prompt_drifts_back_to_the_population():
    source = HistoryPrior(EmpiricalBayesPrior(K), decay=0.9)
    source.observe("p", K, K)
    for _ in range(200):
        source.end_step()
    fit = source.population.prior
    assert source.prior_for("p").alpha == pytest.approx(fit.alpha, abs=1e-8)


EVENTS = st.lists(
    st.one_of(
        st.none(),
        st.tuples(
            st.sampled_from("abc"),
            st.integers(1, K).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))),
        ),
    ),
    max_size=30,
)


@settings(max_examples=60, deadline=None)
@given(EVENTS, EVENTS)
def test_a_restored_source_goes_on_to_the_same_bits(before, after):
    def play(source, events):
        for event in events:
            if event is None:
                source.end_step()
            else:
                prompt_id, (n, s) = event
                source.observe(prompt_id, n, s)
        source.end_step()

    def make():
        return HistoryPrior(EmpiricalBayesPrior(K), decay=0.93)

    source, restored = make(), make()
    play(source, before)
    restored.load_state_dict(json.loads(json.dumps(source.state_dict())))
    assert restored == source
    play(source, after)
    play(restored, after)
    assert restored == source
    assert [restored.prior_for(p) for p in "abcd"] == [source.prior_for(p) for p in "abcd"]


def test_the_fixed_prior_never_changes():
    source = FixedPrior(BetaPrior(2.0, 3.0))
    source.observe("p", K, 0)
    source.end_step()
    assert source.prior_for("p") == BetaPrior(2.0, 3.0)
    source.load_state_dict(source.state_dict())


def test_wrong_states_and_values_are_refused():
    with pytest.raises(KeyError, match="allowed: "):
        FixedPrior().load_state_dict({"alpha": 1.0})
    with pytest.raises(KeyError, match=r"allowed: \['alpha', 'beta', 'counts'\]"):
        EmpiricalBayesPrior(K).load_state_dict({})
    with pytest.raises(ConfigError, match="not of group_size 8"):
        EmpiricalBayesPrior(K).load_state_dict(EmpiricalBayesPrior(4).state_dict())
    with pytest.raises(KeyError, match="population"):
        HistoryPrior(EmpiricalBayesPrior(K)).load_state_dict({"step": 0})
    with pytest.raises(ConfigError, match=r"decay is 0\.0; allowed"):
        EmpiricalBayesPrior(K, decay=0.0)
    with pytest.raises(ConfigError, match=r"decay is 1\.5; allowed"):
        HistoryPrior(EmpiricalBayesPrior(K), decay=1.5)
    with pytest.raises(ValueError, match="prefix of 9 with 0 passes"):
        EmpiricalBayesPrior(K).observe("p", 9, 0)
