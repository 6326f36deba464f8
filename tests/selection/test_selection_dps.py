"""Dynamics-Predictive Sampling: worked examples, evidence rules, ranking, forgetting."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_builders import KINDS, make_evidence, make_ids

from verl_sara.selection import build_selector
from verl_sara.selection.dps import DpsSelector
from verl_sara.selection.evidence import MIXED, SOLVED, UNSOLVED


def priors_after(kinds: list[str | None], **params) -> list[np.ndarray]:
    selector = DpsSelector(make_ids(9), **params)
    priors = []
    for kind in kinds:
        if kind is not None:
            selector.observe([make_evidence("p3", kind, prob_effective=0.4)])
        selector.end_step()
        priors.append(selector.prior(["p3"])[0])
    return priors


@pytest.mark.parametrize(
    ("kinds", "decay", "expected"),
    [
        (["effective"] * 3, 0.7, [(0.3, 0.4, 0.3), (0.236, 0.528, 0.236), (0.206, 0.589, 0.206)]),
        (
            ["effective", None, None, None],
            0.7,
            [(0.3, 0.4, 0.3), (0.309, 0.381, 0.309), (0.316, 0.368, 0.316), (0.321, 0.358, 0.321)],
        ),
        (["unsolved"] * 3, 0.7, [(0.4, 0.3, 0.3), (0.528, 0.236, 0.236), (0.589, 0.206, 0.206)]),
        (["solved"] * 3, 0.7, [(0.3, 0.3, 0.4), (0.236, 0.236, 0.528), (0.206, 0.206, 0.589)]),
        # decay 1: an unobserved prompt does not move
        (["effective", None, None], 1.0, [(0.3, 0.4, 0.3)] * 3),
    ],
)
def test_prior_follows_the_worked_examples(kinds, decay, expected):
    assert np.allclose(priors_after(kinds, decay=decay), expected, atol=1e-3)


def test_decay_of_a_half_ends_at_its_worked_value():
    assert priors_after(["effective"] * 3, decay=0.5)[-1][MIXED] == pytest.approx(0.564, abs=1e-3)


def reference_priors(history, decay, alpha_0, pi, evidence_of):
    """The update written out per prompt in float64, straight from the formulas."""
    alpha, posterior, prior = alpha_0.copy(), pi.copy(), pi.copy()
    for kind in history:
        evidence = evidence_of(kind)
        xi = np.zeros((3, 3))
        new_posterior = prior if evidence is None else evidence
        if evidence is not None:
            for i in range(3):
                for j in range(3):
                    xi[i, j] = new_posterior[i] * alpha[i, j] / alpha[:, j].sum() * posterior[j]
            xi /= xi.sum()
        alpha = decay * alpha + (1 - decay) * alpha_0 + xi
        prior, posterior = alpha / alpha.sum(axis=0) @ new_posterior, new_posterior
    return prior


@settings(max_examples=40, deadline=None)
@given(
    histories=st.lists(
        st.lists(st.sampled_from([*KINDS, None]), min_size=12, max_size=12), min_size=1, max_size=4
    ),
    gap=st.sampled_from([0, 30]),
    decay=st.sampled_from([0.0, 0.5, 0.7, 0.95, 1.0]),
    alpha=st.lists(st.floats(0.2, 5.0), min_size=9, max_size=9),
    is_hard=st.booleans(),
)
def test_table_equals_the_formulas_written_out_per_prompt(histories, gap, decay, alpha, is_hard):
    histories = [history[:6] + [None] * gap + history[6:] for history in histories]
    alpha_0, pi, ids = np.reshape(alpha, (3, 3)), np.array([0.2, 0.3, 0.5]), make_ids(6)
    selector = DpsSelector(
        ids,
        decay=decay,
        prior_alpha=alpha_0.tolist(),
        prior_pi=pi,
        abandoned_evidence="hard" if is_hard else "soft",
    )
    for step in range(12 + gap):
        selector.observe(
            [make_evidence(ids[i], h[step], 0.4) for i, h in enumerate(histories) if h[step] is not None]
        )
        selector.end_step()

    def evidence_of(kind):
        if kind in (None, "unobserved"):
            return None
        return np.array(make_evidence("", kind, 0.4).class_weights(is_hard=is_hard))

    never_seen = [[None] * (12 + gap)] * (len(ids) - len(histories))
    expected = [reference_priors(h, decay, alpha_0, pi, evidence_of) for h in histories + never_seen]
    assert np.allclose(selector.prior(ids), expected, atol=1e-5)
    assert np.allclose(selector.prior(ids).sum(axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("kind", "is_hard", "weights"),
    [
        ("effective", False, (0, 1, 0)),
        ("solved", False, (0, 0, 1)),
        ("unsolved", False, (1, 0, 0)),
        ("abandoned-fail", False, (0.6, 0.4, 0)),
        ("abandoned-pass", False, (0, 0.4, 0.6)),
        ("abandoned-fail", True, (1, 0, 0)),
        ("abandoned-pass", True, (0, 0, 1)),
    ],
)
def test_evidence_weights(kind, is_hard, weights):
    assert make_evidence("p", kind, 0.4).class_weights(is_hard=is_hard) == pytest.approx(weights)


def test_soft_evidence_lies_between_hard_and_effective():
    hard, soft = (
        priors_after(["abandoned-fail"], abandoned_evidence=option)[0] for option in ("hard", "soft")
    )
    mixed = priors_after(["effective"])[0]
    assert hard[MIXED] < soft[MIXED] < mixed[MIXED]
    assert hard[UNSOLVED] > soft[UNSOLVED] > soft[SOLVED]


def test_ranking_is_mixed_then_never_seen_then_saturated():
    ids = make_ids(30)
    with pytest.warns(UserWarning, match="starves"):
        selector = DpsSelector(ids, explore_fraction=0.0)
    selector.observe([make_evidence(p, "effective") for p in ids[:5]])
    selector.observe([make_evidence(p, "solved") for p in ids[5:10]])
    selector.end_step()
    rows = selector.select(30).tolist()
    assert set(rows[:5]) == set(range(5))
    assert set(rows[5:25]) == set(range(10, 30))
    assert set(rows[25:]) == set(range(5, 10))


def test_ties_are_broken_at_random_and_by_the_seed():
    firsts = [tuple(DpsSelector(make_ids(1000), seed=seed).select(5)) for seed in (1, 1, 2)]
    assert firsts[0] == firsts[1] != firsts[2]
    share = np.mean([DpsSelector(make_ids(10), seed=seed).select(5) < 5 for seed in range(200)])
    assert 0.45 < share < 0.55


def test_a_prompt_seen_in_this_step_ranks_last_until_the_step_ends():
    ids = make_ids(6)
    selector = DpsSelector(ids, explore_fraction=0.01)
    for _ in range(2):
        selector.observe([make_evidence("p2", "effective")])
        assert set(selector.select(5).tolist()) == {0, 1, 3, 4, 5}
        assert selector.select(1).tolist() == [2]
        selector.release(ids)
        selector.end_step()
    assert selector.select(1).tolist() == [2]


@pytest.mark.parametrize("alpha_0", [np.ones((3, 3)), 0.2 + 4.8 * np.eye(3)], ids=["flat", "sticky"])
def test_a_faded_belief_is_forgotten_without_a_jump(alpha_0):
    selector, active = DpsSelector(make_ids(4), decay=0.5, prior_alpha=alpha_0.tolist()), []
    selector.observe([make_evidence("p1", "effective")])
    for step in range(160):
        selector.end_step()
        history = ["effective"] + [None] * step
        expected = reference_priors(
            history, 0.5, alpha_0, np.full(3, 1 / 3), lambda kind: None if kind is None else np.eye(3)[MIXED]
        )
        assert np.allclose(selector.prior(["p1"])[0], expected, atol=1e-5)
        active.append(selector.metrics()["sara/selection/active_beliefs"])
    assert (active[0], active[-1]) == (1, 0)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"decay": 1.5}, "decay"),
        ({"prior_alpha": 0.0}, "prior_alpha"),
        ({"prior_alpha": [1, 1, 1]}, "prior_alpha"),
        ({"prior_pi": [0.5, 0.5, 0.5]}, "prior_pi"),
        ({"abandoned_evidence": "medium"}, "soft, hard"),
        ({"explore_fraction": -0.1}, "explore_fraction"),
        ({"stale_after": 0}, "stale_after"),
    ],
)
def test_bad_parameters_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        build_selector("dps", ["a"], **params)
