"""The figures a selector reports."""

from __future__ import annotations

import math

import pytest
from selection_builders import NAMES, make_evidence, make_ids, run_steps

from verl_sara.selection import build_selector

# verl.trainer.ppo.v1.utils.MetricsAggregator chooses the reduction by these parts of a name.
REDUCTION_WORDS = ("timing_s/", "mean", "avg", "max", "min", "sum", "total")


def figures(selector) -> dict[str, float]:
    return {name.removeprefix("sara/selection/"): value for name, value in selector.metrics().items()}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_ours_and_choose_no_reduction(name):
    ids = make_ids(20)
    selector = build_selector(name, ids)
    run_steps(selector, ids, 5, 6)
    metrics = selector.metrics()
    for key, value in metrics.items():
        assert key.startswith("sara/selection/")
        assert not [word for word in REDUCTION_WORDS if word in key.lower()], key
        assert type(value) is float and math.isfinite(value), key
    assert ("sara/selection/prediction/confusion/mixed_is_mixed" in metrics) == (name != "uniform")


def test_confusion_and_scores_of_a_worked_step():
    selector = build_selector("dps", make_ids(10))
    selector.observe([make_evidence(p, "effective") for p in ("p0", "p1", "p2")])
    selector.observe([make_evidence(p, "unsolved") for p in ("p3", "p4")])
    selector.end_step()
    # predicted: p0-p2 mixed, p3-p4 unsolved; the abandoned group counts 0.25 as mixed, 0.75 as solved
    selector.observe([make_evidence("p0", "effective"), make_evidence("p1", "unsolved")])
    selector.observe([make_evidence("p2", "abandoned-pass", 0.25), make_evidence("p3", "effective")])
    selector.observe([make_evidence("p4", "unsolved"), make_evidence("p9", "unobserved")])
    selector.end_step()
    values = figures(selector)
    assert values["prediction/confusion/mixed_is_mixed"] == pytest.approx(1.25 / 5)
    assert values["prediction/confusion/mixed_is_unsolved"] == pytest.approx(1 / 5)
    assert values["prediction/confusion/mixed_is_solved"] == pytest.approx(0.75 / 5)
    assert values["prediction/confusion/unsolved_is_mixed"] == pytest.approx(1 / 5)
    assert values["prediction/confusion/unsolved_is_unsolved"] == pytest.approx(1 / 5)
    assert values["prediction/accuracy"] == pytest.approx(2.25 / 5)
    assert values["prediction/mixed_precision"] == pytest.approx(1.25 / 3)
    assert values["prediction/mixed_recall"] == pytest.approx(1.25 / 2.25)
    assert values["prediction/mixed_f1"] == pytest.approx(2 * 1.25 / (3 + 2.25))
    assert values["prediction/expected_mixed_share"] == pytest.approx((3 * 0.4 + 2 * 0.3) / 5, abs=1e-6)
    assert values["prediction/realised_mixed_share"] == pytest.approx(2.25 / 5)
    assert values["prediction/predicted_entropy"] == pytest.approx(
        -(0.4 * math.log(0.4) + 0.6 * math.log(0.3)), abs=1e-6
    )


def test_score_covers_one_step_and_stays_readable_after_it():
    selector = build_selector("dps", make_ids(10))
    selector.observe([make_evidence("p0", "solved")])
    assert figures(selector)["prediction/confusion/mixed_is_solved"] == 1.0
    selector.end_step()
    assert figures(selector)["prediction/confusion/mixed_is_solved"] == 1.0
    selector.observe([make_evidence("p1", "effective")])
    assert figures(selector)["prediction/confusion/mixed_is_solved"] == 0.0


def test_undefined_ratios_are_left_out():
    selector = build_selector("mopps", make_ids(4))
    assert not [name for name in figures(selector) if name.startswith("prediction/")]
    selector.observe([make_evidence("p0", "solved")])
    assert "prediction/mixed_precision" in figures(selector)
    assert "prediction/mixed_recall" not in figures(selector)


@pytest.mark.parametrize("name", NAMES)
def test_visits_passes_and_stale_prompts(name):
    ids = make_ids(10)
    selector = build_selector(name, ids, stale_after=3)
    selector.select(5)
    selector.observe([make_evidence(p, "effective") for p in ids[:2]] + [make_evidence("p2", "solved")])
    for _ in range(3):
        selector.end_step()
    assert figures(selector)["stale_mixed_share"] == 0.0
    selector.observe([make_evidence("p1", "effective")])
    selector.end_step()
    values = figures(selector)
    assert values["stale_mixed_share"] == 0.5
    assert values["never_visited_share"] == pytest.approx(0.7)
    assert (values["prompts_drawn"], values["passes"]) == (5, 0.5)


def test_belief_figures_of_dps():
    ids = make_ids(10)
    selector = build_selector("dps", ids)
    selector.observe([make_evidence("p0", "effective")])
    selector.end_step()
    values, entropy = figures(selector), -(0.4 * math.log(0.4) + 0.6 * math.log(0.3))
    assert values["active_beliefs"] == 1
    assert values["belief_entropy"] == pytest.approx((entropy + 9 * math.log(3)) / 10, abs=1e-6)
    assert values["belief_mixed_share"] == pytest.approx((0.4 + 3) / 10, abs=1e-6)
