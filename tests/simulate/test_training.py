"""Simulated training: exact stops, what is learned, determinism, and the baselines."""

import numpy as np
import pytest

from verl_sara.core import CommitRate, FullGroup, SaraThreshold, StepAllocator, StepSettings
from verl_sara.simulate.arms import DS, PAPER, RANKED, TUNED, policy
from verl_sara.simulate.baselines import Cost, ideal, whole_batches
from verl_sara.simulate.lengths import Lengths
from verl_sara.simulate.populations import POOLS, Component, PoolSpec
from verl_sara.simulate.server import Server
from verl_sara.simulate.training import Training, run_exact

SIZES = {"num_steps": 4, "lengths": Lengths(), "seed": 3}
POOL = POOLS["B"].build(900)


def train(options, *, server=None, **arm):
    return Training(POOL, policy(options, batch_size=16, **arm), server=server, **SIZES).run()


@pytest.mark.parametrize("options", [DS, PAPER, TUNED])
@pytest.mark.parametrize("is_exact", [True, False])
def test_every_step_trains_b_groups(options, is_exact):
    reports = train(options, is_exact=is_exact)
    assert [report.trained for report in reports] == [16] * 4
    assert all(report.rollouts >= 16 * 8 and report.tokens > report.rollouts for report in reports)


def test_the_same_seed_gives_the_same_training():
    assert train(TUNED) == train(TUNED)
    assert train(PAPER) != Training(POOL, policy(PAPER, batch_size=16), **(SIZES | {"seed": 4})).run()


def test_an_exact_step_ends_with_its_last_committed_group():
    outcomes = {"a": "PPPP", "b": "PFPP", "c": "FFFF", "d": "FPFF", "e": "PFPF"}
    allocator = StepAllocator(
        StepSettings(group_size=4, batch_size=2, probe_size=4, schedule="streaming"), FullGroup(), CommitRate()
    )
    names = iter(outcomes)

    def fresh():
        uid = next(names)
        return uid, uid, SaraThreshold and policy(DS).priors.prior_for(uid)

    fates = run_exact(allocator, fresh, lambda uid, slot: (outcomes[uid][slot] == "P", 1))
    assert list(fates) == ["a", "b", "c", "d"]
    assert allocator.num_launched == 16


def test_full_groups_with_an_exact_stop_cost_what_the_ideal_says():
    pool = POOLS["A"].build(2000)
    reports = Training(pool, policy(DS, batch_size=64, is_exact=True), **(SIZES | {"num_steps": 10})).run()
    expected = ideal(pool, batch_size=64, group_size=8, **(SIZES | {"num_steps": 10}))
    assert abs(Cost.of(reports).saving(expected)) < 0.06
    assert abs(Cost.of(reports).saving(expected, "tokens")) < 0.08


def test_whole_batches_cost_whole_batches():
    cost = whole_batches(POOL, batch_size=16, group_size=8, **SIZES)
    assert cost.rollouts % (16 * 8) == 0
    assert cost.groups == 4 * 16
    assert Cost(10, 100, 2).saving(Cost(20, 400, 2)) == 0.5
    assert Cost(10, 100, 2).saving(Cost(20, 400, 2), "tokens") == 0.75


def test_whole_batches_on_a_server_take_a_barrier_each():
    server = Server(16 * 8)
    cost = whole_batches(POOL, batch_size=16, group_size=8, server=server, **SIZES)
    num_batches = cost.rollouts / (16 * 8)
    longest = 8192 * num_batches
    assert 0 < server.time <= longest
    assert server.load < 0.8  # stragglers leave slots idle


def test_history_shortens_the_probes_of_a_revisited_pool():
    pool = PoolSpec((Component(0.7, -6.0, 0.5), Component(0.3, 0.0, 0.5)), drift=0.0).build(200)
    arm = policy(TUNED, batch_size=16, is_exact=True)
    reports = Training(pool, arm, **(SIZES | {"num_steps": 12})).run()
    assert sum(r.rollouts for r in reports[-3:]) < 0.75 * sum(r.rollouts for r in reports[:3])
    assert arm.priors.prior_for("p0").beta > 4 * arm.priors.prior_for("p0").alpha


def test_skipping_saves_more():
    pool = PoolSpec((Component(0.7, -6.0, 0.5), Component(0.3, 0.0, 0.5)), drift=0.0).build(200)
    sizes = SIZES | {"num_steps": 12}
    costs = [
        Cost.of(Training(pool, policy(TUNED, batch_size=16, is_exact=True, skip=skip), **sizes).run())
        for skip in (0.05, None)
    ]
    assert costs[0].saving(costs[1]) > 0.05


def test_a_ranked_stream_is_more_effective():
    plain, ranked = train(PAPER), train(PAPER, **RANKED)
    assert ranked[-1].effective_share > plain[-1].effective_share + 0.1


def test_the_wrong_abandon_rate_is_below_its_prediction_on_a_u_shaped_pool():
    reports = train(PAPER)
    assert sum(r.abandoned for r in reports) > 0
    assert sum(r.realised for r in reports) < 0.5 * sum(r.predicted for r in reports)


def test_lengths_follow_outcome_difficulty_and_limit():
    rng, lengths = np.random.default_rng(0), Lengths(median=1000.0, sigma=0.5, cap=4000)
    passes = lengths.draw(rng, np.ones(4000, bool), 0.9)
    fails = lengths.draw(rng, np.zeros(4000, bool), 0.9)
    hard = lengths.draw(rng, np.ones(4000, bool), 0.1)
    assert np.median(fails) / np.median(passes) == pytest.approx(1.6, rel=0.1)
    assert np.median(hard) > 1.2 * np.median(passes)
    assert fails.max() <= 4000 and passes.min() >= 1
