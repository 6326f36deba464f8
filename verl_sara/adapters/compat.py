"""Every seam of verl that the adapters stand on, by name, and the check that it is there.

Supported: verl 0.9.1 with TransferQueue >= 0.1.9 (earlier ones lose data when groups are cleared).
"""

import inspect
from importlib import metadata
from typing import Any

from packaging.version import Version

from verl_sara.core import SaraError

SUPPORTED_VERL = ("0.9.1",)
LEAST_TRANSFER_QUEUE = "0.1.9"
COORDINATOR = "verl_sara_coordinator_"
"""Start of the name of a run's coordinator actor; the Ray job's id follows."""

# class -> the methods we override or call, with the parameters we rely on
SEAMS: dict[str, dict[str, tuple[str, ...]]] = {
    "verl.trainer.ppo.v1.agent_loop_tq:AgentLoopManagerTQ": {"generate_sequences": ("prompts",)},
    "verl.experimental.agent_loop:AgentLoopWorker": {
        "_run_agent_loop": ("sampling_params", "trajectory", "agent_name", "trace"),
        "_compute_score": ("outputs", "kwargs"),
    },
    "verl.trainer.ppo.v1.replay_buffer:ReplayBuffer": {
        "__init__": ("trainer_mode", "trainer_config", "sampler_kwargs", "poll_interval", "refill_fn"),
        "sample": ("global_steps", "partition_id", "batch_size"),
        "_sync_metadata_from_transfer_queue": (),
        "_clear_groups": ("partition_id", "uids"),
        "_materialize_batch": ("partition_id", "selected_prompt_uids", "partition_snapshot"),
        "_evict_terminal_groups": ("global_steps", "partition_id", "eviction_reasons"),
        "_select_prompt_uids": ("partition_id", "sampleable_keys", "batch_size"),
    },
    "verl.utils.dataset.rl_dataset:RLHFDataset": {"__getitem__": ("item",)},
}


class CompatibilityError(SaraError, ImportError):
    """The installed verl, or something it needs, is not what the adapters were built on."""


def check_installation() -> dict[str, str]:
    """Returns the versions found, after checking versions and seams.

    Raises:
      CompatibilityError: Naming what differs and what is supported.
    """
    versions = check_versions()
    for seam, methods in SEAMS.items():
        module, _, name = seam.partition(":")
        try:
            owner = getattr(__import__(module, fromlist=[name]), name)
        except (ImportError, AttributeError) as error:
            raise CompatibilityError(f"verl {versions['verl']} has no {seam}: {error}") from error
        for method, parameters in methods.items():
            _check_method(seam, getattr(owner, method, None), method, parameters)
    return versions


def check_versions() -> dict[str, str]:
    """Returns the versions of verl and TransferQueue, or raises CompatibilityError. Imports neither."""
    versions = {}
    for package in ("verl", "TransferQueue"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError as error:
            raise CompatibilityError(f"{package} is not installed; see the README, section Install") from error
    if Version(versions["verl"]).base_version not in SUPPORTED_VERL:
        raise CompatibilityError(f"verl is {versions['verl']}; supported: {', '.join(SUPPORTED_VERL)}")
    if Version(versions["TransferQueue"]) < Version(LEAST_TRANSFER_QUEUE):
        raise CompatibilityError(f"TransferQueue is {versions['TransferQueue']}; needed: >= {LEAST_TRANSFER_QUEUE}")
    return versions


def _check_method(seam: str, function: Any, method: str, parameters: tuple[str, ...]) -> None:
    if function is None:
        raise CompatibilityError(f"{seam} has no method {method}")
    present = inspect.signature(function).parameters
    missing = [name for name in parameters if name not in present]
    if missing:
        raise CompatibilityError(f"{seam}.{method} has no parameter {missing[0]}")


def plain_worker_class() -> type:
    """Returns verl's agent-loop worker as a plain class.

    verl decorates it with `ray.remote` (verl/trainer/ppo/v1/agent_loop_tq.py), and Ray forbids
    inheriting from an actor class; the plain one is kept in its metadata.
    """
    from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ

    return AgentLoopWorkerTQ.__ray_metadata__.modified_class


def check_alone() -> None:
    """Checks that no other run uses this Ray cluster.

    verl's TransferQueue is one per cluster, whatever the namespace (transfer_queue/interface.py:119): two runs
    would read and clear each other's rollouts.

    Raises:
      CompatibilityError: If another job's coordinator lives there.
    """
    import ray
    from ray.util import list_named_actors

    own = str(ray.get_runtime_context().get_job_id())
    names = [str(actor["name"]) for actor in list_named_actors(all_namespaces=True)]
    others = sorted(name for name in names if name.startswith(COORDINATOR) and not name.endswith(f"_{own}"))
    if others:
        raise CompatibilityError(
            f"another run of SARA (Ray job {others[0].rpartition('_')[2]}) uses this Ray cluster, and verl's "
            "TransferQueue is one per cluster; allowed: a Ray of its own for each run (unset RAY_ADDRESS, or wait)"
        )


def was_lost(failure: BaseException) -> bool:
    """Returns whether a rollout's server or worker was lost, which cannot depend on what the model wrote.

    An error raised inside a server arrives as RayTaskError with its cause and counts only if the cause is a loss,
    vLLM's dead engine among them: a prompt that has grown too long in a later turn, say, is none.
    """
    from ray.exceptions import RayError, RayTaskError

    if isinstance(failure, RayTaskError):
        cause = failure.cause
        return cause is not None and cause is not failure and was_lost(cause)
    return isinstance(failure, (RayError, OSError)) or type(failure).__name__ == "EngineDeadError"
