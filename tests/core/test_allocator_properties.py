"""Whatever the pool, the settings and the order of arrival: what a step always keeps."""

import json
import pickle

from hypothesis import given, settings
from hypothesis import strategies as st
from step_host import Pool, decided, drive

from verl_sara.core import (
    BetaPrior,
    CommitRate,
    EmpiricalBayesPrior,
    Fate,
    FullGroup,
    HistoryPrior,
    Phase,
    RenewalOptimal,
    RunningYield,
    SaraThreshold,
    StepAllocator,
    StepSettings,
    Verdict,
    learn,
    merge_changes,
)

RATES = st.lists(st.sampled_from([0.0, 0.02, 0.1, 0.3, 0.5, 0.8, 0.97, 1.0]), min_size=1, max_size=12)
PRIORS = st.lists(
    st.builds(BetaPrior, st.sampled_from([0.1, 1.0, 3.0]), st.sampled_from([0.1, 1.0, 5.0])),
    min_size=1,
    max_size=4,
)
RULES = st.one_of(st.just(FullGroup()), st.builds(SaraThreshold, st.sampled_from([0.0, 0.2, 0.4, 0.7, 1.0])))
SEEDS = st.integers(0, 2**20)


@st.composite
def step_settings(draw, **fixed):
    k, batch_size = draw(st.integers(2, 8)), draw(st.integers(1, 5))
    chosen = {
        "group_size": k,
        "batch_size": batch_size,
        "probe_size": draw(st.integers(1, k + 1)),
        "increment": draw(st.integers(1, 3)),
        "keep_saturated": draw(st.sampled_from([False, False, False, True])),
        "collect": draw(st.sampled_from(["effective_groups", "effective_groups", "budget"])),
        "group_completion": draw(st.sampled_from(["full", "prefix"])),
        "schedule": draw(st.sampled_from(["rounds", "streaming"])),
        "max_rollouts": draw(st.integers(1, 6)) * batch_size * k + draw(st.integers(0, k)),
        "refill_margin": draw(st.sampled_from([0.0, 1.3])),
        "surplus": draw(st.sampled_from(["discard", "train"])),
        "mini_batch_size": draw(st.integers(1, 3)),
        "on_exhausted": draw(st.sampled_from(["train_committed", "fill_saturated"])),
    }
    is_whole = (chosen["collect"], chosen["group_completion"]) == ("effective_groups", "full")
    chosen["train_audited"] = is_whole and draw(st.booleans())
    return StepSettings(**(chosen | fixed))


def charged(allocator):
    """Rollouts that count against the budget: all but the completions of audited groups."""
    return sum(
        group.verdict_length if group.verdict is Verdict.ABANDON else group.num_launched
        for group in allocator.groups.values()
    )


def check_running(allocator):
    groups = allocator.groups.values()
    s = allocator.settings
    assert charged(allocator) <= s.max_rollouts
    assert allocator.num_in_flight == sum(group.num_in_flight for group in groups)
    assert allocator.num_launched == sum(group.num_launched for group in groups)
    assert all(group.num_launched <= s.group_size for group in groups)


def check_ended(allocator, fates):
    s, groups = allocator.settings, allocator.groups
    assert allocator.num_in_flight == 0 and allocator.advance().is_done
    assert list(fates) == list(groups)
    assert sum(groups[uid].num_launched for uid in fates) == allocator.num_launched
    trained = [groups[uid] for uid, fate in fates.items() if fate is Fate.TRAINED]
    saturated = [groups[uid] for uid, fate in fates.items() if fate is Fate.SATURATED_TRAINED]
    for group in trained + saturated:
        rows = [slot.passed for slot in group.slots]
        assert None not in rows and len(rows) >= 2
        if s.group_completion == "full" and group.phase is Phase.COMPLETE:
            assert len(rows) == s.group_size
    assert all(group.is_mixed for group in trained)
    num_extra = len(trained) + len(saturated) - s.batch_size
    if s.collect == "budget":
        assert sum(group.num_launched for group in trained + saturated) <= s.batch_size * s.group_size
        assert {uid for uid, group in groups.items() if group.phase is Phase.COMPLETE} <= {
            group.uid for group in trained + saturated
        }
    else:
        assert num_extra <= 0 or (s.surplus == "train" and num_extra % s.mini_batch_size == 0)
    if saturated and not s.keep_saturated:
        assert s.on_exhausted == "fill_saturated" or not trained
        assert allocator.is_exhausted
    if s.collect == "effective_groups" and not allocator.is_exhausted:
        assert len(trained) + len(saturated) >= s.batch_size
    for group in groups.values():
        if group.verdict is Verdict.ABANDON:
            prefix = [slot.passed for slot in group.slots[: group.verdict_length]]
            length = group.lengths.passed if prefix[0] else group.lengths.fail
            assert len(set(prefix)) == 1 and len(prefix) == length
        if fates[group.uid] is Fate.SURPLUS:
            assert group.verdict is Verdict.COMMIT
        if fates[group.uid] is Fate.TRAINED and group.verdict is Verdict.ABANDON:
            assert s.train_audited and group.audited and len(group.slots) == s.group_size
        if fates[group.uid] is Fate.AUDIT:
            assert group.audited and len(group.slots) == s.group_size


@settings(max_examples=250, deadline=None)
@given(step_settings(), RULES, RATES, PRIORS, SEEDS, SEEDS, st.sampled_from([0.0, 0.0, 0.03, 0.5]))
def test_a_step_ends_and_accounts_for_every_rollout(s, rule, rates, priors, seed, order, failure_rate):
    pool = Pool(rates, seed, failure_rate=failure_rate, priors=priors, audit_rate=0.2)
    allocator = StepAllocator(s, rule, CommitRate())
    check_ended(allocator, drive(allocator, pool, seed=order, check=check_running))


@settings(max_examples=100, deadline=None)
@given(step_settings(), RULES, RATES, SEEDS, SEEDS, st.integers(0, 60))
def test_a_deadline_at_any_point_ends_the_step(s, rule, rates, seed, order, after):
    pool = Pool(rates, seed, failure_rate=0.02, audit_rate=0.2)
    allocator = StepAllocator(s, rule, CommitRate())
    fates = drive(allocator, pool, seed=order, end_admission_after=after, check=check_running)
    check_ended(allocator, fates)


@settings(max_examples=150, deadline=None)
@given(step_settings(schedule="rounds"), RULES, RATES, SEEDS, SEEDS, st.sampled_from([0.0, 0.1]))
def test_rounds_do_not_depend_on_the_order_of_arrival(s, rule, rates, seed, order, failure_rate):
    runs = []
    for arrival in (None, order):
        allocator = StepAllocator(s, rule, CommitRate())
        pool = Pool(rates, seed, failure_rate=failure_rate, audit_rate=0.2)
        fates = drive(allocator, pool, seed=arrival)
        runs.append((fates, decided(allocator), allocator.num_launched, allocator.num_decided()))
    assert runs[0] == runs[1]


@settings(max_examples=200, deadline=None)
@given(step_settings(schedule="streaming"), RULES, RATES, SEEDS, SEEDS, SEEDS, st.sampled_from([0.0, 0.1]))
def test_streaming_verdicts_and_trained_groups_do_not_depend_on_arrival(
    s, rule, rates, seed, order, other_order, failure_rate
):
    runs = []
    for arrival in (order, other_order):
        allocator = StepAllocator(s, rule, CommitRate())
        fates = drive(allocator, Pool(rates, seed, failure_rate=failure_rate, audit_rate=0.2), seed=arrival)
        # how many surplus groups are trained is a matter of timing; the first B are not
        trained = [uid for uid, fate in fates.items() if fate in (Fate.TRAINED, Fate.SATURATED_TRAINED)]
        runs.append((allocator, trained[: s.batch_size]))
    (first, trained), (second, other_trained) = runs
    verdicts, other_verdicts = decided(first), decided(second)
    assert all(verdicts[uid] == other_verdicts[uid] for uid in verdicts.keys() & other_verdicts.keys())
    if not failure_rate or not (first.is_exhausted or second.is_exhausted):
        assert trained == other_trained


@settings(max_examples=60, deadline=None)
@given(step_settings(), RULES, RATES, SEEDS, SEEDS, st.integers(0, 40))
def test_a_pickled_step_goes_on_as_if_it_had_not_stopped(s, rule, rates, seed, order, after):
    ends = []
    for stop in (None, after):
        allocator, pool = StepAllocator(s, rule, CommitRate()), Pool(rates, seed, audit_rate=0.2)
        events = 0

        def check(running, stop=stop):
            nonlocal events
            events += 1
            if events == stop:
                copy = pickle.loads(pickle.dumps(running))
                assert copy == running
                for name in StepAllocator.__slots__:
                    setattr(running, name, getattr(copy, name))

        fates = drive(allocator, pool, seed=order, check=check)
        ends.append((fates, allocator.num_launched, allocator.round_index))
    assert ends[0] == ends[1]


@settings(max_examples=60, deadline=None)
@given(RATES, SEEDS, st.integers(2, 6), st.integers(1, 4))
def test_dynamic_sampling_trains_the_first_effective_groups(rates, seed, k, batch_size):
    s = StepSettings(group_size=k, batch_size=batch_size, probe_size=k)
    allocator = StepAllocator(s, FullGroup(), CommitRate())
    pool = Pool(rates, seed)
    fates = drive(allocator, pool)
    trained = [uid for uid, fate in fates.items() if fate is Fate.TRAINED]
    mixed = [uid for uid in allocator.groups if len({pool.result(uid, slot)[1] for slot in range(k)}) == 2]
    assert trained == mixed[:batch_size]


class Run(Pool):
    """Steps of RenewalOptimal with the history prior; every sixth prompt is the same."""

    def __init__(self, s, rates, seed):
        super().__init__(rates, seed, audit_rate=0.2)
        self.settings, self.commit_rate, self.meter = s, CommitRate(), RunningYield()
        self.history = HistoryPrior(EmpiricalBayesPrior(s.group_size), 0.9)
        self.rule = RenewalOptimal(self.meter, 0.4, 2, s.group_completion == "full")

    def register(self, allocator):
        i, prompt_id = self.num_prompts, f"p{self.num_prompts % 6}"
        self.num_prompts += 1
        allocator.register(f"u{i}", prompt_id, self.history.prior_for(prompt_id), audited=i % 5 == 0)

    def run_step(self, order):
        """Returns the fates and what the priors made of the prompts."""
        allocator = StepAllocator(self.settings, self.rule, self.commit_rate)
        fates = drive(allocator, self, seed=order)
        self.commit_rate.end_step(*allocator.num_decided())
        learn(allocator.groups.values(), self.history, self.meter)
        return fates, [(group.prior, group.lengths, group.verdict) for group in allocator.groups.values()]

    def state_dict(self):
        return {name: getattr(self, name).state_dict() for name in ("history", "meter", "commit_rate")}

    def restored(self):
        """Returns a new run that goes on from this one's checkpoint."""
        other = Run(self.settings, self.rates, self.seed)
        other.num_prompts = self.num_prompts
        for name, state in json.loads(json.dumps(self.state_dict())).items():
            getattr(other, name).load_state_dict(state)
        return other


@settings(max_examples=60, deadline=None)
@given(step_settings(keep_saturated=False), RATES, SEEDS, SEEDS, st.integers(0, 4))
def test_a_run_restored_between_two_steps_goes_on_as_if_it_had_not_stopped(s, rates, seed, order, stop):
    whole, parts, kept = Run(s, rates, seed), Run(s, rates, seed), {}
    for step in range(5):
        if step == stop:
            parts = parts.restored()
        assert whole.run_step(order + step) == parts.run_step(order + step)
        # what a host has that is told the state once, and after that the changes only
        kept = merge_changes(kept, parts.history.changes() if step != stop else parts.history.state_dict())
        assert kept == parts.history.state_dict()
    assert whole.state_dict() == parts.state_dict()
