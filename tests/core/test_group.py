"""One group: the transition table, launch-order verdicts, failures, and errors that change nothing."""

import copy
from itertools import permutations, product

import pytest

from verl_sara.core import (
    TRANSITIONS,
    UNIFORM,
    Event,
    Group,
    IllegalTransition,
    Phase,
    Reason,
    SlotStatus,
    StopLengths,
    Verdict,
    prob_keep,
    stage_boundaries,
)


def make_group(k=4, n0=3, n1=3, probe=2, **changes):
    return Group(
        uid="u",
        prompt_id="p",
        index=0,
        group_size=k,
        prior=UNIFORM,
        lengths=StopLengths(n0, n1),
        boundaries=stage_boundaries(k, probe, 1),
        **changes,
    )


def feed(group, outcomes):
    """Launches what the group asks for and reports in launch order until the text is used up."""
    outcomes = iter(outcomes)
    while count := group.next_grant():
        for slot in group.launch(count, 0):
            outcome = next(outcomes, None)
            if outcome is None:
                return group
            if outcome in "PF":
                group.record(slot, outcome == "P", 5)
            else:
                group.fail(slot, SlotStatus.TIMEOUT, 5)
    return group


def closed(group):
    group.close()
    return group


def audited(group):
    group.audit()
    return group


IN_PHASE = {
    Phase.WAITING: lambda: make_group(),
    Phase.PROBING: lambda: feed(make_group(), "F"),
    Phase.COMMITTED: lambda: feed(make_group(), "FP"),
    Phase.COMPLETE: lambda: feed(make_group(), "FPPF"),
    Phase.ABANDONED: lambda: feed(make_group(), "FFF"),
    Phase.AUDITING: lambda: audited(feed(make_group(), "FFF")),
    Phase.AUDITED: lambda: feed(audited(feed(make_group(), "FFF")), "P"),
    Phase.FAILED: lambda: feed(make_group(), "Fx"),
    Phase.UNUSED: lambda: closed(make_group()),
    Phase.UNDECIDED: lambda: closed(feed(make_group(), "F")),
    Phase.UNFINISHED: lambda: closed(feed(make_group(), "FP")),
}


@pytest.mark.parametrize("phase", Phase)
def test_every_phase_is_reached(phase):
    assert IN_PHASE[phase]().phase is phase


@pytest.mark.parametrize("phase, event", list(product(Phase, Event)))
def test_every_event_moves_by_the_table_or_raises_and_changes_nothing(phase, event):
    group = IN_PHASE[phase]()
    before = copy.deepcopy(group)
    if (phase, event) in TRANSITIONS:
        group._fire(event)
        assert group.phase is TRANSITIONS[phase, event]
    else:
        with pytest.raises(IllegalTransition, match=f"no {event.value} in phase {phase.value}"):
            group._fire(event)
        assert group == before


@pytest.mark.parametrize("phase", Phase)
@pytest.mark.parametrize(
    "misuse",
    [
        lambda g: g.launch(0, 0),
        lambda g: g.launch(g.group_size + 1, 0),
        lambda g: g.record(g.group_size, True, 1),
        lambda g: g.record(-1, True, 1),
        lambda g: g.fail(g.group_size, SlotStatus.LOST, 1),
    ],
)
def test_misuse_raises_and_changes_nothing(phase, misuse):
    group = IN_PHASE[phase]()
    before = copy.deepcopy(group)
    with pytest.raises(IllegalTransition):
        misuse(group)
    assert group == before


@pytest.mark.parametrize("phase", [p for p in Phase if p not in (Phase.WAITING, Phase.UNUSED)])
def test_a_second_report_of_a_slot_raises_and_changes_nothing(phase):
    group = IN_PHASE[phase]()
    before = copy.deepcopy(group)
    with pytest.raises(IllegalTransition, match="slot 0 was reported twice"):
        group.record(0, True, 1)
    with pytest.raises(IllegalTransition, match="slot 0 was reported twice"):
        group.fail(0, SlotStatus.LOST, 1)
    assert group == before


@pytest.mark.parametrize("phase", [p for p in Phase if p is not Phase.ABANDONED])
def test_only_an_abandoned_group_is_audited(phase):
    group = IN_PHASE[phase]()
    before = copy.deepcopy(group)
    with pytest.raises(IllegalTransition, match="no audit"):
        group.audit()
    assert group == before


def test_reports_with_impossible_values_change_nothing():
    group = make_group()
    group.launch(2, 0)
    before = copy.deepcopy(group)
    with pytest.raises(ValueError, match="-1 tokens; allowed: >= 0"):
        group.record(0, True, -1)
    for status in (SlotStatus.OK, SlotStatus.IN_FLIGHT):
        with pytest.raises(ValueError, match=f"failed with status {status.value}; allowed: timeout"):
            group.fail(0, status, 1)
    assert group == before


class NumpyLikeBool:
    """True, but not the constant: what numpy comparisons return."""

    def __bool__(self):
        return True


def test_outcomes_are_taken_by_truth_not_by_identity():
    group = make_group()
    group.launch(2, 0)
    group.record(0, NumpyLikeBool(), 1)
    group.record(1, 0, 1)
    assert group.verdict is Verdict.COMMIT
    assert [slot.passed for slot in group.slots] == [True, False]


@pytest.mark.parametrize(
    "outcomes, phase, verdict, reason, length, launched",
    [
        ("FP" + "FF", Phase.COMPLETE, Verdict.COMMIT, Reason.MIXED, 2, 4),
        ("FFP" + "F", Phase.COMPLETE, Verdict.COMMIT, Reason.MIXED, 3, 4),
        ("PPF" + "F", Phase.COMPLETE, Verdict.COMMIT, Reason.MIXED, 3, 4),
        ("FFF", Phase.ABANDONED, Verdict.ABANDON, Reason.ALL_FAIL, 3, 3),
        ("PPP", Phase.ABANDONED, Verdict.ABANDON, Reason.ALL_PASS, 3, 3),
        ("Px", Phase.FAILED, Verdict.NONE, Reason.FAILED, None, 2),
        ("PFxP", Phase.FAILED, Verdict.NONE, Reason.FAILED, None, 4),
        ("PFPx", Phase.FAILED, Verdict.NONE, Reason.FAILED, None, 4),
    ],
)
def test_verdicts(outcomes, phase, verdict, reason, length, launched):
    group = feed(make_group(), outcomes)
    assert (group.phase, group.verdict, group.reason) == (phase, verdict, reason)
    assert (group.verdict_length, group.num_launched) == (length, launched)
    assert group.is_settled
    assert group.num_tokens == 5 * launched


def test_sides_have_their_own_lengths():
    assert feed(make_group(n0=2, n1=4), "FF").reason is Reason.ALL_FAIL
    assert feed(make_group(n0=2, n1=4), "PPPF").reason is Reason.MIXED
    assert feed(make_group(n0=2, n1=4), "PPPP").reason is Reason.ALL_PASS
    assert feed(make_group(n0=4, n1=2), "PP").reason is Reason.ALL_PASS


def test_p_eff_at_the_verdict():
    assert feed(make_group(), "FP").p_eff_at_verdict == 1.0
    assert feed(make_group(), "FFF").p_eff_at_verdict == pytest.approx(1 / 5)
    assert feed(make_group(n0=4, n1=4), "FFFF").p_eff_at_verdict == 0.0


def test_prefix_groups_train_what_was_launched():
    group = feed(make_group(fill=False), "FFP")
    assert (group.phase, group.num_launched) == (Phase.COMPLETE, 3)


def test_a_prefix_group_waits_for_its_stragglers():
    group = make_group(probe=4, n0=4, n1=4, fill=False)
    group.launch(4, 0)
    group.record(3, True, 1)
    group.record(0, False, 1)
    assert group.phase is Phase.COMMITTED
    group.record(1, True, 1)
    group.record(2, True, 1)
    assert group.phase is Phase.COMPLETE


def test_kept_groups_start_full_and_committed():
    group = feed(make_group(keep_saturated=True), "FFFF")
    assert (group.phase, group.reason, group.num_launched) == (Phase.COMPLETE, Reason.KEPT, 4)
    single = feed(make_group(k=1, n0=1, n1=1, probe=1, keep_saturated=True), "P")
    assert single.phase is Phase.COMPLETE


def test_an_audit_completes_an_abandoned_group_and_keeps_its_verdict():
    group = feed(make_group(), "PPP")
    group.audit()
    assert group.next_grant() == 1
    feed(group, "F")
    assert (group.phase, group.verdict, group.reason, group.verdict_length) == (
        Phase.AUDITED,
        Verdict.ABANDON,
        Reason.ALL_PASS,
        3,
    )
    full = feed(make_group(n0=4, n1=4), "FFFF")
    full.audit()
    assert full.phase is Phase.AUDITED


def test_an_audited_group_that_is_mixed_is_recovered_only_if_asked():
    for outcome, recover, phase in (
        ("P", True, Phase.COMPLETE), ("F", True, Phase.AUDITED), ("P", False, Phase.AUDITED)
    ):  # fmt: skip
        group = feed(make_group(audited=True, recover=recover), "FFF")
        assert group.may_recover is recover
        feed(audited(group), outcome)
        assert (group.phase, group.verdict, group.reason) == (phase, Verdict.ABANDON, Reason.ALL_FAIL)
        assert not group.may_recover


@pytest.mark.parametrize("eps", [0.0, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("n0, n1", [(2, 2), (4, 3), (5, 5), (2, 5)])
def test_the_inverse_keep_probability_undoes_the_selection_of_every_composition(n0, n1, eps):
    """All outcomes of k = 5, audited with probability eps: the weights of the trained groups add up to all."""
    k = 5
    weights, totals = [0.0] * (k + 1), [0] * (k + 1)
    for outcomes in product("PF", repeat=k):
        s = outcomes.count("P")
        totals[s] += 1
        weight = 0 < s < k and 1 / prob_keep(s, group_size=k, fail_length=n0, pass_length=n1, recovered=eps)
        for is_audited, chance in ((True, eps), (False, 1 - eps)):
            group = feed(make_group(k, n0, n1, audited=is_audited, recover=True), outcomes)
            if group.may_recover:
                feed(audited(group), outcomes[group.num_launched :])
            assert group.is_settled
            weights[s] += chance * weight * (group.phase is Phase.COMPLETE)
    assert weights[1:k] == pytest.approx(totals[1:k])
    assert weights[0] == weights[k] == 0.0


def test_a_failed_audit_keeps_the_verdict():
    group = feed(audited(feed(make_group(), "FFF")), "x")
    assert (group.phase, group.verdict, group.verdict_length) == (Phase.FAILED, Verdict.ABANDON, 3)


@pytest.mark.parametrize("probe", [2, 4])
@pytest.mark.parametrize("fill", [True, False])
@pytest.mark.parametrize("n0, n1", [(4, 4), (2, 4), (3, 2), (2, 2)])
def test_the_end_does_not_depend_on_the_order_of_arrival(n0, n1, fill, probe):
    """All outcomes of k = 4, failures among them; an order says which slot in flight returns first."""
    n0, n1 = max(n0, probe), max(n1, probe)
    for outcomes in product("PFx", repeat=4):
        ends = set()
        for order in permutations(range(4)):
            group = make_group(n0=n0, n1=n1, probe=probe, fill=fill)
            in_flight = set()
            while True:
                if count := group.next_grant():
                    in_flight.update(group.launch(count, 0))
                if not in_flight:
                    break
                slot = min(in_flight, key=order.index)
                in_flight.remove(slot)
                if outcomes[slot] == "x":
                    group.fail(slot, SlotStatus.LOST, 1)
                else:
                    group.record(slot, outcomes[slot] == "P", 1)
            ends.add((group.phase, group.verdict, group.reason, group.verdict_length))
        assert len(ends) == 1, (outcomes, ends)


def test_commit_does_not_wait_but_abandon_does():
    group = make_group(n0=3, n1=3, probe=3)
    group.launch(3, 0)
    group.record(2, False, 9)
    group.record(1, False, 9)
    assert group.phase is Phase.PROBING
    group.record(0, True, 1)
    assert group.phase is Phase.COMMITTED


def test_late_results_of_a_failed_group_are_recorded():
    group = make_group()
    group.launch(2, 0)
    group.fail(0, SlotStatus.TIMEOUT, 7)
    assert not group.is_settled
    group.record(1, True, 5)
    assert group.is_settled and group.num_tokens == 12
