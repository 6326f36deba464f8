"""Hand-written traces of steps: what is granted in each round, what is refilled, what is trained."""

import pytest

from verl_sara.core import (
    UNIFORM,
    BetaPrior,
    CommitRate,
    Fate,
    FullGroup,
    IllegalTransition,
    SaraThreshold,
    SlotStatus,
    StepAllocator,
    StepSettings,
    run_step,
)


def make(rule=None, rate=None, **settings):
    """k = 4, B = 2, probe 2, then +1; n* = 3 (p_eff = 3/5, 2/5, 1/5 after 1, 2, 3 equal outcomes)."""
    base = {"group_size": 4, "batch_size": 2, "probe_size": 2, "increment": 1}
    return StepAllocator(StepSettings(**(base | settings)), rule or SaraThreshold(0.3), rate or CommitRate())


def trace(allocator, tapes, *, audited=()):
    """Runs a step over `tapes`, {uid: outcomes in launch order}, and returns what happened, as text.

    One line per answer of the allocator: "+2" = two fresh prompts, "a2 b2" = two rollouts each.
    """
    lines, fresh = [], iter(tapes)
    while not (advice := allocator.advance()).is_done:
        words = [f"+{advice.refill}"] if advice.refill else []
        for _ in range(advice.refill):
            uid = next(fresh)
            allocator.register(uid, f"prompt-{uid}", UNIFORM, audited=uid in audited)
        for grant in advice.grants:
            words.append(f"{grant.uid}{len(grant.slots)}")
        lines.append(" ".join(words))
        for grant in advice.grants:
            for slot in grant.slots:
                outcome = tapes[grant.uid][slot]
                if outcome == "x":
                    allocator.fail(grant.uid, slot, SlotStatus.TIMEOUT, 1)
                else:
                    allocator.record(grant.uid, slot, outcome == "P", 1)
    return lines


def ends(allocator):
    """Returns the fates as text, grouped: {"trained": "ab", ...}."""
    result = {}
    for uid, fate in allocator.finish().items():
        result[fate.value] = result.get(fate.value, "") + uid
    return result


def test_rounds():
    step = make()
    lines = trace(step, {"a": "PFPP", "b": "FFF", "c": "PPPP", "d": "FPFF"})
    assert lines == [
        "+4",  # the guess of the commit rate is p_eff(0, 0) = 3/5: 2 / 0.6 = 3.3 prompts
        "a2 b2 c2 d2",
        "a2 b1 c1",  # d waits: at the rate (2 + 2 x 0.6) / 4 = 0.8, b or c is expected to commit before it
        "d2",
    ]
    assert ends(step) == {"trained": "ad", "abandoned": "bc"}
    assert (step.num_launched, step.round_index, step.is_exhausted) == (4 + 3 + 3 + 4, 3, False)
    assert step.num_decided() == (2, 4)


def test_a_commit_behind_b_others_is_surplus_and_costs_its_probe_only():
    step = make()
    lines = trace(step, {"a": "PFPP", "b": "FPFP", "c": "FPPP", "d": "FFF"})
    assert lines == ["+4", "a2 b2 c2 d2", "a2 b2"]
    assert ends(step) == {"trained": "ab", "surplus": "c", "undecided": "d"}
    assert step.num_launched == 12


def test_trained_groups_come_in_dispatch_order_even_if_later_ones_commit_first():
    step = make()
    lines = trace(step, {"a": "FFP" + "P", "b": "PPF" + "F", "c": "PFPF", "d": "FPFP"})
    # at the rate 0.8, a and b are expected to give 1.6 of the first two, so c is completed and d is not
    assert lines == ["+4", "a2 b2 c2 d2", "a1 b1 c2", "a1 b1"]
    assert ends(step) == {"trained": "ab", "surplus": "cd"}


def test_surplus_is_trained_in_whole_mini_batches():
    tapes = {"a": "PFPP", "b": "FPFP", "c": "FPPP", "d": "PFFF", "e": "FPFP"}
    step = make(surplus="train", mini_batch_size=2, rate=CommitRate(committed=40.0, decided=100.0))
    lines = trace(step, tapes)
    assert lines == ["+5", "a2 b2 c2 d2 e2", "a2 b2 c2 d2 e2"]  # 2 / 0.404 = 4.95 prompts
    assert ends(step) == {"trained": "abcd", "surplus": "e"}


def test_waves_follow_the_commit_rate_of_the_step():
    step = make()
    tapes = dict.fromkeys("abcd", "FFFF") | dict.fromkeys("efghijklmnopqrstuvwx", "PFPF")
    lines = trace(step, tapes)
    # before the second round the four still may commit: P(a pass at n = 3 after two fails) = 1/4 each,
    # and 1 / 0.6 = 1.7 prompts are missing; then 0 of 4 committed: (0 + 2 * 0.6) / (4 + 2) = 0.2
    assert lines == ["+4", "a2 b2 c2 d2", "+2", "a1 b1 c1 d1 e2 f2", "e2 f2"]
    assert ends(step) == {"abandoned": "abcd", "trained": "ef"}


def test_the_margin_enlarges_the_wave():
    # smallest W with 0.6 W - 1.3 sqrt(0.24 W) >= 2: W = 5.7
    assert make(refill_margin=1.3).advance().refill == 6
    assert make(refill_margin=0.0).advance().refill == 4


def test_a_running_rate_replaces_the_guess():
    assert make(rate=CommitRate(committed=98.8, decided=98.0)).advance().refill == 2
    assert make(rate=CommitRate(committed=8.8, decided=98.0)).advance().refill == 20


def test_uniform_keeps_every_group():
    step = make(FullGroup(), keep_saturated=True)
    assert trace(step, {"a": "FFFF", "b": "PFPP"}) == ["+2", "a4 b4"]
    assert ends(step) == {"saturated_trained": "a", "trained": "b"}
    assert step.num_launched == 8


def test_groups_of_one_when_everything_is_kept():
    step = make(FullGroup(), keep_saturated=True, group_size=1)
    assert trace(step, {"a": "F", "b": "P"}) == ["+2", "a1 b1"]
    assert ends(step) == {"saturated_trained": "ab"}


def test_dynamic_sampling_is_full_groups_until_b_are_mixed():
    step = make(FullGroup(), probe_size=4)
    tapes = {"a": "FFFF", "b": "PFPP", "c": "PPPP", "d": "FFFF", "e": "PPFF", "f": "FPPP", "g": "FFFF"}
    lines = trace(step, tapes)
    # after 1 of 4 committed the rate is (1 + 1.2) / 6 = 0.367, and 1 / 0.367 = 2.7 prompts are missing
    assert lines == ["+4", "a4 b4 c4 d4", "+3", "e4 f4 g4"]
    assert ends(step) == {"abandoned": "acdg", "trained": "be", "surplus": "f"}


def test_groups_of_two():
    step = make(group_size=2, probe_size=1)
    # the guess is max(1/k, p_eff(0, 0)) = 1/2; after one rollout each commits with 1/3: 2 - 4/3 are missing
    lines = trace(step, {"a": "PF", "b": "FF", "c": "FP", "d": "PP", "e": "FF", "f": "PP"})
    assert lines == ["+4", "a1 b1 c1 d1", "+2", "a1 b1 c1 d1 e1 f1"]
    assert ends(step) == {"trained": "ac", "abandoned": "bd", "undecided": "ef"}


def test_prefix_groups_stop_at_their_verdict():
    step = make(group_completion="prefix")
    lines = trace(step, {"a": "PF", "b": "FFF", "c": "PPF", "d": "FP"})
    assert lines == ["+4", "a2 b2 c2 d2", "b1 c1"]
    assert ends(step) == {"trained": "ac", "abandoned": "b", "surplus": "d"}
    assert step.num_launched == 2 + 3 + 3 + 2


def test_scarce_budget_ends_the_step_and_is_not_exceeded():
    step = make(max_rollouts=8)
    lines = trace(step, {"a": "FFF", "b": "PPP", "c": "PF"})
    # two groups may start; together they leave 2 of 8, which is no full group
    assert lines == ["+2", "a2 b2", "a1 b1"]
    assert step.is_exhausted and step.num_launched == 6
    # nothing is committed, and verl can take no empty batch: saturated groups go in
    assert ends(step) == {"saturated_trained": "ab"}


@pytest.mark.parametrize(
    "on_exhausted, expected",
    [
        ("train_committed", {"abandoned": "bcd", "trained": "a"}),
        ("fill_saturated", {"trained": "a", "saturated_trained": "b", "abandoned": "cd"}),
    ],
)
def test_what_is_trained_when_the_budget_ends(on_exhausted, expected):
    step = make(max_rollouts=16, on_exhausted=on_exhausted)
    trace(step, {"a": "PFPP", "b": "FFF", "c": "PPP", "d": "FFF", "e": "PFFF"})
    assert step.is_exhausted and step.num_launched == 13
    assert ends(step) == expected


def test_budget_mode_gives_out_b_k_rollouts():
    step = make(collect="budget", batch_size=3)
    tapes = {"a": "FFF", "b": "PFPF", "c": "FFF", "d": "PPP", "e": "FFFF"}
    assert trace(step, tapes) == ["+3", "a2 b2 c2", "a1 b2 c1"]
    # 10 of 12 are spent: the remaining 2 cannot see another group through
    assert step.num_launched == 10
    assert ends(step) == {"trained": "b", "abandoned": "ac"}
    step = make(collect="budget", batch_size=4)
    assert trace(step, tapes) == ["+4", "a2 b2 c2 d2", "a1 b2 c1 d1"]
    assert step.num_launched == 13


def test_a_failed_group_is_replaced():
    step = make()
    tapes = {"a": "Px", "b": "PFxP", "c": "PFPF", "d": "FFF", "e": "FPFP", "f": "PFFF"}
    lines = trace(step, tapes)
    # d waits behind two committed groups until b fails
    assert lines == ["+4", "a2 b2 c2 d2", "b2 c2", "+2", "d1 e2 f2", "e2"]
    assert ends(step) == {"failed": "ab", "trained": "ce", "abandoned": "d", "surplus": "f"}


def test_audits_are_completed_outside_the_budget():
    step = make(max_rollouts=7, batch_size=1)
    lines = trace(step, {"a": "FFFP", "b": "PFPF"}, audited="a")
    assert lines == ["+1", "a2", "a1", "+1", "a1 b2", "b2"]
    assert step.num_launched == 7 + 1
    assert ends(step) == {"audit": "a", "trained": "b"}


def test_a_failed_audit_costs_the_budget_nothing():
    step = make(max_rollouts=12, batch_size=1)
    tapes = {"a": "FFFx", "b": "FFF", "c": "FFF", "d": "PFPF"}
    trace(step, tapes, audited="a")
    # 9 rollouts decided a, b and c; the failed tenth is not charged, yet 3 more are no group
    assert ends(step)["failed"] == "a"
    assert step._affordable() == 0
    step = make(max_rollouts=13, batch_size=1)
    trace(step, tapes, audited="a")
    assert ends(step) == {"failed": "a", "abandoned": "bc", "trained": "d"}


def test_streaming_serves_each_group_at_once():
    step = make(schedule="streaming")
    advice = step.advance()
    assert advice.refill == 4 and not advice.grants
    for uid in "abcd":
        step.register(uid, uid, UNIFORM)
    assert [(g.uid, g.slots) for g in step.advance().grants] == [(uid, range(2)) for uid in "abcd"]
    step.record("b", 1, True, 1)
    assert not step.advance().grants  # slot 0 of b is missing
    step.record("b", 0, False, 1)
    # b is committed; a, c and d still may be decided either way, yet b is among the first two
    assert [(g.uid, g.slots) for g in step.advance().grants] == [("b", range(2, 4))]
    step.record("c", 0, False, 1)
    step.record("c", 1, False, 1)
    assert [(g.uid, g.slots) for g in step.advance().grants] == [("c", range(2, 3))]


def test_streaming_launches_no_probe_once_the_batch_is_certain():
    step = make(schedule="streaming")
    tapes = dict.fromkeys("abcdefgh", "PFPF")
    trace(step, tapes)
    assert len(step.groups) == 4
    assert ends(step) == {"trained": "ab", "surplus": "cd"}


def test_the_deadline_completes_what_is_committed_and_nothing_else():
    step = make()
    step.advance()
    for uid in "abcd":
        step.register(uid, uid, UNIFORM)
    tapes = {"a": "FF", "b": "PFPF", "c": "PP", "d": "FP"}
    for grant in step.advance().grants:
        for slot in grant.slots:
            step.record(grant.uid, slot, tapes[grant.uid][slot] == "P", 1)
    step.end_admission()
    grants = step.advance().grants
    assert [(g.uid, len(g.slots)) for g in grants] == [("b", 2), ("d", 2)]
    assert step.is_exhausted
    for grant in grants:
        for slot in grant.slots:
            step.record(grant.uid, slot, True, 1)
    assert step.advance().is_done
    assert ends(step) == {"undecided": "ac", "trained": "bd"}


def test_a_deadline_before_the_first_rollout_leaves_the_step_empty():
    step = make()
    step.advance()
    for uid in "abcd":
        step.register(uid, uid, UNIFORM)
    step.end_admission()
    assert step.advance().is_done and step.is_exhausted
    assert ends(step) == {"undecided": "abcd"}
    assert step.num_launched == 0


def test_the_host_may_register_before_it_asks():
    step = make()
    for uid in "abc":
        step.register(uid, uid, UNIFORM)
    assert step.advance().refill == 1


def test_prompts_beyond_the_budget_are_not_started():
    step = make(max_rollouts=8)
    for uid in "abc":
        step.register(uid, uid, UNIFORM)
    assert [grant.uid for grant in step.advance().grants] == ["a", "b"]
    assert step.num_launched == 4


def test_registering_twice_or_late_is_refused():
    step = make(FullGroup(), keep_saturated=True)
    step.register("a", "p", UNIFORM)
    with pytest.raises(IllegalTransition, match="cannot register prompt a"):
        step.register("a", "p", UNIFORM)
    step.register("b", "p", UNIFORM)
    step.advance()
    with pytest.raises(IllegalTransition, match="8 rollouts are in flight"):
        step.finish()
    for uid in "ab":
        for slot in range(4):
            step.record(uid, slot, True, 1)
    step.finish()
    with pytest.raises(IllegalTransition, match="cannot register prompt c"):
        step.register("c", "p", UNIFORM)
    assert step.advance().is_done


def test_run_step_drives_a_step_in_process():
    step = make()
    outcomes = {"u0": "PFPP", "u1": "FFF", "u2": "PPPP", "u3": "FPFF"}
    names = iter(outcomes)

    def fresh():
        uid = next(names)
        return uid, uid, BetaPrior()

    fates = run_step(step, fresh, lambda uid, slot: (outcomes[uid][slot] == "P", 7))
    assert list(fates.values()) == [Fate.TRAINED, Fate.ABANDONED, Fate.ABANDONED, Fate.TRAINED]
    assert sum(group.num_tokens for group in step.groups.values()) == 7 * step.num_launched
