"""The data-dispatch hook: waits for the step, refills, and hands the groups to the optimizer.

Named by `trainer.v1.sampler.custom_sampler`. Validation goes through verl's own buffer untouched.
"""

from typing import Any

import ray
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from verl_sara.adapters import estimators  # noqa: F401  (registers them)
from verl_sara.adapters.carried import CARRIED
from verl_sara.adapters.compat import check_installation
from verl_sara.adapters.coordinator import coordinator_actor
from verl_sara.adapters.messages import Action, StepResult
from verl_sara.adapters.watch import WATCH
from verl_sara.config.schema import build_config, plain_options
from verl_sara.core import ConfigError, Fate, SaraError, merge_changes

VALIDATION_POLL_S = 0.5
WATCH_S = 1.0
"""Between two looks at the rollout workers while a step is waited for."""


class StalledError(SaraError, RuntimeError):
    """The step cannot be completed; the message names the cause."""


class SaraReplayBuffer(ReplayBuffer):
    """Decides nothing: does what the coordinator says, and nothing is in flight when `sample` returns."""

    def __init__(self, *, sampler_kwargs: Any, trainer_mode: str, refill_fn: Any = None, **kwargs: Any) -> None:
        options = plain_options(sampler_kwargs)
        self.sara = build_config(options)
        if trainer_mode != "sync":
            raise ConfigError(f"trainer.v1.trainer_mode is {trainer_mode!r}; allowed with SARA: sync")
        super().__init__(
            sampler_kwargs=sampler_kwargs,
            trainer_mode=trainer_mode,
            refill_fn=refill_fn,
            **self._verl_arguments(kwargs),
        )
        self.coordinator = coordinator_actor(options, check_installation())

    def _verl_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, "poll_interval": VALIDATION_POLL_S}

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Returns the step's groups in dispatch order and the numbers of the step.

        Raises:
          StalledError: If no progress is possible; the message names the cause.
        """
        if partition_id == "val":
            return super().sample(global_steps=global_steps, partition_id=partition_id, batch_size=batch_size)
        self._wait(global_steps)
        result = ray.get(self.coordinator.finish_step.remote(global_steps))
        metrics = self._keep(result)
        return self._take(partition_id, result), metrics

    def _wait(self, step: int) -> None:
        """Serves the coordinator's requests until the step is over."""
        while True:
            action = self._next_action(step)
            if action.error:
                raise StalledError(f"verl_sara: {action.error}")
            if action.report:
                print(f"verl_sara: {action.report}", flush=True)
            if action.refill:
                self._refill(step, action.refill)
            if action.is_done:
                return

    def _next_action(self, step: int) -> Action:
        request = self.coordinator.next_action.remote(step)
        while not ray.wait([request], timeout=WATCH_S)[0]:
            if death := WATCH.death():
                raise StalledError(f"verl_sara: {death}")
        return ray.get(request)

    def _refill(self, step: int, count: int) -> None:
        """Fetches fresh prompts, as many as there are that are not in flight."""
        free = count if CARRIED.num_free is None else min(count, CARRIED.num_free())
        if free:
            self.refill_fn(free)
        if free < count:
            ray.get(self.coordinator.end_refills.remote(step))

    @staticmethod
    def _keep(result: StepResult) -> dict[str, float]:
        """Passes on what the step changed and returns the numbers of the step."""
        if result.report:
            print(f"verl_sara: {result.report}", flush=True)
        CARRIED.weights = result.weights
        priors = merge_changes(CARRIED.coordinator.get("priors", {}), result.state["priors"])
        state = {**result.state, "priors": priors}
        return result.metrics | CARRIED.end_step(state, result.evidence, result.unused)

    def _take(self, partition_id: str, result: StepResult) -> KVBatchMeta:
        """Clears everything but the trained groups and returns those, every row accounted for."""
        self._sync_metadata_from_transfer_queue()
        found: dict[str, set[int]] = {}
        for key in self.partitions[partition_id]:
            uid, session = key.split("_")[:2]
            if self.sara.needs_weights() and int(session) in found.get(uid, ()):
                raise StalledError(
                    f"verl_sara: a rollout of prompt {uid} has several outputs, of which verl's group estimators take "
                    "the last and the weighted ones would take all; allowed: importance_correction=none, "
                    "short_steps=warn, or an agent loop with one output"
                )
            found.setdefault(uid, set()).add(int(session))
        for uid, sessions in result.sessions.items():
            if missing := sorted(set(sessions) - found.get(uid, set())):
                raise StalledError(f"verl_sara: TransferQueue lost rollouts {missing} of prompt {uid}")
        trained = set(result.trained)
        known = found.keys() | self.prompt_global_steps[partition_id].keys()
        self._clear_groups(partition_id, set(known) - trained)
        rank = {uid: position for position, uid in enumerate(result.trained)}
        rows = self.partitions[partition_id]
        ordered = sorted(rows, key=lambda key: (rank[key.split("_")[0]], *map(int, key.split("_")[1:])))
        return self._materialize_batch(partition_id, result.trained, {key: rows[key] for key in ordered})


class ObservingReplayBuffer(SaraReplayBuffer):
    """verl's own buffer with the stock arguments; records which groups it evicted, dropped or trained."""

    def __init__(self, **kwargs: Any) -> None:
        self.fates: dict[str, str] = {}
        self.step = 0
        super().__init__(**kwargs)

    def _verl_arguments(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {
            **kwargs,
            "filter_groups_metric": self.sara.filter_metric,
            "train_batch_size": self.sara.batch_size,
            "gen_batch_size": 1,
            "max_inflight_gen_batches": self.sara.max_inflight_gen_batches,
        }

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, Any]]:
        """Returns what verl's buffer returns, with the step's numbers added."""
        if partition_id == "val":
            return ReplayBuffer.sample(self, global_steps, partition_id, batch_size)
        self.fates, self.step = {}, global_steps
        batch, metrics = ReplayBuffer.sample(self, global_steps, partition_id, batch_size)
        self._raise_trouble()
        result = ray.get(self.coordinator.finish_observed.remote(global_steps, self.fates))
        return batch, metrics | self._keep(result)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        """Waits as verl does, but not for a step that cannot end."""
        if partition_id != "val":
            self._raise_trouble()
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _raise_trouble(self) -> None:
        if trouble := ray.get(self.coordinator.trouble.remote(self.step)) or WATCH.death():
            raise StalledError(f"verl_sara: {trouble}")

    def _evict_terminal_groups(self, global_steps: int, partition_id: str, eviction_reasons: Any) -> Any:
        if partition_id != "val":
            stale, filtered, failed, _ = eviction_reasons
            self.fates.update(dict.fromkeys(stale | filtered, Fate.ABANDONED.value))
            self.fates.update(dict.fromkeys(failed, Fate.FAILED.value))
        return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)

    def _select_prompt_uids(self, partition_id: str, sampleable_keys: set[str], batch_size: int) -> Any:
        selected, *rest = super()._select_prompt_uids(partition_id, sampleable_keys, batch_size)
        if partition_id != "val":
            self.fates.update(dict.fromkeys(sampleable_keys, Fate.SURPLUS.value))
            self.fates.update(dict.fromkeys(selected, Fate.TRAINED.value))
        return (selected, *rest)
