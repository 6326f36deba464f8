"""From a recipe, an arm and a seed to the command that trains it, and to the `sbatch` call that runs that.

Everything here is a pure function of its arguments, except reading recipes and ledgers. The batch
scripts in `slurm/` ask `python -m verl_sara.cli.launch`; `sara submit` and `sara status` use the rest.

- arms: what an arm is, in one table
- recipes: the folders under `recipes/` and the values in them
- command: the command line of a training, and of an evaluation
- evaluation: the weights of a checkpoint and the numbers of its evaluation
- allocation: what Slurm gave the job
- sbatch: the `sbatch` calls
- progress: attempts, steps and savings of a run folder
"""

from verl_sara.cli.launch.allocation import cpus_needed, gpu_count, ports
from verl_sara.cli.launch.arms import ABLATIONS, ARMS, arm_overrides, check_arm
from verl_sara.cli.launch.command import Placement, eval_command, train_command
from verl_sara.cli.launch.recipes import Recipe, find_recipe, recipe_names, run_dir
from verl_sara.cli.launch.sbatch import Submission, sbatch_commands

__all__ = [
    "ABLATIONS",
    "ARMS",
    "Placement",
    "Recipe",
    "Submission",
    "arm_overrides",
    "check_arm",
    "cpus_needed",
    "eval_command",
    "find_recipe",
    "gpu_count",
    "ports",
    "recipe_names",
    "run_dir",
    "sbatch_commands",
    "train_command",
]
