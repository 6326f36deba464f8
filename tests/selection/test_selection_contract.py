"""What every selector promises: flights, passes, exploration, errors, metrics names, configuration files."""

from __future__ import annotations

import inspect
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from selection_builders import KINDS, NAMES, VARIANTS, make_evidence, make_ids, run_steps

import verl_sara.config
from verl_sara.selection import SELECTORS, GroupEvidence, PromptsExhausted, build_selector, number_duplicates
from verl_sara.selection.ranked import top

ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["select", "observe", "release", "end_step"]),
        st.integers(0, 9),
        st.sampled_from(KINDS),
    ),
    max_size=40,
)


@pytest.mark.parametrize(("name", "params"), VARIANTS)
@settings(max_examples=25, deadline=None)
@given(actions=ACTIONS)
def test_no_prompt_is_twice_in_flight(name, params, actions):
    ids = make_ids(12)
    selector, in_flight = build_selector(name, ids, **params), []
    for action, n, kind in actions:
        if action == "select" and n > len(ids) - len(in_flight):
            with pytest.raises(PromptsExhausted, match="in flight"):
                selector.select(n)
        elif action == "select":
            rows = selector.select(n)
            assert rows.dtype == np.int64 and len(rows) == n
            in_flight += rows.tolist()
        elif action == "observe":
            selector.observe([make_evidence(ids[row], kind, 0.3) for row in in_flight[:n]])
            del in_flight[:n]
        elif action == "release":
            selector.release([ids[row] for row in in_flight[:n]])
            del in_flight[:n]
        else:
            selector.end_step()
        assert len(set(in_flight)) == len(in_flight)
        assert selector.in_flight().tolist() == sorted(in_flight)


@settings(max_examples=40, deadline=None)
@given(sizes=st.lists(st.integers(0, 7), max_size=30), lag=st.integers(0, 3))
def test_uniform_passes_visit_every_prompt_once_each(sizes, lag):
    """With `lag` selections still in flight, a visit owed to a pass is late but never lost or doubled."""
    ids = make_ids(40)
    selector, flights, visits = build_selector("uniform", ids), [], Counter()
    for n in sizes:
        flights.append(selector.select(n).tolist())
        visits.update(flights[-1])
        if len(flights) > lag:
            selector.observe([make_evidence(ids[row], "effective") for row in flights.pop(0)])
    passes = selector.state_dict()["passes"]
    owed = Counter(selector._index.rows[np.concatenate([passes["order"], passes["deferred"]])].tolist())
    for row in range(40):
        assert visits[row] + owed[row] == passes["num_started"]


@pytest.mark.parametrize(("name", "params"), VARIANTS)
def test_one_at_a_time_equals_all_at_once(name, params):
    ids = make_ids(50)
    together, apart = build_selector(name, ids, **params), build_selector(name, ids, **params)
    for selector in (together, apart):
        run_steps(selector, ids, 3, 20)
    assert together.select(20).tolist() == [int(apart.select(1)[0]) for _ in range(20)]


def test_full_exploration_is_uniform_selection():
    ids = make_ids(30)
    uniform, explored = (
        build_selector("uniform", ids, seed=3),
        build_selector("dps", ids, seed=3, explore_fraction=1.0),
    )
    assert run_steps(uniform, ids, 8, 7) == run_steps(explored, ids, 8, 7)


@pytest.mark.parametrize("batch", [1, 16])
def test_exploration_share_is_exact_and_covers_the_data(batch):
    ids = make_ids(40)
    selector = build_selector("dps", ids, explore_fraction=0.125)
    visited = set()
    for _ in range(320 // batch):
        visited.update(selector.select(batch).tolist())
        selector.observe(
            [make_evidence(ids[row], "effective" if row < 20 else "solved") for row in selector.in_flight()]
        )
        selector.end_step()
    passes = selector.state_dict()["passes"]
    num_owed = len(passes["order"]) + len(passes["deferred"])
    assert 40 * passes["num_started"] - num_owed == 320 / 8
    assert visited == set(range(40))
    assert selector.metrics()["sara/selection/never_visited_share"] == 0.0


def test_released_prompts_of_a_pass_come_back_first_and_are_not_counted():
    ids = make_ids(10)
    selector = build_selector("uniform", ids)
    rows = selector.select(4).tolist()
    selector.release([ids[row] for row in rows[1:]])
    assert selector.metrics()["sara/selection/prompts_drawn"] == 1
    assert selector.select(3).tolist() == rows[1:]
    with pytest.raises(ValueError, match="not in flight"):
        selector.release([ids[next(row for row in range(10) if row not in rows)]])


def test_unknown_prompts_are_refused_before_anything_changes():
    selector = build_selector("mopps", make_ids(3))
    with pytest.raises(ValueError, match=r"unknown prompt ids.*'nobody'"):
        selector.observe([make_evidence("p0", "effective"), make_evidence("nobody", "solved")])
    assert selector.metrics()["sara/selection/never_visited_share"] == 1.0


def test_repeated_ids_are_refused_and_can_be_numbered_apart():
    with pytest.raises(ValueError, match=r"2 repeated ids.*'a'"):
        build_selector("uniform", ["a", "b", "a", "a"])
    assert number_duplicates(["a", "b", "a", "a"]) == ["a", "b", "a#2", "a#3"]
    with pytest.raises(ValueError, match="empty"):
        build_selector("uniform", [])


def test_builder_names_what_is_allowed():
    with pytest.raises(ValueError, match="allowed: uniform, dps, mopps"):
        build_selector("best", ["a"])
    with pytest.raises(ValueError, match=r"no parameter decai; allowed: .*decay"):
        build_selector("dps", ["a"], decai=0.5)


@pytest.mark.parametrize("name", NAMES)
def test_configuration_file_lists_every_parameter_with_its_default(name):
    path = Path(verl_sara.config.__file__).parent / "sara" / "selection" / f"{name}.yaml"
    text = path.read_text()
    assert text.startswith("# @package data.custom_cls.sara.selection\n")
    values = yaml.safe_load(text)
    defaults = {
        key: list(parameter.default) if isinstance(parameter.default, tuple) else parameter.default
        for key, parameter in inspect.signature(SELECTORS[name]).parameters.items()
        if key != "prompt_ids"
    }
    assert values == {"name": name, **defaults}
    build_selector(**values, prompt_ids=["a"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (("a", 8, 3, 8, "good", 0.0), "allowed: effective"),
        (("a", 8, 9, 8, "effective", 0.0), "num_successes <= num_rollouts"),
        (("a", 8, 8, 8, "effective", 0.0), "contradict"),
        (("a", 8, 3, 8, "abandoned", 0.0), "contradict"),
        (("a", 0, 0, 8, "unsolved", 0.0), "contradict"),
        (("a", 4, 0, 8, "abandoned", 1.2), "prob_effective"),
    ],
)
def test_impossible_evidence_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        GroupEvidence(*fields)


@settings(max_examples=100, deadline=None)
@given(
    values=st.lists(st.sampled_from([-np.inf, -1.0, 0.25, 0.5, 0.75]), min_size=1, max_size=60),
    data=st.data(),
)
def test_top_returns_the_largest_scores_in_order(values, data):
    scores = np.array(values, np.float32)
    size = data.draw(st.integers(0, int(np.isfinite(scores).sum())))
    chosen = top(scores, size, np.random.default_rng(0))
    assert len(set(chosen.tolist())) == size
    assert scores[chosen].tolist() == sorted(values, reverse=True)[:size]


def test_top_finds_the_few_best_of_many_ties():
    scores = np.full(200_000, 1 / 3, np.float32)
    scores[[5, 70_000, 199_999]] = 0.4, 0.5, 0.45
    chosen = top(scores, 50, np.random.default_rng(0))
    assert chosen[:3].tolist() == [70_000, 199_999, 5]
    assert len(set(chosen.tolist())) == 50
