"""The single owner of a step's truth: the core allocator, the ledger file and the transport.

Workers and replay buffer decide nothing. Workers report rollouts and are told which slots to run
(`report`, `collect`); the buffer is told to fetch prompts or that the step is over (`next_action`).
`Coordinator` is plain asyncio; `coordinator_actor` makes the Ray actor of it.
"""

import asyncio
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_sara.adapters.open_step import OpenStep, RolloutResult, evidence_of
from verl_sara.config.schema import build_config
from verl_sara.core import (
    TRAINED_FATES,
    CommitRate,
    Fate,
    Grant,
    Group,
    NoCommittedGroup,
    SaraError,
    SlotStatus,
    StepAllocator,
    learn,
    prob_keep,
)
from verl_sara.ledger import LedgerWriter
from verl_sara.metrics import step_metrics
from verl_sara.selection.evidence import GroupEvidence

POLL_S = 1.0
"""Longest wait between two looks at the clocks; events wake the waits at once."""


@dataclass(frozen=True, slots=True)
class Action:
    """What the replay buffer is to do: fetch `refill` prompts, print `report`, raise `error`, or finish."""

    refill: int = 0
    is_done: bool = False
    report: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A finished step.

    Attributes:
      trained: uids of the groups to train, in dispatch order.
      sessions: The session numbers that each of them has rows for.
      metrics: Numbers for verl's logger.
      state: State that crosses steps.
      evidence: What every group says about its prompt, for prompt selection.
      weights: Weight of every trained group in the loss, 1 unless an option says otherwise.
      report: What the user has to be told, empty if nothing.
    """

    trained: list[str]
    sessions: dict[str, list[int]]
    metrics: dict[str, float]
    state: dict[str, Any]
    evidence: list[GroupEvidence]
    weights: dict[str, float]
    report: str = ""


@dataclass(slots=True)
class _Outbox:
    """What a worker has not fetched yet, by prompt, and what wakes its request."""

    messages: dict[str, list[int] | None] = field(default_factory=dict)
    event: asyncio.Event = field(default_factory=asyncio.Event)


class Coordinator:
    """See the module. All methods but the constructor run on one event loop.

    Args:
      options: The options of the run, as in SaraConfig.
      versions: Versions of verl and TransferQueue, for the ledger's header.
    """

    def __init__(self, options: Mapping[str, Any], versions: Mapping[str, str]) -> None:
        self.config = build_config(options)
        self.commit_rate = CommitRate()
        self.priors = self.config.priors()
        self.running_yield = self.config.running_yield()
        self.rule = self.config.stopping_rule(self.running_yield)
        self.empty_steps = 0
        header = {
            "options": {name: value for name, value in options.items() if name not in ("task", "setup")},
            "task": dict(self.config.task),
            "setup": dict(self.config.setup),
            "versions": dict(versions),
            "started_unix_s": round(time.time(), 3),
        }
        self.ledger = LedgerWriter(self.config.run_dir, self.config.run_name, header)
        self.step: OpenStep | None = None
        self._outboxes: dict[str, _Outbox] = {}
        self._owners: dict[str, _Outbox] = {}
        self._unclaimed: dict[str, list[int]] = {}
        self._changed = asyncio.Event()
        self._fatal = ""

    # ---- the trainer's side -------------------------------------------------------------------

    async def register(self, step: int, prompts: Sequence[tuple[str, str]], state: Mapping[str, Any] | None) -> None:
        """Registers (uid, prompt_id) pairs in dispatch order; opens the step if it is not open.

        Args:
          step: verl's global step.
          prompts: The prompts that are about to be handed to the workers.
          state: State restored from a checkpoint, before the first step only.
        """
        if state is not None:
            self.load_state(state)
        if self.step is None:
            settings = self.config.step_settings()
            self.step = OpenStep(step, StepAllocator(settings, self.rule, self.commit_rate))
        if self.step.number != step:
            raise SaraError(f"prompts of step {step} came while step {self.step.number} is open")
        for uid, prompt_id in prompts:
            prior = self.priors.prior_for(prompt_id)
            self.step.allocator.register(uid, prompt_id, prior, audited=self._is_audited(step))
            self.step.mark(uid, "registered_s")
        if self.config.mode == "collect":
            self._advance(self.step)

    async def next_action(self, step: int) -> Action:
        """Waits until the buffer has something to do, at most `stall_report_s`."""
        open_step, called = self._open(step), time.monotonic()
        while not (action := self._next(open_step)):
            report_due = min(open_step.idle, time.monotonic() - called) > self.config.stall_report_s
            if report_due:
                return Action(report=open_step.describe())
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), min(POLL_S, self.config.stall_report_s))
            except asyncio.TimeoutError:
                continue
        return action

    async def finish_step(self, step: int) -> StepResult:
        """Ends a step that `next_action` called done, writes the ledger and returns what to train.

        Raises:
          NoCommittedGroup: If nothing can be trained, or `max_empty_steps` steps in a row had no
            effective group.
        """
        open_step = self._open(step)
        fates = open_step.allocator.finish()
        return self._close(open_step, fates)

    async def finish_observed(self, step: int, fates: Mapping[str, str]) -> StepResult:
        """Ends a step that verl's own buffer decided. Groups without a fate were never finished."""
        open_step = self._open(step)
        own = open_step.allocator.finish()
        return self._close(open_step, {uid: Fate(fates.get(uid, own[uid].value)) for uid in own})

    # ---- the workers' side --------------------------------------------------------------------

    async def report(self, worker: str, results: Sequence[tuple[str, RolloutResult | None]]) -> None:
        """Takes what returned at a worker; (uid, None) announces that the worker serves a prompt.

        Raises:
          SaraError: If a prompt is not registered in the open step.
        """
        step = self.step
        unknown = next((uid for uid, _ in results if step is None or uid not in step.allocator.groups), None)
        if step is None or unknown is not None:
            raise SaraError(f"prompt {unknown} is not registered in the open step")
        returned = [(uid, result) for uid, result in results if result is not None]
        for uid, result in returned:
            self.ledger.returned(step.number, uid, result.slot, result.num_tokens, result.status)
            step.take(uid, result)
        self.ledger.flush()
        for uid, result in results:
            if result is None:
                self._serve(step, uid, self._outbox(worker))
        if self.config.mode == "collect" and returned:
            self._advance(step)
        for uid in {uid for uid, _ in returned}:
            if step.allocator.groups[uid].is_settled and not step.allocator.will_audit(uid):
                self._tell(uid, None)

    async def collect(self, worker: str) -> dict[str, list[int] | None]:
        """Waits until there is something for a worker: slots to run by prompt, None for closed groups."""
        outbox = self._outbox(worker)
        while not outbox.messages:
            outbox.event.clear()
            await outbox.event.wait()
        messages, outbox.messages = outbox.messages, {}
        return messages

    async def stop(self, message: str) -> None:
        """Makes the run stop with a message: a fault that no retry mends, such as a non-binary verdict."""
        self._fatal = self._fatal or message
        self._changed.set()

    # ---- state --------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Returns what the next step depends on."""
        return {
            "commit_rate": self.commit_rate.state_dict(),
            "running_yield": self.running_yield.state_dict(),
            "prior_source": self.config.prior_source,
            "priors": self.priors.state_dict(),
            "empty_steps": self.empty_steps,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restores `state`; between steps only."""
        if self.step is not None:
            raise SaraError("state can be restored between steps only")
        self.commit_rate.load_state_dict(state["commit_rate"])
        self.running_yield.load_state_dict(state["running_yield"])
        if state["prior_source"] == self.config.prior_source:
            self.priors.load_state_dict(state["priors"])
        else:
            print(f"verl_sara: prior_source was {state['prior_source']}, is {self.config.prior_source}: starts afresh")
        self.empty_steps = state["empty_steps"]

    # ---- inner --------------------------------------------------------------------------------

    def _is_audited(self, step: int) -> bool:
        """Draws the audit by dispatch order, so that a resumed run draws alike."""
        assert self.step is not None
        draw = random.Random(f"{self.config.seed}/{step}/{len(self.step.allocator.groups)}").random()
        return draw < self.config.audit_fraction

    def _open(self, step: int) -> OpenStep:
        if self.step is None or self.step.number != step:
            raise SaraError(f"step {step} is not open")
        return self.step

    def _next(self, step: OpenStep) -> Action | None:
        """Returns what the buffer has to do now, None if it has to wait."""
        if self._fatal or (error := self._hopeless(step)):
            return Action(error=self._fatal or error)
        if step.age > self.config.max_step_s and not step.is_done:
            step.allocator.end_admission()
            self._advance(step)
        if step.refill:
            refill, step.refill = step.refill, 0
            return Action(refill=refill)
        if step.is_done:
            return Action(is_done=True)
        if step.idle > self.config.stall_deadline_s:
            return Action(error=f"no progress within stall_deadline_s; {step.describe()}")
        return None

    def _advance(self, step: OpenStep) -> None:
        advice = step.allocator.advance()
        step.refill += advice.refill
        step.is_done = advice.is_done
        self._give(step, advice.grants)
        if advice.refill or advice.is_done:
            self._changed.set()

    def _give(self, step: OpenStep, grants: Sequence[Grant]) -> None:
        """Notes grants and sends them to the workers; those of prompts without a worker yet are kept."""
        for grant in grants:
            self.ledger.launched(step.number, grant.uid, grant.slots)
        self.ledger.flush()
        for grant in grants:
            step.mark(grant.uid, "granted_s")
            if grant.uid in self._owners:
                self._tell(grant.uid, list(grant.slots))
            else:
                self._unclaimed.setdefault(grant.uid, []).extend(grant.slots)

    def _serve(self, step: OpenStep, uid: str, outbox: _Outbox) -> None:
        """Takes note of a prompt's worker and sends what was granted before it came."""
        self._owners[uid] = outbox
        if self.config.mode == "observe":
            self._give(step, [step.allocator.grant_whole(uid)])
        elif uid in self._unclaimed:
            self._tell(uid, self._unclaimed.pop(uid))

    def _tell(self, uid: str, slots: list[int] | None) -> None:
        outbox = self._owners[uid]
        earlier = outbox.messages.get(uid)
        outbox.messages[uid] = slots if earlier is None or slots is None else earlier + slots
        outbox.event.set()

    def _outbox(self, worker: str) -> _Outbox:
        return self._outboxes.setdefault(worker, _Outbox())

    def _hopeless(self, step: OpenStep) -> str:
        """Returns why the step cannot end well, empty if it can: nothing but failures so far."""
        failures = step.failures()
        if failures >= self.config.batch_size and failures == step.statuses.total():
            return f"all {failures} rollouts of step {step.number} failed; the last one: {step.last_error}"
        return ""

    def _close(self, step: OpenStep, fates: Mapping[str, Fate]) -> StepResult:
        allocator = step.allocator
        line = self.ledger.write_step(step.records(dict(fates)), step.summary(), allocator.num_launched)
        self.commit_rate.end_step(*allocator.num_decided())
        learn(allocator.groups.values(), self.priors, self.running_yield)
        trained = [uid for uid, fate in fates.items() if fate in TRAINED_FATES]
        effective = sum(fate is Fate.TRAINED for fate in fates.values())
        self.empty_steps = 0 if effective else self.empty_steps + 1
        self.step = None
        for uid in self._owners:
            self._tell(uid, None)
        self._owners, self._unclaimed = {}, {}
        split = self._split(step)
        if not trained or self.empty_steps >= self.config.max_empty_steps:
            raise NoCommittedGroup(
                f"{self.empty_steps} step(s) in a row without an effective group ({split}). The prompts may be "
                f"too hard or too easy for the model, or the budget of {allocator.settings.max_rollouts} rollouts "
                f"a step too small{'; last failure: ' + step.last_error if step.last_error else ''}"
            )
        report = ""
        if step.failures() > 0.01 * max(1, step.statuses.total()):
            report = f"{step.failures()} of {step.statuses.total()} rollouts failed; the last one: {step.last_error}"
        elif self.config.collect == "effective_groups" and len(trained) < self.config.batch_size:
            report = (
                f"{len(trained)} of {self.config.batch_size} groups at the end of the budget ({split}); with "
                "token-mean aggregation they still get a full optimizer step"
            )
        return StepResult(
            trained=trained,
            sessions={uid: self._sessions(allocator, uid) for uid in trained},
            metrics=step_metrics(line),
            state=self.state(),
            evidence=[evidence_of(group) for group in allocator.groups.values()],
            weights={uid: self._weight(allocator.groups[uid], len(trained)) for uid in trained},
            report=report,
        )

    def _weight(self, group: Group, num_trained: int) -> float:
        weight = 1.0
        if self.config.importance_correction == "horvitz_thompson" and group.is_mixed:
            k, n0, n1 = group.group_size, group.lengths.fail, group.lengths.passed
            weight /= prob_keep(group.num_successes, group_size=k, fail_length=n0, pass_length=n1)
        if self.config.short_steps == "scale":
            weight *= min(1.0, num_trained / self.config.batch_size)
        return weight

    @staticmethod
    def _sessions(allocator: StepAllocator, uid: str) -> list[int]:
        slots = allocator.groups[uid].slots
        return [number for number, slot in enumerate(slots) if slot.status is SlotStatus.OK]

    @staticmethod
    def _split(step: OpenStep) -> str:
        groups = [group for group in step.allocator.groups.values() if group.slots]
        mixed = sum(group.is_mixed for group in groups)
        unsolved = sum(not group.num_successes and group.num_failures > 0 for group in groups)
        solved = sum(not group.num_failures and group.num_successes > 0 for group in groups)
        return f"of {len(groups)} prompts {unsolved} all-fail, {solved} all-pass, {mixed} mixed so far"


def coordinator_actor(options: Mapping[str, Any], versions: Mapping[str, str]) -> Any:
    """Returns the handle of this job's coordinator actor, made on the first call.

    Its name holds the job's id, so that two runs on one Ray cluster never share it. It reserves no CPU,
    and every worker and the buffer may wait in a call of its own.
    """
    import ray

    name = f"verl_sara_coordinator_{ray.get_runtime_context().get_job_id()}"
    return (
        ray.remote(Coordinator)
        .options(name=name, get_if_exists=True, num_cpus=0, max_concurrency=10_000)
        .remote(dict(options), dict(versions))
    )
