"""A verl run without a model: real Ray, TransferQueue, worker, coordinator and buffer; scripted answers.

Only generation is replaced, behind verl's own agent-loop registry, and the reward worker, behind its
actor interface. What each rollout does is a `Behaviour`, a function of prompt and slot.
"""

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf, open_dict
from tensordict.tensorclass import NonTensorData
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, _agent_loop_registry
from verl.utils import tensordict_utils as tu

from tests.adapters.chance import draw
from verl_sara.adapters.agent_loop import SaraAgentLoopManager, SaraAgentLoopWorker
from verl_sara.adapters.carried import CARRIED
from verl_sara.adapters.compat import check_installation
from verl_sara.adapters.coordinator import coordinator_actor
from verl_sara.config.schema import options_of, plain_options
from verl_sara.ledger import read_ledger


@dataclass(frozen=True)
class Behaviour:
    """What one rollout does.

    Attributes:
      info: What the reward returns; None = {"score": acc, "acc": acc} of `passed`.
      passed: Outcome if `info` is None.
      tokens: Length of the response; 0 = empty.
      delay_s: Seconds of generation.
      generate: Exception text if generation fails, a ConnectionError if it speaks of "lost"; "hang" = never
        returns, "die" = the worker's process ends.
      grade: Exception text if the reward raises, "hang" = never returns, "die" = its process ends.
      times: How many attempts the faults last; later ones succeed.
    """

    passed: bool = True
    info: Any = None
    tokens: int = 3
    delay_s: float = 0.0
    generate: str = ""
    grade: str = ""
    times: int = 10**9


Script = Callable[[str, int], Behaviour]


def pool(prompt_id: str, slot: int) -> Behaviour:
    """A U-shaped pool: a third hard, a third easy, a third mixed prompts."""
    rate = (0.0, 1.0, 0.5)[int(draw("kind", prompt_id) * 3)]
    return Behaviour(passed=draw("roll", prompt_id, slot) < rate, tokens=1 + int(draw("len", prompt_id, slot) * 5))


class ScriptedLoop:
    """verl's agent loop, answering from the script instead of a model."""

    def __init__(self, **kwargs: Any) -> None:
        self.script: Script = ScriptedWorker.script
        self.attempts = ScriptedWorker.attempts

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        prompt_id, slot = row["prompt_id"], row["session_id"]
        behaviour = self.script(prompt_id, slot)
        key = (row["uid"], slot)
        self.attempts[key] = self.attempts.get(key, 0) + 1
        await asyncio.sleep(behaviour.delay_s)
        if behaviour.generate and self.attempts[key] <= behaviour.times:
            if behaviour.generate == "hang":
                await asyncio.sleep(3600)
            if behaviour.generate == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise (ConnectionError if "lost" in behaviour.generate else RuntimeError)(behaviour.generate)
        return AgentLoopOutput(
            prompt_ids=[1, 2, 3],
            response_ids=[5] * behaviour.tokens,
            response_mask=[1] * behaviour.tokens,
            response_logprobs=[-0.5] * behaviour.tokens,
            num_turns=2,
            metrics=AgentLoopMetrics(),
            extra_fields={},
        )


_agent_loop_registry["single_turn_agent"] = {"_target_": "tests.adapters.scripted.ScriptedLoop"}


@ray.remote
class ScriptedReward:
    """verl's reward-loop worker, grading from the script."""

    def configure(self, script: Script) -> None:
        self.script, self.attempts = script, {}

    async def compute_score(self, data: Any) -> dict[str, Any]:
        row = {key: data.non_tensor_batch[key][-1] for key in ("prompt_id", "session_id", "uid")}
        key = (row["uid"], int(row["session_id"]))
        self.attempts[key] = self.attempts.get(key, 0) + 1
        behaviour = self.script(str(row["prompt_id"]), int(row["session_id"]))
        if behaviour.grade and self.attempts[key] <= behaviour.times:
            if behaviour.grade == "hang":
                await asyncio.sleep(3600)
            if behaviour.grade == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            raise ValueError(behaviour.grade)
        info = behaviour.info
        if info is None:
            info = {"score": float(behaviour.passed), "acc": int(behaviour.passed)}
        return {"reward_score": info.get("score", 0.0), "reward_extra_info": info}


class _Tokenizer:
    eos_token_id = 2


class ScriptedWorker(SaraAgentLoopWorker):
    """The real worker without tokenizer, model and tools."""

    script: Script = staticmethod(pool)
    attempts: dict[tuple[str, int], int]

    def __init__(self, reward: Any) -> None:
        tq.init()
        self.llm_client, self.dataset_cls, self.tools = None, None, []
        self.tokenizer, self.processor, self.hf_model_type = _Tokenizer(), None, None
        self.mm_processor_kwargs, self.distillation_enabled, self.background_tasks = {}, False, set()
        self.reward_loop_worker_handles = [reward]

    async def take_attempts(self) -> int:
        """Returns how many slots were generated since the last call."""
        count = len(self.attempts)
        self.attempts.clear()
        return count

    async def pending(self) -> dict[str, int]:
        """Returns what the worker still holds; all zero between steps."""
        boxes, outgoing = self.mailbox._boxes, self.mailbox._outgoing
        tasks = [task for task in self.background_tasks if not task.done()]
        return {"tasks": len(tasks), "tokens": len(self.generated), "boxes": len(boxes), "outgoing": len(outgoing)}

    async def drain(self) -> None:
        """Ends what an interrupted run left behind."""
        for task in self.background_tasks:
            task.cancel()
        await asyncio.gather(*self.background_tasks, return_exceptions=True)

    async def configure(self, config: DictConfig, script: Script) -> None:
        type(self).script, type(self).attempts = staticmethod(script), {}
        self.config = config
        self._connect()


class ScriptedManager(SaraAgentLoopManager):
    """The real manager with scripted workers."""

    def __init__(self, config: DictConfig, script: Script, actors: "Actors") -> None:
        self.config, self.agent_loop_workers = config, actors.workers
        self.coordinator = coordinator_actor(options_of(config), check_installation())
        ray.get([actors.reward.configure.remote(script)])
        ray.get([worker.configure.remote(config, script) for worker in actors.workers])


class Actors:
    """The processes that import verl, shared by most tests: a reward worker and two rollout workers."""

    def __init__(self, num_workers: int = 2) -> None:
        self.reward = ScriptedReward.options(num_cpus=0).remote()
        worker = ray.remote(ScriptedWorker).options(num_cpus=0)
        self.workers = [worker.remote(self.reward) for _ in range(num_workers)]

    def drain(self) -> None:
        """Ends what an interrupted run left behind, in the workers that are still there."""
        for worker in self.workers:
            with contextlib.suppress(ray.exceptions.RayActorError):
                ray.get(worker.drain.remote())

    def close(self) -> None:
        """Ends the processes."""
        for actor in (self.reward, *self.workers):
            ray.kill(actor)


def compose_config(*overrides: str) -> DictConfig:
    """Returns verl's composed config."""
    with initialize_config_module("verl.trainer.config", version_base=None):
        return compose("ppo_trainer", overrides=["trainer.nnodes=1", "trainer.n_gpus_per_node=1", *overrides])


@dataclass
class Host:
    """verl's trainer as far as rollout collection goes.

    Attributes:
      run_dir: Folder of the ledger.
      overrides: Hydra overrides, the preset among them.
      actors: The shared processes.
      script: What the rollouts do.
      num_prompts: Size of the data set; prompts come in order, pass after pass.
      options: Options of ours.
    """

    run_dir: Path
    overrides: tuple[str, ...]
    actors: Actors
    script: Script = pool
    num_prompts: int = 1000
    options: dict[str, Any] = field(default_factory=dict)
    step: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        self.config = compose_config(
            "actor_rollout_ref.rollout.n=8", "data.train_batch_size=4",
            "actor_rollout_ref.actor.ppo_mini_batch_size=4", f"trainer.default_local_dir={self.run_dir}",
            *self.overrides,
        )  # fmt: skip
        sampler = self.config.trainer.v1.sampler
        with open_dict(sampler):
            sampler.sampler_kwargs.update(self.options)
        OmegaConf.resolve(sampler)
        CARRIED.coordinator, CARRIED.restored = {}, None
        CARRIED.observe = CARRIED.num_free = None
        from verl.utils.import_utils import load_extern_object

        buffer_class = load_extern_object(sampler.custom_sampler.path, sampler.custom_sampler.name)
        self.buffer = buffer_class(
            trainer_mode="sync",
            trainer_config=self.config.trainer.v1.sync,
            max_off_policy_threshold=sampler.max_off_policy_threshold,
            max_off_policy_strategy=sampler.max_off_policy_strategy,
            sampler_kwargs=sampler.sampler_kwargs,
            refill_fn=self.submit,
        )
        self.manager = ScriptedManager(self.config, self.script, self.actors)

    @property
    def sara(self) -> dict[str, Any]:
        return plain_options(self.config.trainer.v1.sampler.sampler_kwargs)

    def submit(self, count: int, partition: str = "train") -> list[str]:
        """verl's `_add_prompts_to_generate`: fetches prompts and hands them to the manager."""
        rows = [(self.position + i) % self.num_prompts for i in range(count)]
        if partition == "train":
            self.position += count
        uids = [str(uuid.uuid4()) for _ in rows]
        batch = {
            "uid": np.array(uids, dtype=object),
            "raw_prompt": np.array([[{"role": "user", "content": str(r)}] for r in rows], dtype=object),
            "data_source": np.array(["scripted"] * count, dtype=object),
            "index": np.array(rows, dtype=object),
            "prompt_id": np.array([f"p{r}" for r in rows], dtype=object),
        }
        data = tu.get_tensordict(batch)
        tu.assign_non_tensor_data(data, "global_steps", self.step)
        if partition == "val":
            data["validate"] = NonTensorData(True)
        tags = [{"is_prompt": True, "status": "pending", "global_steps": self.step} for _ in rows]
        tq.kv_batch_put(keys=uids, partition_id=partition, tags=tags)
        self.manager.generate_sequences(data)
        return uids

    def run_step(self) -> tuple[Any, dict[str, Any]]:
        """verl's `step` up to the sampled batch, and its clean-up."""
        self.step += 1
        self.submit(self.config.data.train_batch_size)
        batch, metrics = self.buffer.sample(
            global_steps=self.step, partition_id="train", batch_size=self.config.data.train_batch_size
        )
        return batch, metrics

    def end_step(self, batch: Any) -> None:
        tq.kv_clear(keys=batch.keys, partition_id=batch.partition_id)

    def ledger(self) -> Any:
        return read_ledger(self.sara["run_dir"])

    def close(self) -> None:
        """Ends the coordinator, so that the next run starts afresh, and clears what a failed one left."""
        ray.kill(self.manager.coordinator)
        self.actors.drain()
        for partition, keys in (tq.kv_list() or {}).items():
            if keys:
                tq.kv_clear(keys=list(keys), partition_id=partition)


def keys_left() -> list[str]:
    """Returns all keys in TransferQueue."""
    return [key for keys in (tq.kv_list() or {}).values() for key in keys]
