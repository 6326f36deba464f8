"""`sara submit`: trains arms of a recipe on Slurm; prints the sbatch calls, the jobs, and how to follow them."""

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from verl_sara.cli.launch import (
    ARMS,
    Placement,
    Submission,
    check_arm,
    find_recipe,
    run_dir,
    sbatch_commands,
    train_command,
)
from verl_sara.cli.launch.arms import check_seeds
from verl_sara.cli.launch.sbatch import JOB
from verl_sara.core import ConfigError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "submit",
        help="train arms of a recipe on Slurm",
        usage="sara submit RECIPE --arm A,B [--seed 0,1] [options] [-- OVERRIDE ...]",
        description="Submits one job, or a job array of arms x seeds. Everything is checked first: names, and, "
        "where verl is installed, the whole composed run.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="folder under recipes/, or folder/variant")
    parser.add_argument("--arm", required=True, metavar="A,B", help=f"arms, such as {', '.join(ARMS)}")
    parser.add_argument("--seed", default="0", metavar="N,M", help="seeds, default 0")
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="nodes of each run; default: the recipe's nnodes"
    )
    parser.add_argument(
        "--slurm", action="append", default=[], metavar="OPTION", help="option of sbatch; repeatable"
    )
    parser.add_argument("--eval", action="store_true", help="evaluate each run's last checkpoint afterwards")
    parser.add_argument("--dry-run", action="store_true", help="print the calls and submit nothing")
    parser.add_argument(
        "--root", type=Path, default=Path.cwd(), metavar="DIR", help="project folder; default: here"
    )
    parser.set_defaults(func=run)
    _split_overrides(parser)


def _split_overrides(parser: argparse.ArgumentParser) -> None:
    """Takes what follows `--` as `overrides`; argparse cannot have a list both after RECIPE and after options."""
    parse = parser.parse_known_args

    def parse_known_args(args, namespace=None):  # type: ignore[no-untyped-def]
        words = list(args)
        cut = words.index("--") if "--" in words else len(words)
        namespace, rest = parse(words[:cut], namespace)
        namespace.overrides = words[cut + 1 :]
        return namespace, rest

    parser.parse_known_args = parse_known_args  # type: ignore[method-assign]


def run(args: argparse.Namespace) -> int:
    """Checks, prints and submits; returns 1 if sbatch refuses."""
    one = submission(args)
    check(one)
    calls = sbatch_commands(one)
    if args.dry_run:
        print("\n".join(map(shlex.join, calls)))
        return 0
    if not shutil.which("sbatch"):
        raise ConfigError(
            "there is no sbatch here; submit from a login node, or see the calls with --dry-run"
        )
    one.logs.mkdir(parents=True, exist_ok=True)
    return _submit(one, calls)


def submission(args: argparse.Namespace) -> Submission:
    """Returns what the arguments ask for.

    Raises:
      ConfigError: If a recipe, arm, seed or number of nodes is not allowed.
    """
    root = args.root.resolve()
    recipe = find_recipe(root, args.recipe)
    arms = [check_arm(name) for name in args.arm.split(",")]
    if len(set(arms)) < len(arms):
        raise ConfigError(f"arms are {args.arm}; allowed: every arm once")
    nodes = args.nodes or recipe.whole("trainer.nnodes", args.overrides) or 1
    if nodes < 1:
        raise ConfigError(f"--nodes is {nodes}; allowed: >= 1")
    return Submission(
        recipe=recipe,
        arms=arms,
        seeds=check_seeds(args.seed.split(",")),
        root=root,
        logs=_runs(root) / "slurm",
        nodes=nodes,
        gpus=0 if recipe.is_cpu else recipe.whole("trainer.n_gpus_per_node", args.overrides) or 1,
        options=args.slurm,
        overrides=args.overrides,
        evaluate=args.eval,
    )


def _runs(root: Path) -> Path:
    return Path(os.environ.get("SARA_RUNS", root / "runs"))


def check(one: Submission) -> None:
    """Composes every arm as the job will and checks it, where verl is installed.

    Raises:
      ConfigError: With what is wrong with the first arm that cannot run.
    """
    if importlib.util.find_spec("verl") is None:
        print("note: verl is not installed here, so the overrides are checked only when the job starts")
        return
    from verl_sara.cli.doctor import check_run

    folder = one.recipe.name.partition("/")[0]
    os.environ.setdefault("SARA_DATA", str(one.root / "data"))
    os.environ.setdefault(folder.upper(), str(one.root / ".cache" / folder))
    for arm in one.arms:
        place = Placement(nodes=one.nodes, gpus=one.gpus)
        run_folder = run_dir(_runs(one.root), one.recipe.name, arm, one.seeds[0])
        command = train_command(
            one.recipe,
            arm,
            one.seeds[0],
            root=one.root,
            run=run_folder,
            attempt=1,
            place=place,
            extra=one.overrides,
        )
        overrides = [word for word in command[4:] if not word.startswith("hydra.")]
        if problems := check_run(overrides, str(one.root)):
            raise ConfigError(f"arm {arm} of {one.recipe.name} cannot run: " + "; ".join(problems))


def _submit(one: Submission, calls: list[list[str]]) -> int:
    job = ""
    for call in calls:
        call = [word.replace(JOB, job) for word in call]
        print(shlex.join(call))
        done = subprocess.run(call, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"sbatch refused: {done.stderr.strip()}")
            return 1
        job = done.stdout.strip().partition(";")[0]
        print(f"job {job}")
    folder = _runs(one.root) / one.recipe.name
    print(f"follow: squeue --me; tail -f {shlex.quote(str(one.logs))}/*-{job}*.out; sara status {folder}")
    return 0
