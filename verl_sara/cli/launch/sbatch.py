"""The `sbatch` calls of a submission, as lists of arguments. Nothing is run here."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_sara.cli.launch.command import experiment_name
from verl_sara.cli.launch.recipes import Recipe

JOB = "<job>"
"""Stands for the number of the job that the call before has given."""


@dataclass(frozen=True, slots=True)
class Submission:
    """What is submitted.

    Attributes:
      recipe: The recipe.
      arms: Names of arms.
      seeds: Seeds.
      root: Folder that holds `recipes/` and `slurm/`.
      logs: Folder of the output files.
      nodes: Nodes of each run.
      gpus: GPUs per node, and 8 CPUs for each and 8 more; 0 asks for none.
      options: Options of sbatch, such as "--time=8:00:00".
      overrides: Hydra overrides.
      evaluate: Whether each run is followed by an evaluation of its last checkpoint.
    """

    recipe: Recipe
    arms: Sequence[str]
    seeds: Sequence[int]
    root: Path
    logs: Path
    nodes: int = 1
    gpus: int = 0
    options: Sequence[str] = field(default_factory=tuple)
    overrides: Sequence[str] = field(default_factory=tuple)
    evaluate: bool = False


def sbatch_commands(submission: Submission) -> list[list[str]]:
    """Returns the calls, in order: a job, a job array of arms x seeds, or a job a run on several nodes.

    An evaluation comes right after the call it waits for and names it as `JOB`.
    """
    one = submission
    runs = [(arm, seed) for arm in one.arms for seed in one.seeds]
    if len(runs) > 1 and one.nodes == 1:
        return _with_eval(one, "array.sbatch", one.arms, one.seeds)
    script = "train.sbatch" if one.nodes == 1 else "train_multinode.sbatch"
    return [call for arm, seed in runs for call in _with_eval(one, script, [arm], [seed])]


def _with_eval(one: Submission, script: str, arms: Sequence[str], seeds: Sequence[int]) -> list[list[str]]:
    count = len(arms) * len(seeds)
    array = [f"--array=0-{count - 1}"] if count > 1 else []
    name = experiment_name(one.recipe, arms[0], seeds[0]) if count == 1 else one.recipe.name.replace("/", "-")
    output = one.logs / ("%x-%A_%a.out" if array else "%x-%j.out")
    common = ["sbatch", "--parsable", f"--chdir={one.root}", f"--output={output}", *array, *_resources(one)]
    words = [one.recipe.name, " ".join(arms), " ".join(map(str, seeds))]
    if one.overrides:
        words += ["--", *one.overrides]

    def call(job_name: str, script: str, *options: str) -> list[str]:
        return [*common, f"--job-name={job_name}", *options, *one.options, str(one.root / "slurm" / script), *words]

    calls = [call(name, script, *([f"--nodes={one.nodes}"] if one.nodes > 1 else []))]
    if one.evaluate:
        depends = f"--dependency={'aftercorr' if array else 'afterok'}:{JOB}"
        calls.append(call(f"eval.{name}", "eval.sbatch", depends, "--kill-on-invalid-dep=yes"))
    return calls


def _resources(one: Submission) -> list[str]:
    """GPUs and CPUs per node, unless the user asks for them in whatever way the site wants it."""
    if not one.gpus:
        return []
    has_gpus = any(re.match(r"--gpus|-G|--gres=.*gpu", option) for option in one.options)
    has_cpus = any(re.match(r"--cpus-per|-c", option) for option in one.options)
    gpus = [] if has_gpus else [f"--gpus-per-node={one.gpus}"]
    return gpus if has_cpus else [*gpus, f"--cpus-per-task={8 + 8 * one.gpus}"]
