"""The rollout worker: runs a prompt's rollouts stage by stage, as the coordinator grants them.

Named by `actor_rollout_ref.rollout.agent.agent_loop_manager_class`. Generation, grading and the
transfer of rollouts stay verl's own; only the question "how many more of this prompt?" is new.
Validation runs verl's code unchanged.
"""

import asyncio
import logging
import numbers
import reprlib
import time
import uuid
from collections.abc import Coroutine
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from ray.exceptions import RayError
from tensordict import TensorDict
from verl.experimental.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, apply_greedy_sampling_params

from verl_sara.adapters.carried import CARRIED
from verl_sara.adapters.compat import check_alone, check_installation, plain_worker_class, was_lost
from verl_sara.adapters.coordinator import coordinator_actor
from verl_sara.adapters.mailbox import Mailbox
from verl_sara.adapters.open_step import RolloutResult
from verl_sara.adapters.own_dataset import with_base
from verl_sara.adapters.watch import WATCH
from verl_sara.config.schema import build_config, options_of
from verl_sara.core import SaraError, SlotStatus

logger = logging.getLogger("verl.sara.agent_loop")

MAX_ERROR_CHARS = 500
"""Of a failure's text, which may quote what a model wrote."""


class VerdictError(SaraError, ValueError):
    """The reward gives no binary correctness: a fault of the reward function, not of a rollout."""


class GradingError(SaraError, RuntimeError):
    """The reward function raised twice on the same response."""


def read_outcome(
    score: float | None, extra_info: Any, *, key: str, threshold: float | None, data_source: Any
) -> bool:
    """Returns whether a rollout passed.

    Args:
      score: The reward's score, used only with `threshold`.
      extra_info: The reward's extra info.
      key: Name of the binary correctness in it.
      threshold: If not None, passing means score >= threshold.
      data_source: Named in errors.

    Raises:
      VerdictError: If the correctness is missing or is not 0 or 1.
    """
    if threshold is not None:
        if not isinstance(score, numbers.Real) or score != score:
            raise VerdictError(
                f"data source {data_source!s}: score is {reprlib.repr(score)}; success_threshold needs a number"
            )
        return bool(score >= threshold)
    if not isinstance(extra_info, dict) or key not in extra_info:
        raise VerdictError(
            f"data source {data_source!s}: the reward returns no {key!r}; needed: 0 or 1 under that key "
            "(verdict_key), or success_threshold to decide on the score"
        )
    value = extra_info[key]
    value = value.item() if isinstance(value, np.generic) else value
    if not isinstance(value, (bool, int, float)) or value not in (0, 1):
        raise VerdictError(
            f"data source {data_source!s}: {key} is {reprlib.repr(value)}; allowed: 0 or 1, or set success_threshold"
        )
    return bool(value)


def in_one_line(failure: BaseException) -> str:
    """Returns a failure's type and text, bounded, without control characters: it may quote what a model wrote."""
    cause = getattr(failure, "cause", None)  # what a Ray task raised, without Ray's traceback
    failure = cause if isinstance(cause, BaseException) else failure
    text = " ".join(f"{type(failure).__name__}: {failure}".split())
    return "".join(char if char.isprintable() else "?" for char in text[:MAX_ERROR_CHARS])


class SaraAgentLoopWorker(plain_worker_class()):  # type: ignore[misc]
    """verl's worker, with `_run_prompt` obeying the coordinator for training prompts."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dataset_cls = with_base(self.dataset_cls, self.config.data)  # reads images and videos for a rollout
        self._connect()

    def _connect(self) -> None:
        options = options_of(self.config)
        self.sara = build_config(options)
        self.coordinator = coordinator_actor(options, {})
        # (uid, slot) -> tokens generated so far, lost attempts included, and tokens of the prompt
        self.generated: dict[tuple[str, int], tuple[int, int]] = {}
        self.mailbox = Mailbox(self.coordinator, uuid.uuid4().hex)

    async def _run_prompt(
        self, prompt: dict[str, Any], sampling_params: dict[str, Any], trajectory: dict[str, Any], trace: bool = False
    ) -> None:
        if trajectory["validate"]:
            await super()._run_prompt(prompt, sampling_params, trajectory, trace)
            return
        uid = prompt["uid"]
        prompt.pop("__rollout_n__", None)
        params = dict(sampling_params)
        if not prompt.pop("__do_sample__", True):
            apply_greedy_sampling_params(params)
        status = "failure"
        try:
            if self.sara.mode == "observe":
                await tq.async_kv_put(key=uid, partition_id="train", tag={"status": "running"})
            failures = await self._serve(uid, lambda slot: self._rollout(slot, prompt, params, trajectory, trace))
            status = "failure" if failures else "finished"
        except Exception as error:
            logger.exception("prompt %s: %s", uid, error)
            await self.coordinator.stop.remote(f"prompt {uid}: {in_one_line(error)}")
        finally:
            if self.sara.mode == "observe":  # verl's own buffer waits for the tag
                await tq.async_kv_put(key=uid, partition_id="train", tag={"status": status})

    async def _serve(self, uid: str, rollout: Any) -> int:
        """Runs what is granted to a prompt until its group is closed; returns the failed rollouts."""
        running: set[asyncio.Task[None]] = set()
        statuses: list[SlotStatus] = []

        async def run(slot: int) -> None:
            result = await rollout(slot)
            statuses.append(result.status)
            self.mailbox.post(uid, result)

        self.mailbox.open(uid)
        try:
            while (slots := await self.mailbox.grant(uid)) is not None:
                running = {task for task in running if not task.done()}
                running |= {asyncio.create_task(run(slot)) for slot in slots}
        finally:
            self.mailbox.close(uid)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return sum(status is not SlotStatus.OK for status in statuses)

    async def _rollout(
        self, slot: int, prompt: dict[str, Any], params: dict[str, Any], trajectory: dict[str, Any], trace: bool
    ) -> RolloutResult:
        """Generates and grades one rollout; never raises.

        Only what cannot depend on the outcome, a lost server or worker, is retried, in the same slot. In
        mode "observe" nothing is retried or timed out, as in verl.
        """
        observes, started, error = self.sara.mode == "observe", time.monotonic(), ""
        timeout = None if observes else self.sara.rollout_timeout_s
        key, status = (prompt["uid"], slot), SlotStatus.LOST
        for attempt in range(1 if observes else self.sara.max_retries + 1):
            try:
                run = self._run_agent_loop(dict(params), trajectory=trajectory, trace=trace, session_id=slot, **prompt)
                passed = await asyncio.wait_for(run, timeout)
                return RolloutResult(slot, SlotStatus.OK, passed, *self.generated.pop(key, (0, 0)))
            except asyncio.TimeoutError:
                waited = time.monotonic() - started
                status, error = SlotStatus.TIMEOUT, f"no answer after {waited:.1f} s (rollout_timeout_s is {timeout})"
            except GradingError as failure:
                status, error = SlotStatus.GRADER_ERROR, str(failure)
            except VerdictError as failure:
                status, error = SlotStatus.GRADER_ERROR, str(failure)
                await self.coordinator.stop.remote(error)
            except Exception as failure:
                error = in_one_line(failure)
                if was_lost(failure):
                    logger.warning("prompt %s slot %d attempt %d: %s", prompt["uid"], slot, attempt, error)
                    continue
                status = SlotStatus.ERROR
            break
        return RolloutResult(slot, status, None, *self.generated.pop(key, (0, 0)), error=error)

    async def _compute_score(self, outputs: list[AgentLoopOutput], kwargs: dict[str, Any]) -> None:
        """Grades as verl does, and once more if the reward function raised or its worker died.

        A response that no attempt can grade is not sampled again: what kills a grader depends on the response.
        """
        for attempt in (1, 2):
            try:
                return await super()._compute_score(outputs, kwargs)
            except RayError as error:
                if attempt == 2:
                    raise GradingError(f"reward function: {in_one_line(error)}") from error

    async def _agent_loop_postprocess(
        self, output: AgentLoopOutput | list[AgentLoopOutput], validate: bool, **kwargs: Any
    ) -> bool | None:
        """Stores the rollout as verl does and returns whether a training one passed."""
        if validate:
            await super()._agent_loop_postprocess(output, validate, **kwargs)
            return None
        outputs = output if isinstance(output, list) else [output]
        if not outputs:
            raise SaraError("the agent loop returned no output")
        key = (kwargs["uid"], kwargs["session_id"])
        tokens, _ = self.generated.get(key, (0, 0))
        tokens += sum(int(sum(one.response_mask)) for one in outputs)
        self.generated[key] = tokens, len(outputs[0].prompt_ids)
        for one in outputs:
            self._keep_row(one)
        await self._store(super()._agent_loop_postprocess(output, validate, **kwargs), outputs[-1])
        final = outputs[-1]
        return read_outcome(
            final.reward_score,
            final.extra_fields.get("reward_extra_info"),
            key=self.sara.verdict_key,
            threshold=self.sara.success_threshold,
            data_source=kwargs.get("data_source"),
        )

    @staticmethod
    async def _store(storing: Coroutine[Any, Any, None], final: AgentLoopOutput) -> None:
        """Grades and stores; once graded, a timeout waits for the transfer to end before it is raised.

        TransferQueue may lose other groups' data if a key is cleared while it is still being written.
        """
        task = asyncio.ensure_future(storing)
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            if final.reward_score is None:
                task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            raise

    def _keep_row(self, output: AgentLoopOutput) -> None:
        """Gives an empty response one masked end token: it is a wrong answer and needs a row."""
        if not output.response_ids:
            output.response_ids, output.response_mask = [self.tokenizer.eos_token_id], [0]
            if output.response_logprobs is not None:
                output.response_logprobs = [0.0]


class SaraAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager, which registers the prompts with the coordinator before it hands them on."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(SaraAgentLoopWorker)
        versions = check_installation()
        check_alone()
        options = options_of(self.config)
        self.coordinator = coordinator_actor(options, versions)
        preset = options.get("preset")
        print(f"verl_sara: SARA active, preset {preset}, verl {versions['verl']}", flush=True)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Registers training prompts in dispatch order, then starts them; validation is untouched.

        verl hands the first worker the first prompts; refills are few, so the workers take turns.
        """
        validate = bool(prompts["validate"]) if "validate" in prompts else False
        if not validate:
            if "prompt_id" not in prompts:
                raise SaraError("rows have no prompt_id: data.custom_cls must be SaraDataset or derive from it")
            pairs = list(zip(map(str, prompts["uid"]), map(str, prompts["prompt_id"]), strict=True))
            step = _as_int(prompts["global_steps"])
            ray.get(self.coordinator.register.remote(step, pairs, CARRIED.take_restored()))
            WATCH.workers = tuple(self.agent_loop_workers)
        super().generate_sequences(prompts)
        share = -(-len(prompts) // len(self.agent_loop_workers))
        served = -(-len(prompts) // share)
        self.agent_loop_workers = self.agent_loop_workers[served:] + self.agent_loop_workers[:served]


def _as_int(value: Any) -> int:
    value = getattr(value, "data", value)
    return int(value[0] if isinstance(value, (list, tuple)) else value)
