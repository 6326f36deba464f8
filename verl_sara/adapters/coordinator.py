"""The single owner of a step's truth: the core allocator, the ledger file and the transport.

Workers and replay buffer decide nothing. Workers report rollouts and are told which slots to run
(`report`, `collect`); the buffer is told to fetch prompts or that the step is over (`next_action`).
`Coordinator` is plain asyncio; `coordinator_actor` makes the Ray actor of it.
"""

import asyncio
import os
import random
import time
from collections.abc import Mapping, Sequence
from typing import Any

from verl_sara.adapters.closing import alarms, is_selective, sessions, split, weight
from verl_sara.adapters.compat import COORDINATOR
from verl_sara.adapters.messages import Action, Outbox, StepResult
from verl_sara.adapters.open_step import OpenStep, RolloutResult, observed_fate
from verl_sara.config.schema import build_config
from verl_sara.core import (
    TRAINED_FATES,
    CommitRate,
    Fate,
    Grant,
    NoCommittedGroup,
    SaraError,
    StepAllocator,
    learn,
)
from verl_sara.ledger import LedgerWriter
from verl_sara.metrics import Audits, audit_metrics, step_metrics
from verl_sara.selection.evidence import evidence_of

POLL_S = 1.0
"""Longest wait between two looks at the clocks; events wake the waits at once."""


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
        self.rule = self.config.stopping_rule(self.running_yield, self.priors)
        self.empty_steps, self.audits = 0, Audits()
        header = {
            "options": {name: value for name, value in options.items() if name not in ("task", "setup")},
            "task": dict(self.config.task),
            "setup": dict(self.config.setup),
            "versions": dict(versions),
            "started_unix_s": round(time.time(), 3),
        }
        self.ledger = LedgerWriter(self.config.run_dir, self.config.run_name, header)
        self.step: OpenStep | None = None
        self._outboxes: dict[str, Outbox] = {}
        self._owners: dict[str, Outbox] = {}
        self._unclaimed: dict[str, list[int]] = {}
        self._changed = asyncio.Event()
        self._fatal = ""
        self._is_state_known = False

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
        open_step.allocator.finish()
        groups = open_step.allocator.groups
        return self._close(open_step, {uid: observed_fate(group, fates.get(uid)) for uid, group in groups.items()})

    async def trouble(self, step: int) -> str:
        """Returns why a step cannot end well, empty if it can: for a buffer that decides itself."""
        open_step = self._open(step)
        if self._fatal or (error := self._hopeless(open_step)):
            return self._fatal or error
        if open_step.idle > self.config.stall_deadline_s:
            return f"no progress within stall_deadline_s; {open_step.describe()}"
        return ""

    async def end_refills(self, step: int) -> None:
        """Takes note that the data set has no further prompt that is not in flight."""
        open_step = self._open(step)
        open_step.ran_dry = True
        open_step.allocator.end_refills()
        self._advance(open_step)

    # ---- the workers' side --------------------------------------------------------------------

    async def report(self, worker: str, results: Sequence[tuple[str, RolloutResult | None]]) -> None:
        """Takes what returned at a worker; (uid, None) announces that the worker serves a prompt.

        Raises:
          SaraError: If a prompt is not registered in the open step.
        """
        step, outbox = self.step, self._outbox(worker)
        returned = [(uid, result) for uid, result in results if result is not None]
        for uid in [uid for uid, result in results if result is None]:
            if step is not None and uid in step.allocator.groups:
                self._serve(step, uid, outbox)
            else:  # its step ended before its worker came to it
                outbox.tell(uid, None)
        unknown = next((uid for uid, _ in returned if step is None or uid not in step.allocator.groups), None)
        if not returned:
            return
        if step is None or unknown is not None:
            raise SaraError(f"prompt {unknown} is not registered in the open step")
        for uid, result in returned:
            self.ledger.returned(step.number, uid, result.slot, result.num_tokens, result.status)
            step.take(uid, result)
        self.ledger.flush()
        if self.config.mode == "collect":
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
        return self._state(self.priors.state_dict())

    def _state(self, priors: dict[str, Any]) -> dict[str, Any]:
        return {
            "commit_rate": self.commit_rate.state_dict(),
            "running_yield": self.running_yield.state_dict(),
            "prior_source": self.config.prior_source,
            "priors": priors,
            "empty_steps": self.empty_steps,
            "audits": self.audits.state_dict(),
        }

    def _news(self) -> dict[str, Any]:
        """Returns the state, of the priors only what the last step changed once the buffer has the rest."""
        priors = self.priors.changes() if self._is_state_known else self.priors.state_dict()
        self._is_state_known = True
        return self._state(priors)

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
        self.audits.load_state_dict(state["audits"])

    # ---- inner --------------------------------------------------------------------------------

    def _is_audited(self, step: int) -> bool:
        """Draws the audit by dispatch order, so that a resumed run draws alike."""
        assert self.step is not None
        if not self.config.audit_fraction:
            return False
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
        if step.is_done:
            return Action(is_done=True)
        if step.refill:
            refill, step.refill = step.refill, 0
            return Action(refill=refill)
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

    def _serve(self, step: OpenStep, uid: str, outbox: Outbox) -> None:
        """Takes note of a prompt's worker and sends what was granted before it came."""
        self._owners[uid] = outbox
        if self.config.mode == "observe":
            self._give(step, [step.allocator.grant_whole(uid)])
        elif uid in self._unclaimed:
            self._tell(uid, self._unclaimed.pop(uid))

    def _tell(self, uid: str, slots: list[int] | None) -> None:
        self._owners[uid].tell(uid, slots)

    def _outbox(self, worker: str) -> Outbox:
        return self._outboxes.setdefault(worker, Outbox())

    def _hopeless(self, step: OpenStep) -> str:
        """Returns why the step cannot end well, empty if it can: nothing but failures so far."""
        failures = step.failures()
        if failures >= max(self.config.batch_size, self.config.group_size) and failures == step.statuses.total():
            return f"all {failures} rollouts of step {step.number} failed; the last one: {step.last_error}"
        return ""

    def _close(self, step: OpenStep, fates: Mapping[str, Fate]) -> StepResult:
        allocator = step.allocator
        records = step.records(dict(fates))
        line = self.ledger.write_step(records, step.summary(fates), allocator.num_launched)
        audits = Audits()
        for record in records:
            if audits.add(record):
                self.audits.add(record)
        self.commit_rate.end_step(*allocator.num_decided())
        learn(allocator.groups.values(), self.priors, self.running_yield)
        trained = [uid for uid, fate in fates.items() if fate in TRAINED_FATES]
        effective = sum(fate is Fate.TRAINED for fate in fates.values())
        self.empty_steps = self.empty_steps + 1 if is_selective(self.config) and not effective else 0
        self.step = None
        for uid in self._owners:
            self._tell(uid, None)
        self._owners, self._unclaimed = {}, {}
        if not trained or self.empty_steps >= self.config.max_empty_steps:
            raise NoCommittedGroup(
                f"{self.empty_steps} step(s) in a row without an effective group ({split(step)}). The prompts may be "
                f"too hard or too easy for the model, or the budget of {allocator.settings.max_rollouts} rollouts "
                f"a step too small{'; last failure: ' + step.last_error if step.last_error else ''}"
            )
        return StepResult(
            trained=trained,
            sessions={uid: sessions(allocator.groups[uid]) for uid in trained},
            metrics=step_metrics(line) | audit_metrics(audits, self.audits),
            state=self._news(),
            evidence=[evidence_of(group) for group in allocator.groups.values()],
            weights={uid: weight(self.config, allocator.groups[uid], len(trained)) for uid in trained},
            unused=[group.prompt_id for group in allocator.groups.values() if not group.slots],
            report="; ".join(alarms(self.config, step, line, effective)),
        )


def coordinator_actor(options: Mapping[str, Any], versions: Mapping[str, str]) -> Any:
    """Returns the handle of this job's coordinator actor, made on the first call.

    The first caller is the trainer's replay buffer; the actor, and so the ledger, stays on its node.
    Its name holds the job's id, so that two runs on one Ray cluster never share it. It reserves no CPU,
    and every worker and the buffer may wait in a call of its own.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = {**options, "run_dir": os.path.abspath(options["run_dir"])}
    name = f"{COORDINATOR}{ray.get_runtime_context().get_job_id()}"
    return (
        ray.remote(Coordinator)
        .options(
            name=name, get_if_exists=True, num_cpus=0, max_concurrency=10_000, scheduling_strategy=here
        )
        .remote(dict(options), dict(versions))
    )
