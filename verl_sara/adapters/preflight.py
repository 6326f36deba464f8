"""The check of a whole run before Ray starts.

Hydra swallows what its callbacks raise, and our classes are built inside Ray actors, so this
callback ends the process itself: one message that names the key, its value and what is allowed.
What needs verl is imported where it is used, after the check of its version.
"""

import copy
import importlib
import math
import os
import sys
from collections.abc import Iterator
from typing import Any

from hydra.experimental.callback import Callback
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from verl_sara.adapters.compat import check_versions
from verl_sara.adapters.run_record import write_run_config
from verl_sara.config.schema import WEIGHTED_ESTIMATORS, SaraConfig, build_config, plain_options
from verl_sara.core import ConfigError, SaraError

OPTIONS = "trainer.v1.sampler.sampler_kwargs"


class SaraPreflight(Callback):
    """Stops the run with status 1 and every problem found, or lets it go on."""

    def on_run_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Puts a user's own dataset class beneath ours, before Hydra copies the config for the job."""
        from verl_sara.adapters.dataset import adopt_own_class

        try:
            if adopt_own_class(config.data):
                base = config.data.custom_cls.sara.base
                print(f"verl_sara: {base.path}:{base.name} is read through SaraDataset", flush=True)
        except SaraError:
            return  # `on_job_start` tells it

    def on_job_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Checks the composed config and writes it beside the ledger."""
        try:
            problems = list(find_problems(config)) or list(_check_sweep(config))
            if not problems:
                _write_config(config)
        except Exception as error:  # Hydra would swallow it, and with it every check that was to follow
            problems = [f"preflight failed: {type(error).__name__}: {error}"]
        if problems:
            for problem in problems:
                print(f"verl_sara: {problem}", file=sys.stderr, flush=True)
            sys.exit(1)


def find_problems(config: DictConfig) -> Iterator[str]:
    """Yields what would make the run fail or be wrong, one sentence each."""
    try:
        check_versions()
        options = build_config(plain_options(OmegaConf.select(config, OPTIONS)))
    except ConfigError as error:
        yield f"{OPTIONS}: {error}"
        return
    except (SaraError, OmegaConfBaseException) as error:
        yield str(error)
        return
    yield from _check_keys(config)
    yield from _check_times(options)
    yield from _check_dataset(config)
    yield from _check_classes(config, options)
    yield from _check_filter(config, options)
    yield from _check_estimator(config, options)
    yield from _check_reward(config)
    yield from _check_sizes(config, options)
    yield from _check_data(config, options)
    yield from _check_selection(config)


# Both modes run with our buffer, but as sync: what they gain is in flight while weights change, and a step of ours ends
# with nothing in flight, since a verdict is about one policy. Lines of verl 0.9.1, verl/trainer/ppo/v1/.
_ASYNC = {
    "colocate_async": (
        "a group comes from one policy, so nothing is in flight that the mode could resume under new weights, "
        "trainer_colocate_async.py:46; it would be sync"
    ),
    "separate_async": (
        "a group comes from one policy, so nothing is generated while weights change, trainer_separate_async.py:382, "
        "and either GPUs would wait for the other; parameter_sync_step > 1 also samples a step in parts, "
        "trainer_base.py:549"
    ),
}


def _check_keys(config: DictConfig) -> Iterator[str]:
    for key, needed, why in (
        ("data.gen_batch_size", 1, "refills are exact numbers of prompts"),
        ("data.dataloader_num_workers", 0, "the dataset holds the state that crosses steps"),
        ("trainer.v1.trainer_mode", "sync", _ASYNC.get(str(config.trainer.v1.trainer_mode), "a step ends whole")),
        ("trainer.use_v1", True, "the hooks belong to the V1 trainer"),
        ("trainer.v1.sampler.sync_refill_failed_groups", False, "it has no effect: our buffer refills by itself"),
    ):
        value = OmegaConf.select(config, key)
        if value != needed:
            yield f"{key} is {value!r}; allowed with SARA: {needed!r} ({why})"


def _check_times(options: SaraConfig) -> Iterator[str]:
    if options.stall_deadline_s <= options.rollout_timeout_s:
        yield (
            f"{OPTIONS}.stall_deadline_s is {options.stall_deadline_s} with rollout_timeout_s "
            f"{options.rollout_timeout_s}; allowed: a deadline longer than a rollout may take, else one slow rollout "
            "stops the run"
        )


def _check_dataset(config: DictConfig) -> Iterator[str]:
    """A dataset class that ours cannot be put upon."""
    from verl_sara.adapters.dataset import SaraDataset, adopt_own_class
    from verl_sara.adapters.own_dataset import with_base

    data = copy.deepcopy(config.data)
    try:
        adopt_own_class(data)
        with_base(SaraDataset, data)
    except ConfigError as error:
        yield str(error)


def _check_sweep(config: DictConfig) -> Iterator[str]:
    """A class that could not be put beneath ours, since Hydra makes the config of a sweep's job by itself."""
    from verl_sara.adapters.dataset import adopt_own_class

    custom = config.data.custom_cls
    if adopt_own_class(copy.deepcopy(config.data)):
        yield (
            f"data.custom_cls is {custom.path}:{custom.name}; allowed in a sweep (--multirun): instead of its path and "
            f"name, data.custom_cls.sara.base.path={custom.path} data.custom_cls.sara.base.name={custom.name}"
        )


def _write_config(config: DictConfig) -> None:
    write_run_config(config, OmegaConf.select(config, f"{OPTIONS}.run_dir"))


def _check_classes(config: DictConfig, options: SaraConfig) -> Iterator[str]:
    buffer = "ObservingReplayBuffer" if options.mode == "observe" else "SaraReplayBuffer"
    key, module = "trainer.v1.sampler.custom_sampler", "verl_sara.adapters.replay_buffer"
    path, name = (OmegaConf.select(config, f"{key}.{part}") for part in ("path", "name"))
    if (str(path), str(name)) != (f"pkg://{module}", buffer):
        observes = _derives(path, name, module, "ObservingReplayBuffer")
        if not _derives(path, name, module, buffer) or observes != (buffer == "ObservingReplayBuffer"):
            yield f"{key} is {path}:{name}; allowed with SARA: {module}.{buffer} or a class derived from it"
    manager = OmegaConf.select(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class")
    module, _, name = str(manager).rpartition(".")
    ours = "verl_sara.adapters.agent_loop"
    if module != ours and not _derives(f"pkg://{module}", name, ours, "SaraAgentLoopManager"):
        yield (
            f"actor_rollout_ref.rollout.agent.agent_loop_manager_class is {manager}; allowed with SARA: "
            f"{ours}.SaraAgentLoopManager or a class derived from it"
        )


def _derives(path: Any, name: Any, module: str, base: str) -> bool:
    from verl.utils.import_utils import load_extern_object

    try:
        return issubclass(load_extern_object(path, name), getattr(importlib.import_module(module), base))
    except Exception:
        return False


def _check_filter(config: DictConfig, options: SaraConfig) -> Iterator[str]:
    enabled = bool(OmegaConf.select(config, "algorithm.filter_groups.enable"))
    if enabled and options.mode == "collect":
        yield (
            "algorithm.filter_groups.enable is true; allowed with SARA: false, which filters itself "
            "(+sara=verl_ds runs verl's own filter)"
        )
    if (OmegaConf.select(config, "algorithm.filter_groups.max_num_gen_batches") or 0) > 0:
        yield (
            "algorithm.filter_groups.max_num_gen_batches is ignored by verl's V1 trainer; allowed: 0 "
            f"(bound a step with {OPTIONS}.max_rollouts_per_step)"
        )


def _check_estimator(config: DictConfig, options: SaraConfig) -> Iterator[str]:
    estimator = str(OmegaConf.select(config, "algorithm.adv_estimator"))
    if options.needs_weights() and estimator not in WEIGHTED_ESTIMATORS:
        yield (
            f"algorithm.adv_estimator is {estimator!r}; allowed with importance_correction="
            f"{options.importance_correction}, short_steps={options.short_steps}: {', '.join(WEIGHTED_ESTIMATORS)} "
            "(verl's other estimators cannot weight a group; GAE has no group)"
        )


def _check_reward(config: DictConfig) -> Iterator[str]:
    old = OmegaConf.select(config, "custom_reward_function.path")
    if old:
        yield (
            f"custom_reward_function.path is {old!r}, which verl 0.9.1 ignores; "
            "the key is reward.custom_reward_function.path"
        )
    model = OmegaConf.select(config, "reward.reward_model")
    if model is not None and model.get("enable") and not model.get("enable_resource_pool"):
        yield (
            "reward.reward_model.enable is true without enable_resource_pool: a colocated reward model grades "
            "after sampling, too late for a verdict; allowed: enable_resource_pool=true or a rule-based reward"
        )


def _check_sizes(config: DictConfig, options: SaraConfig) -> Iterator[str]:
    batch, mini = options.batch_size, options.mini_batch_size
    if batch % mini:
        near = sorted((d for d in range(1, batch + 1) if batch % d == 0), key=lambda d: abs(d - mini))[:2]
        yield (
            f"data.train_batch_size is {batch}, no multiple of actor_rollout_ref.actor.ppo_mini_batch_size {mini}; "
            f"nearest mini-batch sizes that divide it: {', '.join(map(str, sorted(near)))}"
        )
    critic = OmegaConf.select(config, "critic.ppo_mini_batch_size")
    if OmegaConf.select(config, "algorithm.adv_estimator") == "gae" and critic and batch % int(critic):
        yield f"critic.ppo_mini_batch_size is {critic}; allowed: a divisor of data.train_batch_size {batch}"
    world = int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes)
    rows = batch * options.group_size
    if rows % world:
        step = world // math.gcd(world, options.group_size)
        below, above = batch // step * step, -(-batch // step) * step
        yield (
            f"data.train_batch_size x rollout.n = {rows} rows do not divide among {world} GPUs; nearest "
            f"train_batch_size: {' or '.join(str(b) for b in (below, above) if b)}"
        )
        return
    yield from _check_micro_batches(config, rows // world, mini * options.group_size // world)


def _check_micro_batches(config: DictConfig, rows: int, mini_rows: int) -> Iterator[str]:
    """Without dynamic batch sizes verl asserts, in the first step, that micro batches divide a GPU's rows."""
    ours = config.actor_rollout_ref
    if "fsdp" not in str(ours.actor.get("strategy")) or (ours.actor.get("ulysses_sequence_parallel_size") or 1) > 1:
        return
    parts = [
        ("rollout", "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz", rows),
        ("actor", "ppo_micro_batch_size_per_gpu", "use_dynamic_bsz", mini_rows),
    ]
    if ours.actor.get("use_kl_loss") or config.algorithm.get("use_kl_in_reward"):
        parts.append(("ref", "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz", rows))
    for part, key, dynamic, count in parts:
        micro = ours[part].get(key)
        if micro and not ours[part].get(dynamic) and count % micro:
            near = [d for d in range(1, count + 1) if count % d == 0 and d <= micro][-2:]
            yield (
                f"actor_rollout_ref.{part}.{key} is {micro}, which does not divide the {count} rows of a GPU; "
                f"nearest that do: {', '.join(map(str, near))}; allowed, too: actor_rollout_ref.{part}.{dynamic}=true"
            )


def _check_data(config: DictConfig, options: SaraConfig) -> Iterator[str]:
    """Missing or too small training files, as far as parquet's metadata tells."""
    from verl_sara.adapters.dataset import PER_PROMPT_SIZE

    if config.data.train_files == config.data.val_files:
        yield "data.val_files are data.train_files; allowed: other files, since training rows carry state"
    files = config.data.train_files
    files = [files] if isinstance(files, str) else list(files)
    rows = 0
    for name in files:
        path = os.path.expanduser(str(name))
        if "://" in path:
            return
        if not os.path.exists(path):
            yield f"data.train_files: {path} does not exist"
            return
        if not path.endswith(".parquet"):
            return
        import pyarrow.parquet

        metadata = pyarrow.parquet.read_metadata(path)
        rows += metadata.num_rows
        if PER_PROMPT_SIZE in metadata.schema.to_arrow_schema().names:
            yield (
                f"data.train_files: {path} has the column {PER_PROMPT_SIZE}, which has no effect with SARA; allowed: "
                "files without it (every group has actor_rollout_ref.rollout.n rollouts)"
            )
    if rows < options.batch_size:
        yield (
            f"data.train_files hold {rows} prompts, data.train_batch_size is {options.batch_size}; "
            f"allowed: train_batch_size <= {rows}"
        )


def _check_selection(config: DictConfig) -> Iterator[str]:
    from verl_sara.adapters.dataset import build_selection

    options = OmegaConf.select(config, "data.custom_cls.sara.selection")
    try:
        build_selection(plain_options(options if options is not None else {}), ["a", "b"])
    except ConfigError as error:
        yield str(error)
