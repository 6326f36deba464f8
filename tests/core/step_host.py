"""Hosts for tests: pools of outcomes, and a driver that reports rollouts in any order."""

import random

from verl_sara.core import UNIFORM, Phase, SlotStatus, Verdict


class Pool:
    """Endless prompts whose outcomes depend on prompt and slot only.

    Attributes:
      rates: Pass rates, repeated endlessly.
      failure_rate: Share of rollouts that fail without an outcome.
      priors: Priors, repeated endlessly.
    """

    def __init__(self, rates, seed, *, failure_rate=0.0, priors=(UNIFORM,), audit_rate=0.0):
        self.rates, self.seed, self.failure_rate = rates, seed, failure_rate
        self.priors, self.audit_rate = priors, audit_rate
        self.num_prompts = 0

    def register(self, allocator):
        """Registers the next prompt."""
        i = self.num_prompts
        self.num_prompts += 1
        audited = random.Random(f"{self.seed}/{i}/audit").random() < self.audit_rate
        allocator.register(f"u{i}", f"p{i}", self.priors[i % len(self.priors)], audited=audited)

    def result(self, uid, slot):
        """Returns (status, passed) of one rollout."""
        draw = random.Random(f"{self.seed}/{uid}/{slot}")
        if draw.random() < self.failure_rate:
            return draw.choice([SlotStatus.TIMEOUT, SlotStatus.GRADER_ERROR, SlotStatus.LOST]), None
        return SlotStatus.OK, draw.random() < self.rates[int(uid[1:]) % len(self.rates)]


def drive(allocator, pool, *, seed=None, end_admission_after=None, check=lambda allocator: None):
    """Runs a step, reporting rollouts in launch order or, with a seed, in random order.

    Returns the fates. `check` is called after every event; `end_admission_after` counts reports.
    """
    rng = None if seed is None else random.Random(seed)
    in_flight, num_reports = [], 0
    for _ in range(100_000):
        if num_reports == end_admission_after:
            allocator.end_admission()
        advice = allocator.advance()
        check(allocator)
        if advice.is_done:
            assert not in_flight and not advice.grants and not advice.refill
            return allocator.finish()
        for _ in range(advice.refill):
            pool.register(allocator)
        in_flight += [(grant.uid, slot) for grant in advice.grants for slot in grant.slots]
        if not in_flight:
            assert advice.refill, "the step neither ended nor asked for anything"
            continue
        # between two questions, one or several results arrive
        for _ in range(1 if rng is None else rng.randint(1, min(4, len(in_flight)))):
            uid, slot = in_flight.pop(0 if rng is None else rng.randrange(len(in_flight)))
            report(allocator, pool, uid, slot)
            num_reports += 1
            check(allocator)
    raise AssertionError("the step does not end")


def report(allocator, pool, uid, slot):
    """Reports one rollout as the pool has it."""
    status, passed = pool.result(uid, slot)
    if status is SlotStatus.OK:
        allocator.record(uid, slot, passed, 10)
    else:
        allocator.fail(uid, slot, status, 10)


def decided(allocator):
    """Returns {uid: (verdict, reason, length)} of the groups that have a verdict."""
    return {
        uid: (group.verdict, group.reason, group.verdict_length)
        for uid, group in allocator.groups.items()
        if group.verdict is not Verdict.NONE and group.phase is not Phase.FAILED
    }
