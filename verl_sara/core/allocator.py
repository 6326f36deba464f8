"""One training step: which group gets how many rollouts, how many fresh prompts, when to stop.

Theory of operation. The host registers prompts in dispatch order, asks `advance` what to do,
runs the grants, reports every rollout, and asks again. `advance` is the only place that grants:

- completions first, then increments of undecided groups, then probes of fresh prompts;
- under the schedule `rounds` nothing is granted while anything is in flight (a barrier a round),
  under `streaming` a group is served as soon as its own results allow;
- a committed group is completed as soon as it is expected to be among the first B, undecided groups
  before it counting with the running commit rate, so that most surplus groups cost their probes only;
- no rollout is granted that the budget could not see through: a live group reserves what
  completing it may still cost.

The trained groups are the first B committed ones in dispatch order, once none before them is
undecided; where audited groups are trained, one that its audit found mixed counts as committed.
That set depends on outcomes, not on arrival. The step ends when they are complete or nothing more
can be done (the budget or the host's deadline); then `finish` closes what is left and says what
became of every group.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from verl_sara.core.commit_rate import CommitRate
from verl_sara.core.errors import IllegalTransition
from verl_sara.core.fate import Fate, fates
from verl_sara.core.group import Group, Phase, SlotStatus
from verl_sara.core.posterior import BetaPrior, log_prob_all_fail, log_prob_all_pass
from verl_sara.core.settings import StepSettings
from verl_sara.core.standing import Standing
from verl_sara.core.stopping import StoppingRule, align_lengths, stage_boundaries

ROUNDING = 1e-9
"""Differences below this, in prompts, are rounding errors of sums of probabilities."""


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
    _no_refills: bool = False
    _finished: bool = False
    _standing: Standing = field(init=False)

    def __post_init__(self) -> None:
        self._standing = Standing(self.settings.batch_size, self.settings.group_size)

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
            recover=s.train_audited,
        )
        self.groups[uid] = group
        self._standing.add(group)
        self._requested = max(0, self._requested - 1)
        return group

    def record(self, uid: str, slot: int, passed: bool, num_tokens: int) -> None:
        """Takes the outcome of one rollout."""
        group = self.groups[uid]
        group.record(slot, passed, num_tokens)
        self._returned(group)

    def fail(self, uid: str, slot: int, status: SlotStatus, num_tokens: int) -> None:
        """Takes a rollout without an outcome."""
        group = self.groups[uid]
        group.fail(slot, status, num_tokens)
        self._returned(group)

    def grant_whole(self, uid: str) -> Grant:
        """Grants the first stage of one group at once, outside schedule and budget.

        For a host that decides itself and has its rollouts recorded only.
        """
        return self._launch(self.groups[uid])

    def will_audit(self, uid: str) -> bool:
        """Whether an abandoned group still has its audit before it."""
        group = self.groups[uid]
        return group.audited and group.phase is Phase.ABANDONED and not self._finished

    def end_refills(self) -> None:
        """Takes note that the host has no further prompt; what was asked for will not come."""
        self._requested, self._no_refills = 0, True

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
            grants = () if self.settings.schedule == "rounds" else self._grant_all()
            return Advice(grants=grants, refill=refill)
        grants = self._grant_all()
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
        committed = len(self._standing.accepted) - self._standing.num_recovered
        return committed, committed + self._standing.num_abandoned

    # ---- planning -----------------------------------------------------------------------------

    def _has_batch(self) -> bool:
        """Whether the first B committed groups are certain and complete, and no surplus is to follow."""
        if self.settings.collect == "budget" or not self._standing.has_batch():
            return False
        return self.settings.surplus == "discard" or not self._standing.phases[Phase.COMMITTED]

    def _wind_down(self) -> Advice:
        """After the end of admission: completes what will be trained, audits, and waits."""
        self.is_exhausted = self.is_exhausted or not self._has_batch()
        wanted = list(self._standing.take_unfilled(self._standing.last_needed() + 1))
        grants = self._launch_all(wanted + self._take_audits())
        self.round_index += bool(grants)
        return Advice(grants=tuple(grants), is_done=not grants and self.num_in_flight == 0)

    def _audit_abandoned(self) -> None:
        for group in self._standing.audits:
            if group.phase is Phase.ABANDONED:
                group.audit()
                self._standing.update(group)

    def _take_audits(self) -> list[Group]:
        audits, self._standing.audits = self._standing.audits, []
        return [group for group in audits if group.next_grant()]

    def _grant_all(self) -> tuple[Grant, ...]:
        """Launches everything that may be launched now; the caller decides when that is."""
        standing, num_groups = self._standing, len(self.groups)
        is_budget = self.settings.collect == "budget"
        fill_all = is_budget or self.settings.surplus == "train"
        wanted = list(standing.take_ready(num_groups if is_budget else standing.last_needed()))
        wanted += standing.take_unfilled(num_groups if fill_all else standing.window(self._rate()))
        grants = self._launch_all(wanted + self._take_audits())
        while self._affordable() >= 1 and (group := standing.next_waiting()):
            grants.append(self._launch(group))
        return tuple(grants)

    def _launch_all(self, groups: list[Group]) -> list[Grant]:
        return [self._launch(group) for group in sorted(groups, key=lambda group: group.index)]

    def _launch(self, group: Group) -> Grant:
        slots = group.launch(group.next_grant(), self.round_index)
        self._standing.update(group)
        self.num_in_flight += len(slots)
        self.num_launched += len(slots)
        return Grant(group.uid, slots)

    def _returned(self, group: Group) -> None:
        self._standing.update(group)
        self.num_in_flight -= 1

    def _affordable(self) -> int:
        """Returns how many more fresh prompts the budget can see through to a full group."""
        return (self.settings.max_rollouts - self._standing.charged) // self.settings.group_size

    def _plan_refill(self) -> int:
        """Returns how many fresh prompts to ask for, counting those asked for already."""
        if self._no_refills:
            return 0
        on_the_way = self._standing.phases[Phase.WAITING] + self._requested
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
        standing, rate = self._standing, self._rate()
        deficit = self.settings.batch_size - len(standing.accepted) - rate * standing.num_busy
        if deficit > ROUNDING:
            deficit -= sum(self._prob_commit(group) for group in standing.idle.values())
        if deficit <= ROUNDING:
            return 0
        margin = self.settings.refill_margin
        # Smallest W with W r - margin sqrt(W r (1-r)) >= deficit, solved for sqrt(W).
        spread = margin * math.sqrt(rate * (1.0 - rate))
        root = (spread + math.sqrt(spread * spread + 4.0 * rate * deficit)) / (2.0 * rate)
        return math.ceil(root * root - ROUNDING)

    def _rate(self) -> float:
        if self.settings.keep_saturated:
            return 1.0
        k = self.settings.group_size
        # Before anything was seen: p_eff(0, 0) under the uniform prior, but at least 1/k.
        initial = max(1.0 / k, (k - 1.0) / (k + 1.0))
        committed, decided = self.num_decided()
        return min(1.0, self.commit_rate.estimate(initial, committed, decided))

    def _prob_commit(self, group: Group) -> float:
        """Returns P(a probing group commits before it is abandoned), under its prior; nothing in flight."""
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
