"""Saving and restoring: bit-exact, same continuation, found again by content hash."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_builders import VARIANTS, assert_same_state, make_evidence, make_ids, outcome, run_steps

from verl_sara.selection import build_selector

SCRIPT = st.lists(
    st.tuples(st.sampled_from(["select", "observe", "release", "end_step"]), st.integers(1, 5)), max_size=30
)


def play(selector, ids, script, in_flight, start=0) -> list[str]:
    """Plays a script; returns the ids selected. `in_flight` is the list of ids, carried over."""
    trace = []
    for step, (action, n) in enumerate(script, start):
        if action == "select":
            chosen = [ids[row] for row in selector.select(min(n, len(ids) - len(in_flight)))]
            in_flight += chosen
            trace += chosen
        elif action == "end_step":
            selector.end_step()
        else:
            batch = in_flight[:n]
            del in_flight[:n]
            selector.observe([outcome(p, step) for p in batch]) if action == "observe" else selector.release(
                batch
            )
    return trace


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@settings(max_examples=25, deadline=None)
@given(before=SCRIPT, after=SCRIPT, order=st.randoms(use_true_random=False))
def test_restored_at_any_point_it_continues_the_same_in_any_row_order(name, params, before, after, order):
    ids = make_ids(15)
    whole, in_flight = build_selector(name, ids, **params), []
    play(whole, ids, before, in_flight)
    saved = pickle.loads(pickle.dumps(whole.state_dict()))
    shuffled = order.sample(ids, len(ids))
    resumed = build_selector(name, shuffled, **params)
    run_steps(resumed, shuffled, 2, 4)  # whatever it held before is overwritten
    report = resumed.load_state_dict(saved)
    assert (report.num_restored, report.num_new, report.num_vanished) == (15, 0, 0)
    assert_same_state(resumed.state_dict(), saved)
    assert resumed.metrics() == whole.metrics()
    start = len(before)
    assert play(resumed, shuffled, after, list(in_flight), start) == play(
        whole, ids, after, list(in_flight), start
    )
    assert_same_state(resumed.state_dict(), whole.state_dict())


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_a_snapshot_does_not_change_with_the_selector_nor_by_loading(name, params):
    ids = make_ids(15)
    selector = build_selector(name, ids, **params)
    run_steps(selector, ids, 3, 4)
    selector.select(2)
    saved = selector.state_dict()
    kept = copy.deepcopy(saved)
    run_steps(selector, ids, 3, 4, first_step=3)
    other = build_selector(name, ids, **params)
    other.load_state_dict(saved)
    run_steps(other, ids, 3, 4, first_step=3)
    assert_same_state(saved, kept)
    assert_same_state(other.state_dict(), selector.state_dict())


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@settings(max_examples=15, deadline=None)
@given(
    num_vanished=st.integers(0, 6),
    num_new=st.integers(0, 6),
    steps=st.integers(0, 6),
    order=st.randoms(use_true_random=False),
)
def test_changed_data_keeps_what_is_known_and_starts_the_rest_at_the_prior(
    name, params, num_vanished, num_new, steps, order
):
    old = make_ids(15)
    selector = build_selector(name, old, **params)
    run_steps(selector, old, steps, 4)
    selector.select(3)
    kept, new = old[num_vanished:], make_ids(num_new, "new")
    ids = order.sample(kept + new, len(kept + new))
    resumed = build_selector(name, ids, **params)
    report = resumed.load_state_dict(selector.state_dict())
    assert (report.num_restored, report.num_new, report.num_vanished) == (len(kept), num_new, num_vanished)
    fresh = build_selector(name, old + new, **params)
    if name == "mopps":
        assert np.array_equal(resumed.posterior(kept), selector.posterior(kept))
        assert np.array_equal(resumed.posterior(new), fresh.posterior(new))
    if name == "dps":
        assert np.array_equal(resumed.prior(kept), selector.prior(kept))
        assert np.array_equal(resumed.prior(new), np.tile(selector._beliefs.prior[:, :1].T, (num_new, 1)))
    in_flight = {old[row] for row in selector.in_flight()} & set(kept)
    assert {ids[row] for row in resumed.in_flight()} == in_flight
    resumed.release(sorted(in_flight))
    assert sorted(resumed.select(len(ids)).tolist()) == list(range(len(ids)))


def test_new_prompts_join_the_pass_under_way_and_no_old_one_is_skipped_or_repeated():
    old, new = make_ids(20), make_ids(10, "new")
    selector = build_selector("uniform", old)
    (first,) = run_steps(selector, old, 1, 12)
    resumed = build_selector("uniform", new + old)
    resumed.load_state_dict(selector.state_dict())
    (second,) = run_steps(resumed, new + old, 1, 18)
    assert sorted(second) == sorted(set(old) - set(first) | set(new))


def test_another_schema_or_selector_is_refused():
    selector = build_selector("dps", ["a"])
    state = selector.state_dict()
    with pytest.raises(ValueError, match="schema 7, this version reads schema 1"):
        selector.load_state_dict({**state, "schema": 7})
    with pytest.raises(ValueError, match="schema None"):
        selector.load_state_dict({})
    with pytest.raises(ValueError, match="selector 'dps', this run uses 'mopps'"):
        build_selector("mopps", ["a"]).load_state_dict(state)


def test_changed_parameters_are_reported_and_the_present_ones_hold():
    ids = make_ids(5)
    saved = build_selector("dps", ids, decay=0.7).state_dict()
    selector = build_selector("dps", ids, decay=0.5)
    with pytest.warns(UserWarning, match=r"saved \{'decay': 0.7\}, now \{'decay': 0.5\}"):
        selector.load_state_dict(saved)
    for _ in range(3):
        selector.observe([make_evidence("p0", "effective")])
        selector.end_step()
    assert selector.prior(["p0"])[0, 1] == pytest.approx(0.564, abs=1e-3)
