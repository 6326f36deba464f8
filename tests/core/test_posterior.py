"""The predictor against exact rational enumeration and the closed forms of the paper."""

import math
from fractions import Fraction
from itertools import product

import pytest

from verl_sara.core import UNIFORM, BetaPrior, ConfigError, expected_cost, prob_effective, prob_keep

PRIORS = [(1, 1), (Fraction(35, 100), Fraction(35, 100)), (4, 4), (2, 5), (Fraction(1, 4), Fraction(3, 5))]


def exact_probability(sequence, alpha, beta):
    """P(sequence) of exchangeable Beta-binomial rollouts, as a Fraction."""
    value, passes, fails = Fraction(1), Fraction(alpha), Fraction(beta)
    for passed in sequence:
        value *= (passes if passed else fails) / (passes + fails)
        passes, fails = passes + passed, fails + (not passed)
    return value


@pytest.mark.parametrize("group_size", [1, 2, 3, 4, 5, 6])
@pytest.mark.parametrize("alpha, beta", PRIORS)
def test_prob_effective_equals_enumeration(group_size, alpha, beta):
    prior = BetaPrior(float(alpha), float(beta))
    weight = {s: exact_probability(s, alpha, beta) for s in product((0, 1), repeat=group_size)}
    for n in range(group_size + 1):
        for prefix in product((0, 1), repeat=n):
            matching = {s: w for s, w in weight.items() if s[:n] == prefix}
            mixed = sum(w for s, w in matching.items() if 0 < sum(s) < group_size)
            exact = mixed / sum(matching.values())
            got = prob_effective(n, sum(prefix), group_size=group_size, prior=prior)
            assert got == pytest.approx(float(exact), abs=4e-16)


@pytest.mark.parametrize("k", [2, 4, 8, 16, 32])
def test_uniform_prior_closed_form(k):
    for n in range(1, k + 1):
        assert prob_effective(n, 0, group_size=k, prior=UNIFORM) == pytest.approx((k - n) / (k + 1))
        assert prob_effective(n, n, group_size=k, prior=UNIFORM) == pytest.approx((k - n) / (k + 1))
    # nothing seen: both saturated outcomes are possible, so not k/(k+1)
    assert prob_effective(0, 0, group_size=k, prior=UNIFORM) == pytest.approx((k - 1) / (k + 1))


@pytest.mark.parametrize("alpha", [1e-6, 1e-9, 1e-12])
def test_tiny_alpha_keeps_all_digits(alpha):
    exact = Fraction(1)
    for j in range(40, 64):
        exact *= (Fraction(200) + j) / (Fraction(alpha) + 200 + j)
    got = prob_effective(40, 0, group_size=64, prior=BetaPrior(alpha, 200.0))
    assert got == pytest.approx(float(1 - exact), rel=1e-14)


@pytest.mark.parametrize(
    "n, s, k, value",
    [
        (0, 0, 1, 0.0),
        (1, 0, 1, 0.0),
        (1, 1, 1, 0.0),
        (8, 0, 8, 0.0),
        (9, 9, 8, 0.0),
        (9, 4, 8, 1.0),
        (2, 1, 8, 1.0),
    ],
)
def test_edges(n, s, k, value):
    assert prob_effective(n, s, group_size=k, prior=UNIFORM) == value


@pytest.mark.parametrize("n, s, k", [(-1, 0, 8), (3, 4, 8), (3, -1, 8), (0, 0, 0)])
def test_contradicting_counts_are_errors(n, s, k):
    with pytest.raises(ValueError, match="allowed"):
        prob_effective(n, s, group_size=k, prior=UNIFORM)


@pytest.mark.parametrize("alpha, beta", [(0, 1), (1, -1), (math.nan, 1), (1, math.inf), (True, 1), ("1", 1)])
def test_prior_out_of_range(alpha, beta):
    with pytest.raises(ConfigError, match=r"prior (alpha|beta) is .*allowed: a finite number > 0"):
        BetaPrior(alpha, beta)


@pytest.mark.parametrize(
    "n0, n1, weights",
    [
        (6, 6, [1.333, 1.037, 1, 1, 1, 1.037, 1.333]),
        (5, 5, [1.600, 1.120, 1.018, 1, 1.018, 1.120, 1.600]),
        (3, 3, [2.667, 1.556, 1.244, 1.167, 1.244, 1.556, 2.667]),
        (2, 5, [4.000, 2.154, 1.556, 1.273, 1.143, 1.167, 1.600]),
    ],
)
def test_horvitz_thompson_table(n0, n1, weights):
    got = [1 / prob_keep(s, group_size=8, fail_length=n0, pass_length=n1) for s in range(1, 8)]
    assert [round(w, 3) for w in got] == weights


@pytest.mark.parametrize("k", [2, 3, 5, 6])
def test_prob_keep_equals_enumeration(k):
    for n0, n1 in product(range(1, k + 1), repeat=2):
        for s in range(k + 1):
            orders = [o for o in product((0, 1), repeat=k) if sum(o) == s]
            kept = sum(any(o[:n0]) and not all(o[:n1]) for o in orders)
            got = prob_keep(s, group_size=k, fail_length=n0, pass_length=n1)
            assert got == pytest.approx(kept / len(orders), abs=1e-15)


@pytest.mark.parametrize("alpha, beta", PRIORS)
@pytest.mark.parametrize("n0, n1", [(2, 2), (3, 5), (5, 3), (6, 6), (2, 6)])
def test_expected_cost_equals_enumeration(alpha, beta, n0, n1):
    k, prefix, filled = 6, Fraction(0), Fraction(0)
    for o in product((0, 1), repeat=k):
        weight = exact_probability(o, alpha, beta)
        for n in range(1, k + 1):
            is_abandoned = (n == n0 and not any(o[:n])) or (n == n1 and all(o[:n]))
            if is_abandoned or 0 < sum(o[:n]) < n:
                prefix += weight * n
                filled += weight * (n if is_abandoned else k)
                break
    prior = BetaPrior(float(alpha), float(beta))
    lengths = {"group_size": k, "fail_length": n0, "pass_length": n1, "prior": prior}
    assert expected_cost(**lengths, completed=False) == pytest.approx(float(prefix))
    assert expected_cost(**lengths, completed=True) == pytest.approx(float(filled))


@pytest.mark.parametrize(
    "k, n, prefix, filled",
    [(4, 3, 2.67, 3.50), (8, 6, 3.90, 7.43), (16, 11, 5.04, 15.17), (32, 23, 6.47, 31.25)],
)
def test_expected_cost_table_of_the_uniform_prior(k, n, prefix, filled):
    lengths = {"group_size": k, "fail_length": n, "pass_length": n, "prior": UNIFORM}
    assert round(expected_cost(**lengths, completed=False), 2) == prefix
    assert round(expected_cost(**lengths, completed=True), 2) == filled
    harmonic = sum(1 / i for i in range(1, n + 1))
    assert expected_cost(**lengths, completed=False) == pytest.approx(2 * harmonic - 1)
    assert expected_cost(**lengths, completed=True) == pytest.approx(k - 2 * (k - n) / (n + 1))
