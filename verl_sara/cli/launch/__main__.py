"""What the batch scripts ask: `python -m verl_sara.cli.launch QUESTION ...`, answers on stdout.

Commands come as arguments that end in a NUL byte, since paths and overrides may hold anything else.
"""

import argparse
import os
import shlex
import sys
from pathlib import Path

from verl_sara.cli.launch import (
    Placement,
    Recipe,
    cpus_needed,
    eval_command,
    find_recipe,
    gpu_count,
    ports,
    run_dir,
    train_command,
)
from verl_sara.cli.launch.evaluation import merge, require_checkpoint, write_numbers
from verl_sara.cli.launch.progress import check_finished, checkpoint_step, last_step, next_attempt
from verl_sara.core import SaraError
from verl_sara.cpu import cpu_environment

STEPS = "trainer.total_training_steps"
UNITS, DEFAULT_UNITS = "transfer_queue.backend.SimpleStorage.num_data_storage_units", 8
LOGICAL = {"SARA_RAY_CPUS": "32", "SARA_RAY_GPUS": "1"}
"""What a node without an accelerator declares to Ray, as `+sara/host=cpu` does."""


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser."""
    parser = argparse.ArgumentParser(
        prog="python -m verl_sara.cli.launch", description=__doc__.splitlines()[0]
    )
    questions = parser.add_subparsers(dest="question", required=True)
    run = argparse.ArgumentParser(add_help=False)
    run.add_argument("--root", type=Path, required=True)
    run.add_argument("--runs", type=Path, required=True)
    run.add_argument("recipe")
    run.add_argument("arm")
    run.add_argument("seed", type=int)
    placed = argparse.ArgumentParser(add_help=False)
    placed.add_argument("--nodes", type=int, default=1)
    placed.add_argument("--cpus", type=int)
    placed.add_argument("--ray-address", default="")
    run_again = [run, placed]
    questions.add_parser("train", parents=run_again).set_defaults(func=_train)
    one_step = argparse.ArgumentParser(add_help=False)
    one_step.add_argument("--step", type=int, required=True)
    questions.add_parser("eval", parents=[*run_again, one_step]).set_defaults(func=_eval)
    numbers = questions.add_parser("numbers", parents=[run, one_step], help="writes what an evaluation found")
    numbers.add_argument("--log", type=Path, required=True)
    numbers.set_defaults(func=_numbers)
    where = questions.add_parser(
        "where", parents=[run], help="run folder, next attempt, last step, steps asked for"
    )
    where.set_defaults(func=_where)
    check = questions.add_parser("check", parents=[run], help="did the attempt do what was asked?")
    check.add_argument("--attempt", type=int, required=True)
    check.set_defaults(func=_check)
    env = questions.add_parser("env", parents=[run], help="exports that the recipe needs")
    env.set_defaults(func=_env)
    free = questions.add_parser("ports")
    for name in ("job", "node", "count"):
        free.add_argument(name, type=int)
    free.set_defaults(func=lambda args, extra: print(*ports(args.job, args.node, args.count)))
    gpus = questions.add_parser("gpus", help="GPUs of the job on this node")
    gpus.set_defaults(func=lambda args, extra: print(gpu_count(os.environ)))
    return parser


def _run(args: argparse.Namespace) -> Path:
    return run_dir(args.runs, args.recipe, args.arm, args.seed)


def _place(args: argparse.Namespace, recipe: Recipe, extra: list[str]) -> Placement:
    place = Placement(args.nodes, gpu_count(os.environ), args.cpus, args.ray_address)
    if recipe.is_cpu:
        return place
    if not place.gpus:
        raise SaraError(f"the job has no GPU and {args.recipe} needs one; add --gpus-per-node=N to sbatch")
    needed = cpus_needed(place.gpus, place.nodes, recipe.whole(UNITS, extra) or DEFAULT_UNITS)
    if place.cpus is not None and place.cpus < needed:
        raise SaraError(
            f"the job has {place.cpus} CPUs a node, and verl would wait for ever with fewer than {needed}; "
            f"add --cpus-per-task={needed} or more to sbatch, or set {UNITS} below {DEFAULT_UNITS}"
        )
    return place


def _print_command(command: list[str]) -> None:
    sys.stdout.write("".join(f"{argument}\0" for argument in command))


def _train(args: argparse.Namespace, extra: list[str]) -> None:
    recipe, run = find_recipe(args.root, args.recipe), _run(args)
    command = train_command(
        recipe, args.arm, args.seed, root=args.root, run=run, attempt=next_attempt(run),
        place=_place(args, recipe, extra), extra=extra,
    )  # fmt: skip
    _print_command(command)


def _eval(args: argparse.Namespace, extra: list[str]) -> None:
    run, variant = _run(args), f"{args.recipe.partition('/')[0]}/eval"
    recipe = find_recipe(args.root, args.recipe)
    if (args.root / f"recipes/{variant}.yaml").exists():
        recipe = find_recipe(args.root, variant)
    require_checkpoint(run, args.step)
    place = _place(args, recipe, extra)
    model = merge(run, args.step, place.nodes * (1 if recipe.is_cpu else place.gpus))
    command = eval_command(
        recipe, root=args.root, run=run, step=args.step, place=place, extra=extra, model=model
    )
    _print_command(command)


def _numbers(args: argparse.Namespace, extra: list[str]) -> None:
    facts = {"recipe": args.recipe, "arm": args.arm, "seed": args.seed, "overrides": extra}
    print(write_numbers(_run(args), args.step, args.log, facts))


def _where(args: argparse.Namespace, extra: list[str]) -> None:
    recipe, run = find_recipe(args.root, args.recipe), _run(args)
    facts = (run, next_attempt(run), last_step(run), recipe.whole(STEPS, extra) or 0, checkpoint_step(run))
    _print_command([str(fact) for fact in facts])


def _check(args: argparse.Namespace, extra: list[str]) -> None:
    steps = find_recipe(args.root, args.recipe).whole(STEPS, extra)
    print(check_finished(_run(args), args.attempt, steps))


def _env(args: argparse.Namespace, extra: list[str]) -> None:
    """Exports of a CPU recipe: the platform, and the folder that its prepare.py fills."""
    recipe = find_recipe(args.root, args.recipe)
    if not recipe.is_cpu:
        return
    folder = recipe.name.partition("/")[0]
    data = os.environ.get(folder.upper(), str(args.root / ".cache" / folder))
    for name, value in {**cpu_environment(), **LOGICAL, folder.upper(): data}.items():
        print(f"export {name}={shlex.quote(value)}")


def main(argv: list[str] | None = None) -> int:
    """Answers one question; what follows `--` are Hydra overrides. Returns the exit status."""
    arguments = sys.argv[1:] if argv is None else argv
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    args = build_parser().parse_args(arguments[:cut])
    try:
        args.func(args, arguments[cut + 1 :])
    except (SaraError, OSError) as error:
        print(f"verl_sara.cli.launch {args.question}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
