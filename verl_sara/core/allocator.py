"""One training step: which group gets how many rollouts, how many fresh prompts, when to stop.

Theory of operation. The host registers prompts in dispatch order, asks `advance` what to do,
runs the grants, reports every rollout, and asks again. `advance` is the only place that grants:

- completions first, then increments of undecided groups, then probes of fresh prompts;
- under the schedule `rounds` nothing is granted while anything is in flight (a barrier a round),
  under `streaming` a group is served as soon as its own results allow;
- a committed group is completed as soon as it is certain to be among the first B, so that groups
  that turn out surplus cost their probes only;
- no rollout is granted that the budget could not see through: a live group reserves what
  completing it may still cost.

The trained groups are the first B committed ones in dispatch order, once none before them is
undecided; that set depends on outcomes, not on arrival. The step ends when they are complete or
nothing more can be done (the budget or the host's deadline); then `finish` closes what is left
and says what became of every group.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from verl_sara.core.commit_rate import CommitRate
from verl_sara.core.errors import IllegalTransition
from verl_sara.core.fate import Fate, fates
from verl_sara.core.group import Group, Phase, SlotStatus, Verdict
from verl_sara.core.posterior import BetaPrior, log_prob_all_fail, log_prob_all_pass, prob_effective
from verl_sara.core.settings import StepSettings
from verl_sara.core.stopping import StoppingRule, align_lengths, stage_boundaries


@dataclass(frozen=True, slots=True)
class Grant:
    """Permission to run the slots `slots` (numbers from 0) of the group `uid`."""

    uid: str
    slots: range


@dataclass(frozen=True, slots=True)
class Advice:
    """What the host is to do now.

    Attributes:
      grants: Rollouts to run.
      refill: Fresh prompts to register, 0 = none.
      is_done: True once the step is over and nothing is in flight.
    """

    grants: tuple[Grant, ...] = ()
    refill: int = 0
    is_done: bool = False


@dataclass(slots=True)
class StepAllocator:
    """The state of one training step.

    Attributes:
      settings: Sizes and modes.
      rule: Stopping rule, asked once per prompt.
      commit_rate: Running commit rate of earlier steps; read only, see `finish`.
      groups: All registered groups by uid, in dispatch order.
      round_index: Index of the next round.
      is_exhausted: True once budget or deadline ended the step before B groups were complete.
      num_in_flight: Rollouts granted and not yet reported.
      num_launched: Rollouts granted in this step.
    """

    settings: StepSettings
    rule: StoppingRule
    commit_rate: CommitRate
    groups: dict[str, Group] = field(default_factory=dict)
    round_index: int = 0
    is_exhausted: bool = False
    num_in_flight: int = 0
    num_launched: int = 0
    _requested: int = 0
    _round_planned: bool = False
    _deadline_passed: bool = False
    _finished: bool = False

    # ---- events -------------------------------------------------------------------------------

    def register(self, uid: str, prompt_id: str, prior: BetaPrior, *, audited: bool = False) -> Group:
        """Adds a prompt at the end of the dispatch order.

        Raises:
          IllegalTransition: If the uid is taken or the step is over.
        """
        if self._finished or uid in self.groups:
            raise IllegalTransition(f"cannot register prompt {uid}: the uid is taken or the step is over")
        s = self.settings
        boundaries = stage_boundaries(s.group_size, s.probe_size, s.increment)
        group = Group(
            uid=uid,
            prompt_id=prompt_id,
            index=len(self.groups),
            group_size=s.group_size,
            prior=prior,
            lengths=align_lengths(self.rule.lengths(prior, s.group_size), boundaries),
            boundaries=boundaries,
            keep_saturated=s.keep_saturated,
            fill=s.group_completion == "full",
            audited=audited,
        )
        self.groups[uid] = group
        self._requested = max(0, self._requested - 1)
        return group

    def record(self, uid: str, slot: int, passed: bool, num_tokens: int) -> None:
        """Takes the outcome of one rollout."""
        self.groups[uid].record(slot, passed, num_tokens)
        self.num_in_flight -= 1

    def fail(self, uid: str, slot: int, status: SlotStatus, num_tokens: int) -> None:
        """Takes a rollout without an outcome."""
        self.groups[uid].fail(slot, status, num_tokens)
        self.num_in_flight -= 1

    def grant_whole(self, uid: str) -> Grant:
        """Grants the first stage of one group at once, outside schedule and budget.

        For a host that decides itself and has its rollouts recorded only.
        """
        return self._launch(self.groups[uid])

    def will_audit(self, uid: str) -> bool:
        """Whether an abandoned group still has its audit before it."""
        group = self.groups[uid]
        return group.audited and group.phase is Phase.ABANDONED and not self._finished

    def end_admission(self) -> None:
        """Forbids new probes and increments because the host's deadline passed."""
        self._deadline_passed = True

    # ---- what to do now -----------------------------------------------------------------------

    def advance(self) -> Advice:
        """Returns the grants and refills that the state of the step calls for."""
        if self._finished:
            return Advice(is_done=True)
        if self.settings.schedule == "rounds" and self.num_in_flight:
            return Advice()
        self._audit_abandoned()
        if self._has_batch() or self._deadline_passed:
            return self._wind_down()
        refill = self._plan_refill()
        if refill or (self.settings.schedule == "rounds" and self._requested):
            # Under rounds, the whole wave starts together once the fresh prompts are there.
            grants = () if self.settings.schedule == "rounds" else tuple(self._grant_all())
            return Advice(grants=grants, refill=refill)
        grants = tuple(self._grant_all())
        if grants:
            self.round_index += 1
            self._round_planned = False
            return Advice(grants=grants)
        if self.num_in_flight or self._requested:
            return Advice()
        self.is_exhausted = True
        return Advice(is_done=True)

    def finish(self) -> dict[str, Fate]:
        """Ends the step: closes the open groups and returns the fate of every group by uid.

        Raises:
          IllegalTransition: If something is still in flight.
        """
        if self.num_in_flight:
            raise IllegalTransition(f"cannot finish the step: {self.num_in_flight} rollouts are in flight")
        for group in self.groups.values():
            group.close()
        self._finished = True
        return fates(self.groups.values(), self.settings)

    # ---- numbers ------------------------------------------------------------------------------

    def num_decided(self) -> tuple[int, int]:
        """Returns (committed, committed or abandoned), the step's contribution to the commit rate."""
        verdicts = [group.verdict for group in self.groups.values()]
        committed = verdicts.count(Verdict.COMMIT)
        return committed, committed + verdicts.count(Verdict.ABANDON)

    # ---- planning -----------------------------------------------------------------------------

    def _ranked(self) -> Iterator[tuple[Group, int, int]]:
        """Yields (group, committed before it, undecided before it) in dispatch order."""
        committed = undecided = 0
        for group in self.groups.values():
            yield group, committed, undecided
            committed += group.phase in (Phase.COMMITTED, Phase.COMPLETE)
            undecided += group.phase in (Phase.PROBING, Phase.WAITING)

    def _has_batch(self) -> bool:
        """Whether the first B committed groups are certain and complete."""
        if self.settings.collect == "budget":
            return False
        complete = 0
        for group in self.groups.values():
            if group.phase in (Phase.PROBING, Phase.WAITING, Phase.COMMITTED):
                return False
            complete += group.phase is Phase.COMPLETE
            if complete == self.settings.batch_size:
                return not self._pending_surplus()
        return False

    def _pending_surplus(self) -> bool:
        return self.settings.surplus == "train" and any(
            group.phase is Phase.COMMITTED for group in self.groups.values()
        )

    def _wind_down(self) -> Advice:
        """After the end of admission: completes what will be trained, audits, and waits."""
        self.is_exhausted = self.is_exhausted or not self._has_batch()
        grants = []
        for group, committed, _ in self._ranked():
            is_trained = group.phase is Phase.COMMITTED and committed < self.settings.batch_size
            if group.phase is Phase.AUDITING or is_trained:
                grants.append(group)
        launched = tuple(self._launch(group) for group in grants if group.next_grant())
        self.round_index += bool(launched)
        return Advice(grants=launched, is_done=not launched and self.num_in_flight == 0)

    def _audit_abandoned(self) -> None:
        for group in self.groups.values():
            if group.audited and group.phase is Phase.ABANDONED:
                group.audit()

    def _grant_all(self) -> Iterator[Grant]:
        """Launches everything that may be launched now; the caller decides when that is."""
        batch_size, waiting = self.settings.batch_size, []
        is_budget = self.settings.collect == "budget"
        for group, committed, undecided in list(self._ranked()):
            is_needed = is_budget or committed < batch_size
            if group.phase is Phase.WAITING:
                waiting.append(group)
            elif group.phase is Phase.COMMITTED:
                certain = committed + undecided < batch_size
                wanted = is_budget or certain or self.settings.surplus == "train"
                if wanted and group.next_grant():
                    yield self._launch(group)
            elif group.phase is Phase.AUDITING:
                if group.next_grant():
                    yield self._launch(group)
            elif group.phase is Phase.PROBING and is_needed and group.next_grant():
                yield self._launch(group)
        for group in waiting:
            if self._affordable() >= 1:
                yield self._launch(group)

    def _launch(self, group: Group) -> Grant:
        slots = group.launch(group.next_grant(), self.round_index)
        self.num_in_flight += len(slots)
        self.num_launched += len(slots)
        return Grant(group.uid, slots)

    def _affordable(self) -> int:
        """Returns how many more fresh prompts the budget can see through to a full group."""
        spent = 0
        for group in self.groups.values():
            is_live = group.phase in (Phase.PROBING, Phase.COMMITTED)
            # An audit runs outside the budget: of an abandoned group only the prefix counts.
            is_abandoned = group.verdict is Verdict.ABANDON
            charged = group.verdict_length if is_abandoned else group.num_launched
            spent += self.settings.group_size if is_live else (charged or 0)
        return (self.settings.max_rollouts - spent) // self.settings.group_size

    def _plan_refill(self) -> int:
        """Returns how many fresh prompts to ask for, counting those asked for already."""
        waiting = sum(group.phase is Phase.WAITING for group in self.groups.values())
        on_the_way = waiting + self._requested
        room = self._affordable() - on_the_way
        if self.settings.collect == "budget":
            wanted = room
        elif self.settings.schedule == "rounds" and self._round_planned:
            return 0
        else:
            wanted = self._wave_size() - on_the_way
            self._round_planned = True
        refill = max(0, min(wanted, room))
        self._requested += refill
        return refill

    def _wave_size(self) -> int:
        """Returns how many fresh prompts cover the deficit, from the running commit rate."""
        expected = 0.0
        for group in self.groups.values():
            if group.phase in (Phase.COMMITTED, Phase.COMPLETE):
                expected += 1.0
            elif group.phase is Phase.PROBING:
                expected += self._prob_commit(group)
        deficit = self.settings.batch_size - expected
        if deficit <= 0:
            return 0
        rate = self._rate()
        margin = self.settings.refill_margin
        # Smallest W with W r - margin sqrt(W r (1-r)) >= deficit, solved for sqrt(W).
        spread = margin * math.sqrt(rate * (1.0 - rate))
        root = (spread + math.sqrt(spread * spread + 4.0 * rate * deficit)) / (2.0 * rate)
        return math.ceil(root * root - 1e-9)

    def _rate(self) -> float:
        if self.settings.keep_saturated:
            return 1.0
        k = self.settings.group_size
        initial = max(1.0 / k, prob_effective(0, 0, group_size=k, prior=BetaPrior()))
        committed, decided = self.num_decided()
        return min(1.0, self.commit_rate.estimate(initial, committed, decided))

    def _prob_commit(self, group: Group) -> float:
        """Returns P(an undecided group commits before it is abandoned), under its prior."""
        if group.num_in_flight or group.is_mixed:
            return self._rate()
        n = group.num_launched
        if group.num_successes == 0:
            return -math.expm1(log_prob_all_fail(n, group.lengths.fail, group.prior))
        return -math.expm1(log_prob_all_pass(n, group.lengths.passed, group.prior))


def run_step(
    allocator: StepAllocator,
    fresh: Callable[[], tuple[str, str, BetaPrior]],
    rollout: Callable[[str, int], tuple[bool, int]],
) -> dict[str, Fate]:
    """Drives a step to its end in one process: what the simulator and the tests use as a host.

    Args:
      allocator: The step, with its first prompts registered.
      fresh: Returns (uid, prompt_id, prior) of the next prompt.
      rollout: Runs slot `slot` of `uid` and returns (passed, num_tokens).
    """
    while not (advice := allocator.advance()).is_done:
        for _ in range(advice.refill):
            allocator.register(*fresh())
        for grant in advice.grants:
            for slot in grant.slots:
                passed, num_tokens = rollout(grant.uid, slot)
                allocator.record(grant.uid, slot, passed, num_tokens)
        if not advice.refill and not advice.grants:
            raise IllegalTransition("the step neither ended nor asked for anything")
    return allocator.finish()
