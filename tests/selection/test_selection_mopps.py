"""MoPPS: posterior updates, Thompson ranking, interval mode."""

from __future__ import annotations

import numpy as np
import pytest
from selection_builders import make_evidence, make_ids

from verl_sara.selection import GroupEvidence
from verl_sara.selection.mopps import MoppsSelector


@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        # prior (1, 1); 3 of 8, then a prefix of 4 failures
        (1.0, (1 + 3 + 0, 1 + 5 + 4)),
        (0.5, (0.5 * (1 + 3) + 0.5, 0.5 * (1 + 5) + 0.5 + 4)),
        (0.0, (1.0, 1.0 + 4)),
    ],
)
def test_posterior_counts_decay_per_observation(decay, expected):
    selector = MoppsSelector(make_ids(3), decay=decay)
    selector.observe([make_evidence("p1", "effective")])
    selector.end_step()
    selector.observe([make_evidence("p1", "abandoned-fail", 0.4)])
    selector.end_step()
    selector.observe([make_evidence("p1", "unobserved")])
    selector.end_step()
    assert selector.posterior(["p1"])[0] == pytest.approx(expected)
    assert selector.posterior(["p0"])[0] == pytest.approx((1.0, 1.0))


def selector_with_known_rates(**params) -> MoppsSelector:
    """Prompt i of 21 has a posterior concentrated at pass rate i / 20."""
    selector = MoppsSelector(make_ids(21), **params)
    num = 1_000_000
    for i in range(21):
        verdict = {0: "unsolved", 20: "solved"}.get(i, "effective")
        selector.observe([GroupEvidence(f"p{i}", num, i * num // 20, 8, verdict, 0.0)])
    selector.end_step()
    return selector


def test_ranking_is_by_distance_to_the_target():
    rows = selector_with_known_rates(target=0.25, explore_fraction=0.001).select(21)
    assert np.all(np.diff(np.abs(rows - 5)) >= 0)


def test_interval_comes_first_in_random_order_then_the_nearest():
    orders = []
    for seed in (0, 1):
        rows = selector_with_known_rates(interval=(0.29, 0.71), explore_fraction=0.001, seed=seed).select(13)
        assert set(rows[:9].tolist()) == set(range(6, 15))
        assert set(rows[9:11].tolist()) == {5, 15}
        assert set(rows[11:].tolist()) == {4, 16}
        orders.append(rows[:9].tolist())
    assert orders[0] != orders[1]


def test_candidates_bound_the_ranking_but_not_the_selection():
    selector = selector_with_known_rates(num_candidates=4, explore_fraction=0.001)
    assert sorted(selector.select(21).tolist()) == list(range(21))


def test_thompson_draws_follow_the_posterior():
    selector = MoppsSelector(make_ids(4000), prior=(4.0, 2.0), target=0.0)
    assert -selector._scores(None).mean() == pytest.approx(4 / 6, abs=0.02)


def test_class_prediction_is_the_beta_binomial():
    probs = MoppsSelector(make_ids(3))._class_probs(np.array([0, 1, 2]), np.array([8, 4, 1]))
    # uniform prior: mixed with probability (k - 1) / (k + 1)
    assert probs[:, 1] == pytest.approx([7 / 9, 3 / 5, 0.0], abs=1e-12)
    assert probs.sum(axis=1) == pytest.approx([1, 1, 1])


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"decay": -0.1}, "decay"),
        ({"prior": (1.0, 0.0)}, "prior"),
        ({"target": 1.5}, "target"),
        ({"interval": (0.7, 0.3)}, "interval"),
        ({"num_candidates": 0}, "num_candidates"),
    ],
)
def test_bad_parameters_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        MoppsSelector(make_ids(3), **params)
