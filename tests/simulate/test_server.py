"""The simulated server: slots, queue, barriers, and time, by hand."""

import pytest

from verl_sara.core import UNIFORM, CommitRate, SaraThreshold, StepAllocator, StepSettings
from verl_sara.simulate.server import Server


def results(server):
    found = []
    while (result := server.next_result()) is not None:
        found.append((result[0], server.time))
    return found


def test_a_freed_slot_takes_the_next_of_the_queue():
    server = Server(2)
    for uid, tokens in (("a", 10), ("b", 4), ("c", 3), ("d", 1)):
        server.submit(uid, 0, tokens)
    # c starts when b ends at 4, d when c ends at 7
    assert results(server) == [("b", 4.0), ("c", 7.0), ("d", 8.0), ("a", 10.0)]
    assert server.busy == 10 + 4 + 3 + 1
    assert server.load == pytest.approx(18 / 20)


def test_a_full_server_may_be_slower():
    server = Server(2, slowdown=1.0)
    server.submit("a", 0, 10)
    server.submit("b", 0, 4)
    # both run for 4 tokens at half speed, a alone for 6 at time 1.5 a token
    assert results(server) == [("b", 8.0), ("a", 17.0)]


def test_drain_is_a_barrier():
    server = Server(4)
    server.submit("a", 0, 5)
    server.drain()
    server.submit("b", 0, 2)
    server.drain()
    assert server.time == 7.0
    assert server.next_result() is None


OUTCOMES = {"a": "PPFP", "c": "FPPP"}  # every other prompt is solved


def run(schedule):
    """Probe 2, n* = 3, B = 2; fails take 4 tokens, passes 1; plenty of slots."""
    allocator = StepAllocator(
        StepSettings(group_size=4, batch_size=2, probe_size=2, schedule=schedule), SaraThreshold(0.3), CommitRate()
    )
    names, server = iter("abcdefghijklmnop"), Server(64)

    def fresh():
        uid = next(names)
        return uid, uid, UNIFORM

    def rollout(uid, slot):
        passed = OUTCOMES.get(uid, "PPPP")[slot] == "P"
        return passed, 1 if passed else 4

    fates = server.run_step(allocator, fresh, rollout)
    return server.time, [uid for uid, fate in fates.items() if fate.value == "trained"]


def test_rounds_wait_and_streaming_does_not():
    # c holds the first round until 4; a's third rollout, a fail, ends at 8, its fourth at 9
    assert run("rounds") == (9.0, ["a", "c"])
    # a's third starts when its own probes are done, at 1, and its fourth at 5
    assert run("streaming") == (6.0, ["a", "c"])
