"""The order of verl's sampler when steps leave prompts unused: every pass visits every prompt once."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.verl


def make(size, shuffle=True):
    """(order, the sampler that verl's data loader would have)"""
    from omegaconf import OmegaConf
    from verl.trainer.ppo.utils import create_rl_sampler

    from verl_sara.adapters.verl_order import VerlOrder

    config = OmegaConf.create({"shuffle": shuffle, "seed": 3})
    samplers = [create_rl_sampler(config, range(size)) for _ in range(2)]
    return VerlOrder([f"p{row}" for row in range(size)], samplers[0]), samplers[1]


def run(order, size, steps, resumed_before=frozenset()):
    """Runs steps of (fetched, started) prompts; returns the rows started in each and the last order."""
    started = []
    for index, (fetched, share) in enumerate(steps):
        if index in resumed_before:
            state, (order, _) = order.state_dict(), make(size)
            order.load_state_dict(state)
        fetched = min(fetched, size)
        rows = [int(order.select(1)[0]) for _ in range(fetched)]
        assert len(set(rows)) == fetched, "a prompt is twice in flight"
        keep = max(1, round(share * fetched))
        started.append(rows[:keep])
        order.release([f"p{row}" for row in rows[keep:]])
        order.observe(unobserved(rows[:keep]))
        order.end_step()
        assert len(order.in_flight()) == 0
    return started, order


def unobserved(rows):
    from verl_sara.selection.evidence import GroupEvidence

    return [GroupEvidence(f"p{row}", 0, 0, 8, "unobserved", 0.5) for row in rows]


STEPS = st.lists(st.tuples(st.integers(1, 9), st.floats(0, 1)), min_size=1, max_size=40)


@settings(max_examples=80, deadline=None)
@given(size=st.integers(2, 12), steps=STEPS, resumed_before=st.frozensets(st.integers(0, 39), max_size=3))
def test_every_pass_visits_every_prompt_once_in_verls_order(size, steps, resumed_before):
    order, verls = make(size)
    started, order = run(order, size, steps, resumed_before)
    stream = [row for rows in started for row in rows]
    assert stream[:size] == list(verls)[: len(stream)], "in the first pass there is none to wait for"
    visits = Counter(dict.fromkeys(range(size), 0))
    for rows in started:
        visits.update(rows)
        assert max(visits.values()) - min(visits.values()) <= 1, "a pass began before the one before it ended"

    whole, _ = run(make(size)[0], size, steps)
    assert started == whole, "a resumed run serves other prompts"


@pytest.mark.parametrize("shuffle", [True, False])
def test_without_unused_prompts_it_is_verls_order(shuffle):
    order, verls = make(12, shuffle)
    for _ in range(3):
        expected = list(verls)
        for start in range(0, 12, 4):
            rows = [int(order.select(1)[0]) for _ in range(4)]
            assert rows == expected[start : start + 4]
            order.observe(unobserved(rows))


def test_unused_prompts_come_first_and_in_their_order():
    order, verls = make(12)
    expected = list(verls)
    rows = order.select(5).tolist()
    order.release([f"p{row}" for row in rows[2:]])
    order.observe(unobserved(rows[:2]))
    assert order.select(7).tolist() == expected[2:9]


def test_more_prompts_than_there_are_go_on_with_the_next_pass():
    """verl's own buffer refills without asking how many are left."""
    order, verls = make(3)
    rows = [int(order.select(1)[0]) for _ in range(6)]
    assert rows == [*verls, *verls]
