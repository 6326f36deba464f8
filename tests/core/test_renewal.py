"""Optimal stopping against brute force over all lengths; cap, floors, costs, guard and running yield."""

import math
from itertools import product

import pytest

from verl_sara.core.errors import ConfigError
from verl_sara.core.posterior import (
    UNIFORM,
    BetaPrior,
    expected_cost,
    log_prob_all_fail,
    log_prob_all_pass,
    prob_effective,
)
from verl_sara.core.priors import EmpiricalBayesPrior, FixedPrior, HistoryPrior
from verl_sara.core.renewal import GuardedThreshold, RenewalOptimal, RunningYield
from verl_sara.core.stopping import SaraThreshold, StopLengths

PRIORS = [UNIFORM, BetaPrior(0.35, 0.35), BetaPrior(0.25, 0.6), BetaPrior(4, 4), BetaPrior(0.1, 2)]


def priced_at(lam, **changes):
    """A running yield that answers lam."""
    return RunningYield(committed=lam, passes=0.5, fails=0.5, **changes)


def yield_of(prior, k, n0, n1, *, fill=True):
    lost = math.exp(log_prob_all_fail(0, n0, prior)) + math.exp(log_prob_all_pass(0, n1, prior))
    cost = expected_cost(group_size=k, fail_length=n0, pass_length=n1, prior=prior, completed=fill)
    return (1.0 - lost) / cost


def fit_to(prior, k):
    """A source that has fitted this prior."""
    return EmpiricalBayesPrior(k, prior=prior, counts=[1.0] * (k + 1) ** 2)


def dinkelbach(prior, k, **changes):
    """The lengths on which repeated steps settle."""
    lam = yield_of(prior, k, k, k, fill=changes.get("fill", True))
    for _ in range(50):
        lengths = RenewalOptimal(priced_at(lam), tau_low=1.0, **changes).lengths(prior, k)
        lam = yield_of(prior, k, lengths.fail, lengths.passed, fill=changes.get("fill", True))
    return lengths, lam


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("k", [2, 4, 8, 16])
@pytest.mark.parametrize("fill", [True, False])
def test_no_other_lengths_yield_more(prior, k, fill):
    _, best = dinkelbach(prior, k, fill=fill)
    everywhere = [yield_of(prior, k, n0, n1, fill=fill) for n0, n1 in product(range(2, k + 1), repeat=2)]
    assert best == pytest.approx(max(everywhere), rel=1e-12)


@pytest.mark.parametrize(
    "prior, k, ratio, lengths",
    [
        (UNIFORM, 8, 1.000, (8, 8)),
        (BetaPrior(0.35, 0.35), 8, 1.072, (4, 4)),
        (BetaPrior(0.25, 0.6), 8, 1.181, (2, 8)),
        (BetaPrior(4, 4), 8, 1.000, (8, 8)),
        (BetaPrior(0.35, 0.35), 16, 1.149, (4, 4)),
    ],
)
def test_optimal_lengths_and_gains(prior, k, ratio, lengths):
    best, lam = dinkelbach(prior, k)
    assert (best.fail, best.passed) == lengths
    assert round(lam / yield_of(prior, k, k, k), 3) == ratio


@pytest.mark.parametrize("prior", PRIORS)
def test_the_root_value_is_zero_at_the_best_yield_and_falls_with_the_price(prior):
    _, best = dinkelbach(prior, 8)
    assert RenewalOptimal(priced_at(best), tau_low=1.0).root_value(prior, 8) == pytest.approx(0.0, abs=1e-12)
    assert RenewalOptimal(priced_at(0.9 * best), tau_low=1.0).root_value(prior, 8) > 0
    assert RenewalOptimal(priced_at(1.1 * best), tau_low=1.0).root_value(prior, 8) < 0


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("k", [4, 8, 16])
def test_with_a_fit_the_first_price_is_the_best_yield_and_the_lengths_are_optimal_at_once(prior, k):
    lengths, best = dinkelbach(prior, k)
    fitted = RenewalOptimal(RunningYield(), tau_low=1.0, priors=fit_to(prior, k))
    assert fitted.price(prior, k) == pytest.approx(best, rel=1e-8)
    chosen = fitted.lengths(prior, k)
    assert yield_of(prior, k, chosen.fail, chosen.passed) == pytest.approx(best, rel=1e-8), (chosen, lengths)


def test_the_price_is_the_running_yield_where_it_is_greater_or_nothing_is_fitted():
    fit = fit_to(BetaPrior(0.35, 0.35), 8)
    best = RenewalOptimal(priced_at(1e-6), priors=fit).price(UNIFORM, 8)
    assert RenewalOptimal(priced_at(1.5 * best), priors=fit).price(UNIFORM, 8) == pytest.approx(1.5 * best)
    assert RenewalOptimal(priced_at(0.5 * best), priors=fit).price(UNIFORM, 8) == best
    for unfitted in (FixedPrior(BetaPrior(0.35, 0.35)), EmpiricalBayesPrior(8), HistoryPrior(EmpiricalBayesPrior(8))):
        assert unfitted.fit is None
        assert RenewalOptimal(priced_at(0.5 * best), priors=unfitted).price(UNIFORM, 8) == pytest.approx(0.5 * best)


def test_the_price_follows_the_fit():
    fit, prices = EmpiricalBayesPrior(8), []
    rule = RenewalOptimal(priced_at(1e-6), tau_low=1.0, priors=fit)
    for passes in (1, 4):
        for _ in range(20):
            fit.observe("p", 8, passes)
            fit.observe("q", 8, 0)
        fit.end_step()
        prices.append(rule.price(UNIFORM, 8))
        assert prices[-1] == pytest.approx(dinkelbach(fit.prior, 8)[1], rel=1e-8)
    assert prices[0] != prices[1]


def test_token_costs_divide_the_price():
    fit = fit_to(BetaPrior(0.35, 0.35), 8)
    in_rollouts = RenewalOptimal(priced_at(1e-6), priors=fit).price(UNIFORM, 8)
    tokens = {"committed": 1e-6, "passes": 0.5, "fails": 0.5, "pass_tokens": 10.0}
    alike = RenewalOptimal(RunningYield(True, fail_tokens=10.0, **tokens), priors=fit).price(UNIFORM, 8)
    assert alike == pytest.approx(in_rollouts / 20)
    dear = RenewalOptimal(RunningYield(True, fail_tokens=20.0, **tokens), priors=fit).price(UNIFORM, 8)
    assert alike / 2 < dear < alike


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("tau", [0.0, 0.2, 0.3, 0.5])
def test_the_cap_keeps_every_abandonment_below_tau(prior, tau):
    k = 16
    lengths = RenewalOptimal(priced_at(0.2), tau_low=tau).lengths(prior, k)
    threshold = SaraThreshold(tau).lengths(prior, k)
    assert lengths.fail >= threshold.fail and lengths.passed >= threshold.passed
    for n, s in ((lengths.fail, 0), (lengths.passed, lengths.passed)):
        assert n == k or prob_effective(n, s, group_size=k, prior=prior) < tau


def test_lengths_never_fall_below_two_or_the_floor():
    hopeless = BetaPrior(1e-9, 300.0)
    rule = RenewalOptimal(priced_at(0.5), tau_low=1.0)
    assert rule.lengths(hopeless, 8).fail == 2
    assert RenewalOptimal(priced_at(0.5), tau_low=1.0, min_fail_length=3).lengths(hopeless, 8).fail == 3
    assert rule.lengths(UNIFORM, 2) == StopLengths(2, 2)


def test_expensive_fails_shorten_the_fail_side():
    prior = BetaPrior(0.35, 0.35)
    dear = RunningYield(True, committed=0.1, passes=0.5, fails=0.5, pass_tokens=0.5, fail_tokens=2.0)
    assert dear.costs() == (1.0, 4.0)
    lengths = RenewalOptimal(dear, tau_low=1.0).lengths(prior, 8)
    assert lengths.fail < lengths.passed


def test_the_guard_restores_yield_dominance():
    for prior, k in product(PRIORS, (4, 8, 16)):
        full = yield_of(prior, k, k, k)
        for tau in (0.2, 0.4, 0.6):
            guarded = GuardedThreshold(tau, priced_at(full)).lengths(prior, k)
            assert yield_of(prior, k, guarded.fail, guarded.passed) >= full * (1 - 1e-12)
    # without it the rule loses under its own uniform prior: 0.980 of the full groups' yield
    plain = SaraThreshold(0.4).lengths(UNIFORM, 8)
    assert round(yield_of(UNIFORM, 8, plain.fail, plain.passed) / yield_of(UNIFORM, 8, 8, 8), 3) == 0.980
    assert GuardedThreshold(0.4, RunningYield()).lengths(UNIFORM, 8) == StopLengths(8, 8)


def test_the_guard_lets_a_saturated_pool_be_abandoned():
    prior = BetaPrior(0.1, 0.1)
    guarded = GuardedThreshold(0.4, priced_at(yield_of(prior, 8, 8, 8))).lengths(prior, 8)
    assert guarded == SaraThreshold(0.4).lengths(prior, 8) == StopLengths(2, 2)


def test_the_running_yield_starts_at_full_groups_and_follows_the_steps():
    meter = RunningYield(decay=0.5)
    assert meter.rate(UNIFORM, 8) == pytest.approx(7 / 9 / 8)
    meter.observe(True, 3, 5, 30, 100)
    meter.observe(False, 0, 4, 0, 80)
    assert meter.rate(UNIFORM, 8) == pytest.approx(7 / 9 / 8)  # counts from the end of the step on
    meter.end_step()
    assert meter.rate(UNIFORM, 8) == pytest.approx(1 / 12)
    meter.observe(True, 4, 4, 40, 80)
    meter.end_step()
    assert meter.rate(UNIFORM, 8) == pytest.approx(1.5 / (6 + 8))


def test_the_running_yield_prices_tokens():
    meter = RunningYield(use_tokens=True)
    assert meter.costs() == (1.0, 1.0)
    meter.observe(True, 2, 2, 10, 40)
    meter.end_step()
    assert meter.costs() == (5.0, 20.0)
    assert meter.rate(UNIFORM, 4) == pytest.approx(1 / 50)


def test_the_state_is_restored_exactly():
    meter, other = RunningYield(decay=0.7), RunningYield(decay=0.7)
    for i in range(5):
        meter.observe(i % 2 == 0, i, 8 - i, 10 * i, 31)
        meter.end_step()
    other.load_state_dict(meter.state_dict())
    assert other == meter
    with pytest.raises(KeyError, match="yield state has"):
        other.load_state_dict({"committed": 1.0})


def test_options_out_of_range():
    with pytest.raises(ConfigError, match=r"tau_low is 1.5; allowed"):
        RenewalOptimal(RunningYield(), tau_low=1.5)
    with pytest.raises(ConfigError, match=r"tau_low is -1; allowed"):
        GuardedThreshold(-1, RunningYield())
    with pytest.raises(ConfigError, match=r"min_fail_length is 1; allowed: >= 2"):
        RenewalOptimal(RunningYield(), min_fail_length=1)
    with pytest.raises(ConfigError, match=r"decay is 0; allowed"):
        RunningYield(decay=0)
