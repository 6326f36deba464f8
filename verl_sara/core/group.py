"""One prompt's group of rollouts: a state machine kept as a transition table.

Theory of operation. A group is an ordered list of slots, numbered in the order in which their
rollouts were granted (launch order). The allocator grants slots (`launch`), the host runs them in
any order and reports each exactly once (`record` or `fail`), and the group moves by itself:

- COMMIT as soon as a pass among slots 1..n0 and a fail among slots 1..n1 have both returned.
- ABANDON only when slots 1..n0 have all returned as fails, or slots 1..n1 all as passes.

Both conditions look at launch-order outcomes only, so the same outcomes in any order of arrival
end in the same verdict. Deciding on whichever rollouts came back first would favour short answers
and break the reliability bound. n0 and n1 are fixed before the first rollout and lie on stage
boundaries, so no rollout is granted beyond the length that decides it.

A slot that cannot be graded fails its group: replacing it would condition the group on what made
it fail. Late results of a group that already ended are still recorded, because they were paid for.
An event that is not in the table raises and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from verl_sara.core.errors import IllegalTransition
from verl_sara.core.posterior import BetaPrior, prob_effective
from verl_sara.core.stopping import StopLengths


class Phase(str, Enum):
    """Where a group stands. The last seven are terminal, ABANDONED unless it is audited."""

    WAITING = "waiting"
    PROBING = "probing"
    COMMITTED = "committed"
    AUDITING = "auditing"
    COMPLETE = "complete"
    ABANDONED = "abandoned"
    AUDITED = "audited"
    FAILED = "failed"
    UNDECIDED = "undecided"
    UNFINISHED = "unfinished"
    UNUSED = "unused"


class Event(str, Enum):
    """What can happen to a group."""

    START = "start"
    COMMIT = "commit"
    ABANDON = "abandon"
    AUDIT = "audit"
    FILL = "fill"
    RECOVER = "recover"
    FAIL = "fail"
    CLOSE = "close"


TRANSITIONS: dict[tuple[Phase, Event], Phase] = {
    (Phase.WAITING, Event.START): Phase.PROBING,
    (Phase.WAITING, Event.CLOSE): Phase.UNUSED,
    (Phase.PROBING, Event.COMMIT): Phase.COMMITTED,
    (Phase.PROBING, Event.ABANDON): Phase.ABANDONED,
    (Phase.PROBING, Event.FAIL): Phase.FAILED,
    (Phase.PROBING, Event.CLOSE): Phase.UNDECIDED,
    (Phase.COMMITTED, Event.FILL): Phase.COMPLETE,
    (Phase.COMMITTED, Event.FAIL): Phase.FAILED,
    (Phase.COMMITTED, Event.CLOSE): Phase.UNFINISHED,
    (Phase.ABANDONED, Event.AUDIT): Phase.AUDITING,
    (Phase.AUDITING, Event.FILL): Phase.AUDITED,
    (Phase.AUDITING, Event.RECOVER): Phase.COMPLETE,
    (Phase.AUDITING, Event.FAIL): Phase.FAILED,
}

OPEN_PHASES = frozenset({Phase.WAITING, Phase.PROBING, Phase.COMMITTED, Phase.AUDITING})


class Verdict(str, Enum):
    """What the stopping rule said about a group."""

    NONE = "none"
    COMMIT = "commit"
    ABANDON = "abandon"


class Reason(str, Enum):
    """Why a group got its verdict, or why it has none."""

    MIXED = "mixed"
    ALL_FAIL = "all_fail"
    ALL_PASS = "all_pass"
    KEPT = "kept"
    FAILED = "failed"
    STEP_ENDED = "step_ended"


class SlotStatus(str, Enum):
    """How a rollout ended. Everything but OK carries no outcome."""

    IN_FLIGHT = "in_flight"
    OK = "ok"
    TIMEOUT = "timeout"
    ERROR = "error"
    GRADER_ERROR = "grader_error"
    LOST = "lost"


@dataclass(slots=True)
class Slot:
    """One granted rollout.

    Attributes:
      round_index: Round in which it was granted, 0 = the step's first.
      status: How it ended.
      passed: Outcome, None unless status is OK.
      num_tokens: Tokens generated for it, retries included.
    """

    round_index: int
    status: SlotStatus = SlotStatus.IN_FLIGHT
    passed: bool | None = None
    num_tokens: int = 0


@dataclass(slots=True)
class Group:
    """All rollouts of one prompt in one step.

    Attributes:
      uid: Identity of this dispatch of the prompt.
      prompt_id: Identity of the prompt across steps.
      index: Dispatch order within the step, from 0.
      group_size: k >= 1.
      prior: Beta prior on the pass rate when the group started.
      lengths: n0 and n1 in [1, k], on stage boundaries.
      boundaries: Lengths at which the next grant falls while undecided; the last is k.
      keep_saturated: True commits the group at once, whatever its outcomes (uniform collection).
      fill: True completes a committed group to k, False trains on what was launched.
      audited: True completes the group if it is abandoned, to measure wrong abandons.
      recover: True makes an audited group that turned out mixed a complete one, to be trained; its
        verdict stays ABANDON.
      phase: Where the group stands.
      verdict: What the rule said, with its `reason`, its `p_eff_at_verdict` and its
        `verdict_length`, the launched rollouts it was given at.
      slots: The granted rollouts in launch order.
      num_in_flight: Rollouts granted and not yet reported.
      num_successes: Passes among the returned rollouts.
      num_failures: Fails among the returned rollouts.
    """

    uid: str
    prompt_id: str
    index: int
    group_size: int
    prior: BetaPrior
    lengths: StopLengths
    boundaries: Sequence[int]
    keep_saturated: bool = False
    fill: bool = True
    audited: bool = False
    recover: bool = False
    phase: Phase = Phase.WAITING
    verdict: Verdict = Verdict.NONE
    reason: Reason | None = None
    p_eff_at_verdict: float | None = None
    verdict_length: int | None = None
    slots: list[Slot] = field(default_factory=list)
    num_in_flight: int = 0
    num_successes: int = 0
    num_failures: int = 0

    # ---- what the allocator reads -------------------------------------------------------------

    @property
    def num_launched(self) -> int:
        """Rollouts granted so far."""
        return len(self.slots)

    @property
    def is_mixed(self) -> bool:
        """Whether both outcomes were seen."""
        return self.num_successes > 0 and self.num_failures > 0

    @property
    def num_tokens(self) -> int:
        """Tokens generated for the group so far."""
        return sum(slot.num_tokens for slot in self.slots)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is in flight and no further grant can come."""
        return self.num_in_flight == 0 and self.phase not in OPEN_PHASES

    @property
    def may_recover(self) -> bool:
        """Whether the group is abandoned and its audit may still make it a complete one."""
        return self.recover and self.audited and self.phase in (Phase.ABANDONED, Phase.AUDITING)

    def next_grant(self) -> int:
        """Returns how many further rollouts the group can use now; 0 while it waits for results."""
        launched = self.num_launched
        if self.phase is Phase.WAITING:
            return self.group_size if self.keep_saturated else self.boundaries[0]
        if self.phase is Phase.PROBING and self.num_in_flight == 0:
            return next(b for b in self.boundaries if b > launched) - launched
        if self.phase is Phase.AUDITING or (self.phase is Phase.COMMITTED and self.fill):
            return self.group_size - launched
        return 0

    # ---- events -------------------------------------------------------------------------------

    def launch(self, count: int, round_index: int) -> range:
        """Grants `count` further slots and returns their numbers, from 0, in launch order.

        Raises:
          IllegalTransition: If the group is not open or the grant would exceed k.
        """
        if self.phase not in OPEN_PHASES or not 1 <= count <= self.group_size - self.num_launched:
            raise IllegalTransition(
                f"group {self.uid}: cannot launch {count} more in phase {self.phase.value} "
                f"with {self.num_launched} of {self.group_size} launched"
            )
        if self.phase is Phase.WAITING:
            self._fire(Event.START)
            if self.keep_saturated:
                self._fire(Event.COMMIT)
                self.verdict, self.reason = Verdict.COMMIT, Reason.KEPT
        first = self.num_launched
        self.slots.extend(Slot(round_index) for _ in range(count))
        self.num_in_flight += count
        return range(first, first + count)

    def record(self, slot: int, passed: bool, num_tokens: int) -> None:
        """Takes the outcome of one rollout. An empty response is a wrong answer, not a failure."""
        self._return(slot, SlotStatus.OK, bool(passed), num_tokens)
        self._decide()

    def fail(self, slot: int, status: SlotStatus, num_tokens: int) -> None:
        """Takes a rollout that has no outcome; an undecided or committed group is dropped.

        Such a group has no verdict, whether or not it was committed when the failure arrived.
        """
        if status in (SlotStatus.OK, SlotStatus.IN_FLIGHT):
            allowed = "timeout, grader_error, lost"
            raise ValueError(f"group {self.uid}: failed with status {status.value}; allowed: {allowed}")
        self._return(slot, status, None, num_tokens)
        if (self.phase, Event.FAIL) in TRANSITIONS:
            if self.phase is not Phase.AUDITING:
                self.verdict, self.verdict_length, self.p_eff_at_verdict = Verdict.NONE, None, None
            self._fire(Event.FAIL)
            self.reason = Reason.FAILED

    def audit(self) -> None:
        """Reopens an abandoned group, so that it is completed to k outside the budget."""
        self._fire(Event.AUDIT)
        self._fill_if_complete()

    def close(self) -> None:
        """Ends the group because the step ended. No effect on a terminal one."""
        if (self.phase, Event.CLOSE) in TRANSITIONS:
            self._fire(Event.CLOSE)
            self.reason = self.reason or Reason.STEP_ENDED

    # ---- decisions ----------------------------------------------------------------------------

    def _decide(self) -> None:
        if self.phase is Phase.PROBING:
            n0, n1 = self.lengths.fail, self.lengths.passed
            if self._any(n0, True) and self._any(n1, False):
                self._give(Verdict.COMMIT, Reason.MIXED, self.num_launched)
            elif self._all(n0, False):
                self._give(Verdict.ABANDON, Reason.ALL_FAIL, n0)
            elif self._all(n1, True):
                self._give(Verdict.ABANDON, Reason.ALL_PASS, n1)
        self._fill_if_complete()

    def _any(self, length: int, passed: bool) -> bool:
        return any(slot.passed is passed for slot in self.slots[:length])

    def _all(self, length: int, passed: bool) -> bool:
        return self.num_launched >= length and all(slot.passed is passed for slot in self.slots[:length])

    def _give(self, verdict: Verdict, reason: Reason, length: int) -> None:
        self._fire(Event.COMMIT if verdict is Verdict.COMMIT else Event.ABANDON)
        self.verdict, self.reason, self.verdict_length = verdict, reason, length
        successes = {Reason.ALL_FAIL: 0, Reason.ALL_PASS: length}.get(reason)
        self.p_eff_at_verdict = (
            1.0
            if successes is None
            else prob_effective(length, successes, group_size=self.group_size, prior=self.prior)
        )

    def _fill_if_complete(self) -> None:
        target = self.group_size if self.fill or self.phase is Phase.AUDITING else self.num_launched
        is_full = self.num_launched >= target and self.num_in_flight == 0
        if is_full and self.phase in (Phase.COMMITTED, Phase.AUDITING):
            is_recovered = self.phase is Phase.AUDITING and self.recover and self.is_mixed
            self._fire(Event.RECOVER if is_recovered else Event.FILL)

    def _return(self, slot: int, status: SlotStatus, passed: bool | None, num_tokens: int) -> None:
        if not 0 <= slot < self.num_launched:
            raise IllegalTransition(f"group {self.uid}: slot {slot} was never granted")
        if self.slots[slot].status is not SlotStatus.IN_FLIGHT:
            raise IllegalTransition(f"group {self.uid}: slot {slot} was reported twice")
        if num_tokens < 0:
            raise ValueError(f"group {self.uid}: {num_tokens} tokens; allowed: >= 0")
        entry = self.slots[slot]
        entry.status, entry.passed, entry.num_tokens = status, passed, num_tokens
        self.num_in_flight -= 1
        self.num_successes += passed is True
        self.num_failures += passed is False

    def _fire(self, event: Event) -> None:
        target = TRANSITIONS.get((self.phase, event))
        if target is None:
            raise IllegalTransition(f"group {self.uid}: no {event.value} in phase {self.phase.value}")
        self.phase = target
