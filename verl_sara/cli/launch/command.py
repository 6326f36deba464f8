"""The command line of one training or evaluation: verl's `main_ppo`, a recipe, an arm, and where it runs."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_sara.cli.launch.arms import arm_overrides
from verl_sara.cli.launch.recipes import Recipe

MODULE = "verl.trainer.main_ppo"
_PLAIN = re.compile(r"[A-Za-z0-9_./+:@-]+")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a run runs.

    Attributes:
      nodes: Nodes of the job, >= 1.
      gpus: GPUs per node; without an accelerator 0.
      cpus: CPUs per node that Ray may use; None = all of the machine.
      ray_address: Address of a running Ray cluster, "host:port"; empty = verl starts its own.
    """

    nodes: int = 1
    gpus: int = 1
    cpus: int | None = None
    ray_address: str = ""


def setting(key: str, value: object) -> str:
    """Returns the override `key=value`, quoted for Hydra if the value needs it."""
    text = str(value)
    if _PLAIN.fullmatch(text):
        return f"{key}={text}"
    # Hydra: within quotes only the quote itself and backslashes before it are special
    quoted = re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), text)
    return f"{key}='{quoted}'"


def experiment_name(recipe: Recipe, arm: str, seed: int) -> str:
    """Returns the name of a run in verl's logs: letters, digits, `.`, `_`, `-` only."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", f"{recipe.name}.{arm}.seed{seed}")


def train_command(
    recipe: Recipe,
    arm: str,
    seed: int,
    *,
    root: Path,
    run: Path,
    attempt: int,
    place: Placement,
    extra: Sequence[str],
) -> list[str]:
    """Returns the arguments of Python that train one arm; `extra` overrides come last and win.

    Args:
      recipe: The recipe.
      arm: Name of the arm.
      seed: Seed, >= 0.
      root: Folder that holds `recipes/`.
      run: Folder of the run: checkpoints, ledger, logs.
      attempt: Number of this start of the run, from 1.
      place: Where it runs.
      extra: Overrides of the user.
    """
    return [
        *_base(recipe, root),
        *arm_overrides(arm, seed, recipe.name),
        *_placed(recipe, place),
        setting("trainer.default_local_dir", run),
        setting("trainer.experiment_name", experiment_name(recipe, arm, seed)),
        "trainer.resume_mode=auto",
        setting("hydra.run.dir", run / f"hydra/attempt-{attempt}"),
        *extra,
    ]


def eval_command(
    recipe: Recipe,
    *,
    root: Path,
    run: Path,
    step: int,
    place: Placement,
    extra: Sequence[str],
    model: Path | None = None,
) -> list[str]:
    """Returns the arguments of Python that validate the checkpoint of a step, with plain verl.

    Nothing is trained and no ledger is written: checkpoints and logs of the run stay as they are. Only the
    weights are loaded, from the shards of the checkpoint or from `model`, the folder of a merged model.
    """
    shards = [
        "trainer.resume_mode=resume_path",
        setting("trainer.resume_from_path", run / f"global_step_{step}"),
        "actor_rollout_ref.actor.checkpoint.load_contents=[model]",
    ]
    merged = ["trainer.resume_mode=disable", setting("actor_rollout_ref.model.path", model or "")]
    return [
        *_base(recipe, root),
        *_placed(recipe, place),
        setting("trainer.default_local_dir", run / "eval"),
        setting("trainer.experiment_name", f"eval.step-{step}"),
        "trainer.val_only=true",
        "trainer.val_before_train=true",
        *(merged if model else shards),
        setting("hydra.run.dir", run / f"eval/hydra.step-{step}"),
        *extra,
    ]


def _base(recipe: Recipe, root: Path) -> list[str]:
    host = ["+sara/host=cpu"] if recipe.is_cpu else []  # first, so that a recipe may set what its model needs
    return ["-m", MODULE, "--config-dir", str(root), *host, f"+recipes={recipe.option}"]


def _placed(recipe: Recipe, place: Placement) -> list[str]:
    """Nodes, GPUs and Ray. Never `address=auto`, which may join the cluster of somebody else."""
    ray = "++ray_kwargs.ray_init"
    # without an accelerator verl still reserves one logical "GPU" a node, see `+sara/host=cpu`
    settings = [
        f"trainer.nnodes={place.nodes}",
        f"trainer.n_gpus_per_node={1 if recipe.is_cpu else place.gpus}",
    ]
    if place.ray_address:
        return [
            *settings,
            setting(f"{ray}.address", place.ray_address),
            f"{ray}.num_cpus=null",
            f"{ray}.num_gpus=null",
        ]
    cpus = [] if recipe.is_cpu or place.cpus is None else [f"{ray}.num_cpus={place.cpus}"]
    return [*settings, f"{ray}.address=local", *cpus]
