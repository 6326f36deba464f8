"""What the groups of a step teach: which counts reach the prior source and the running yield."""

import pytest

from verl_sara.core import (
    UNIFORM,
    CommitRate,
    FixedPrior,
    RunningYield,
    SaraThreshold,
    SlotStatus,
    StepAllocator,
    StepSettings,
    learn,
)


class Heard:
    """A prior source that writes down what it is told."""

    def __init__(self):
        self.groups, self.steps = {}, 0

    def observe(self, prompt_id, num_rollouts, num_successes, prefix=None):
        self.groups[prompt_id] = (num_rollouts, num_successes, prefix)

    def end_step(self):
        self.steps += 1


def run(tapes, *, audited="", **settings):
    """k = 4, B = 2, probe 2, n* = 3; a pass has 1 token, a fail 10."""
    sizes = {"group_size": 4, "batch_size": 2, "probe_size": 2} | settings
    step, fresh = StepAllocator(StepSettings(**sizes), SaraThreshold(0.3), CommitRate()), iter(tapes)
    while not (advice := step.advance()).is_done:
        for _ in range(advice.refill):
            uid = next(fresh)
            step.register(uid, uid, UNIFORM, audited=uid in audited)
        for grant in advice.grants:
            for slot in grant.slots:
                outcome = tapes[grant.uid][slot]
                if outcome == "x":
                    step.fail(grant.uid, slot, SlotStatus.TIMEOUT, 10)
                else:
                    step.record(grant.uid, slot, outcome == "P", 1 if outcome == "P" else 10)
    step.finish()
    return step.groups.values()


def test_each_kind_of_group():
    tapes = {"a": "PFPP", "b": "FFFP", "c": "xP", "d": "FPFF", "e": "PFFF", "f": "FPPP"}
    heard, meter = Heard(), RunningYield()
    learn(run(tapes, audited="b"), heard, meter)
    assert heard.steps == 1
    assert heard.groups == {
        "a": (4, 3, (2, 1)),  # completed, decided at 2
        "b": (4, 1, (3, 0)),  # abandoned at 3, its audit passed once
        "d": (4, 1, (2, 1)),
    }
    # a and d were completed; of b the three rollouts that decided it; the failed c is no evidence
    assert (meter.committed, meter.passes, meter.fails) == (2, 4, 7)
    assert (meter.pass_tokens, meter.fail_tokens) == (4, 70)


def test_undecided_and_surplus_groups_teach_the_prior_but_not_the_yield():
    tapes = {"a": "PFPP", "b": "FPFP", "c": "FPPP", "d": "FFF"}
    heard, meter = Heard(), RunningYield()
    learn(run(tapes), heard, meter)
    assert heard.groups["c"] == (2, 1, (2, 1))  # surplus: its probes only
    assert heard.groups["d"] == (2, 0, (2, 0))  # the step ended first
    assert (meter.committed, meter.passes + meter.fails) == (2, 8)


def test_kept_groups_count_in_full():
    heard = Heard()
    learn(run({"a": "FFFF", "b": "PFPP"}, keep_saturated=True), heard)
    assert heard.groups == {"a": (4, 0, (4, 0)), "b": (4, 3, (4, 3))}


def test_the_yield_counts_from_the_next_step_on():
    meter = RunningYield()
    before = meter.rate(UNIFORM, 4)
    learn(run({"a": "PFPP", "b": "FPFP", "c": "FPPP", "d": "FFF"}), FixedPrior(), meter)
    assert meter.rate(UNIFORM, 4) == pytest.approx(2 / 8) != before
