"""Stopping lengths: the paper's table, ties, the shortest prefix, and stage boundaries."""

import pytest

from verl_sara.core import (
    UNIFORM,
    BetaPrior,
    ConfigError,
    FullGroup,
    SaraThreshold,
    StopLengths,
    align_lengths,
    prob_effective,
    stage_boundaries,
)

TAUS = (0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)
N_STAR = {
    4: (4, 4, 3, 3, 3, 3, 2, 2),
    8: (8, 7, 6, 6, 5, 5, 4, 3),
    16: (15, 13, 12, 11, 11, 10, 8, 6),
    32: (29, 26, 24, 23, 21, 19, 16, 13),
}


@pytest.mark.parametrize("k", N_STAR)
def test_n_star_of_the_uniform_prior(k):
    got = [SaraThreshold(tau).lengths(UNIFORM, k) for tau in TAUS]
    assert got == [StopLengths(n, n) for n in N_STAR[k]]


def test_a_tie_is_not_below_the_threshold():
    # p_eff(5, 0) = 1/3 at k = 8 and p_eff(3, 0) = 1/5 at k = 4, exactly
    assert SaraThreshold(1 / 3).lengths(UNIFORM, 8) == StopLengths(6, 6)
    assert SaraThreshold(1 / 3 + 1e-9).lengths(UNIFORM, 8) == StopLengths(5, 5)
    assert SaraThreshold(0.2).lengths(UNIFORM, 4) == StopLengths(4, 4)


@pytest.mark.parametrize("prior", [UNIFORM, BetaPrior(0.02, 50.0), BetaPrior(0.1, 0.1)])
@pytest.mark.parametrize("k", [2, 3, 8])
def test_one_rollout_never_abandons(prior, k):
    lengths = SaraThreshold(1.0).lengths(prior, k)
    assert min(lengths.fail, lengths.passed) >= 2


def test_zero_threshold_never_abandons_before_k():
    assert SaraThreshold(0.0).lengths(BetaPrior(1e-12, 200.0), 64) == StopLengths(64, 64)
    assert FullGroup().lengths(UNIFORM, 8) == StopLengths(8, 8)
    assert SaraThreshold(0.4).lengths(UNIFORM, 1) == StopLengths(1, 1)


def test_sides_follow_the_prior():
    # few passes expected: an all-fail prefix is hopeless early, an all-pass one stays open
    lengths = SaraThreshold(0.4).lengths(BetaPrior(0.25, 2.0), 8)
    assert lengths.fail < lengths.passed
    mirrored = SaraThreshold(0.4).lengths(BetaPrior(2.0, 0.25), 8)
    assert mirrored == StopLengths(lengths.passed, lengths.fail)


@pytest.mark.parametrize("prior", [UNIFORM, BetaPrior(0.3, 0.7), BetaPrior(4, 4)])
def test_the_length_is_the_first_below_the_threshold(prior):
    for k in (4, 8, 16):
        lengths = SaraThreshold(0.35).lengths(prior, k)
        for side, n in (("fail", lengths.fail), ("passed", lengths.passed)):
            seen = [(m, m if side == "passed" else 0) for m in range(2, k)]
            below = [m for m, s in seen if prob_effective(m, s, group_size=k, prior=prior) < 0.35]
            assert n == (below[0] if below else k)


@pytest.mark.parametrize("tau", [-0.1, 1.1])
def test_threshold_out_of_range(tau):
    with pytest.raises(ConfigError, match=r"tau_low is .*allowed: a number in \[0, 1\]"):
        SaraThreshold(tau)


@pytest.mark.parametrize(
    "k, probe, increment, boundaries",
    [
        (8, 4, 1, (4, 5, 6, 7, 8)),
        (8, 2, 3, (2, 5, 8)),
        (8, 3, 4, (3, 7, 8)),
        (8, 8, 1, (8,)),
        (8, 99, 1, (8,)),
        (2, 1, 1, (1, 2)),
        (1, 4, 1, (1,)),
    ],
)
def test_stage_boundaries(k, probe, increment, boundaries):
    assert stage_boundaries(k, probe, increment) == boundaries


def test_lengths_are_rounded_up_to_boundaries():
    assert align_lengths(StopLengths(3, 6), (2, 5, 8)) == StopLengths(5, 8)
    assert align_lengths(StopLengths(2, 8), (2, 5, 8)) == StopLengths(2, 8)
