"""`sara data`: writes MATH, AIME24 or Countdown as train and test parquet in verl's schema."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from verl_sara.core import SaraError
from verl_sara.data import build
from verl_sara.data.countdown import OPERATORS, TEMPLATES
from verl_sara.data.prepare import INSTRUCTION

_MAX_SHOWN = 20


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand, with one subcommand of its own for each data set."""
    parser = subparsers.add_parser("data", help="write MATH, AIME24 or Countdown in verl's row format")
    datasets = parser.add_subparsers(dest="dataset", required=True, metavar="{math,aime24,countdown}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--out", required=True, metavar="DIR", help="folder for the parquet files and source.json"
    )
    common.add_argument(
        "--revision", metavar="REV", help="revision of a hub data set; recorded in source.json"
    )
    common.add_argument("--strict", action="store_true", help="write nothing and fail if a row is faulty")
    texts = argparse.ArgumentParser(add_help=False)
    texts.add_argument(
        "--instruction", default=INSTRUCTION, metavar="TEXT", help="added to every problem text"
    )
    source_help = "local parquet, JSONL or folder, or hub id; default: %(default)s"

    math = datasets.add_parser("math", parents=[common, texts], help="MATH, or any data set like it")
    math.add_argument("--source", default=build.MATH_SOURCE, metavar="PATH_OR_HUB_ID", help=source_help)
    math.add_argument("--test-source", metavar="PATH_OR_HUB_ID", help="where the test rows come from instead")
    math.add_argument("--test-size", type=int, metavar="N", help="test rows held out of a single file")
    math.add_argument("--seed", type=int, default=0, help="seed of that draw, default 0")
    math.add_argument(
        "--data-source", default=build.MATH_SOURCE, metavar="NAME", help="name that selects the grader"
    )
    math.set_defaults(func=_run_math)

    aime = datasets.add_parser("aime24", parents=[common, texts], help="AIME 2024, 30 test problems")
    aime.add_argument("--source", default=build.AIME24_SOURCE, metavar="PATH_OR_HUB_ID", help=source_help)
    aime.add_argument("--data-source", default="aime24", metavar="NAME", help="name that selects the grader")
    aime.set_defaults(func=_run_aime24)

    game = datasets.add_parser(
        "countdown", parents=[common], help="Countdown, generated unless --source is given"
    )
    game.add_argument("--source", metavar="PATH_OR_HUB_ID", help="draw the problems from here instead")
    game.add_argument("--data-source", default="countdown", metavar="NAME", help="name that selects the grader")
    game.add_argument(
        "--train-size", type=int, default=2000, metavar="N", help="training problems, default 2000"
    )
    game.add_argument("--test-size", type=int, default=512, metavar="N", help="test problems, default 512")
    game.add_argument("--seed", type=int, default=0, help="seed, default 0")
    game.add_argument(
        "--sizes", type=_sizes, default=(3, 4), metavar="N,N", help="numbers a problem, default 3,4"
    )
    game.add_argument("--max-number", type=int, default=99, help="largest given number, default 99")
    game.add_argument("--max-target", type=int, default=100, help="largest target, default 100")
    game.add_argument("--ops", default=OPERATORS, help=f"operators of the solutions, default {OPERATORS}")
    game.add_argument(
        "--template", choices=sorted(TEMPLATES), default="prose", help="prompt text, default prose"
    )
    game.set_defaults(func=_run_countdown)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: whole numbers >= 2 such as 3,4") from error


def _run_math(args: argparse.Namespace) -> int:
    return _run(
        args,
        lambda: build.build_math(
            args.source,
            test_source=args.test_source,
            test_size=args.test_size,
            seed=args.seed,
            revision=args.revision,
            data_source=args.data_source,
            instruction=args.instruction,
        ),
    )


def _run_aime24(args: argparse.Namespace) -> int:
    return _run(
        args,
        lambda: build.build_aime24(
            args.source, revision=args.revision, data_source=args.data_source, instruction=args.instruction
        ),
    )


def _run_countdown(args: argparse.Namespace) -> int:
    generated = (
        {} if args.source else {name: getattr(args, name) for name in ("sizes", "max_number", "max_target")}
    )
    return _run(
        args,
        lambda: build.build_countdown(
            args.source,
            train_size=args.train_size,
            test_size=args.test_size,
            seed=args.seed,
            template=args.template,
            revision=args.revision,
            ops=args.ops,
            data_source=args.data_source,
            **generated,
        ),
    )


def _run(args: argparse.Namespace, make: Callable[[], build.Built]) -> int:
    """Builds, reports and writes; returns 0, 1 if the rows are refused, 2 if source or options are bad."""
    try:
        built = make()
    except (SaraError, ValueError) as error:
        print(f"sara data {args.dataset}: {error}", file=sys.stderr)
        return 2
    _report(built)
    try:
        paths = build.write(built, args.out, is_strict=args.strict)
    except SaraError as error:
        print(f"sara data {args.dataset}: {error}", file=sys.stderr)
        return 1
    rows = [row for split in built.splits.values() for row in split.rows]
    num_equal = build.gold_against_gold(rows)
    print(f"gold against gold: {num_equal}/{len(rows)} = {100 * num_equal / len(rows):.4g} %")
    for path in paths:
        print(f"wrote {path}")
    return 0


def _report(built: build.Built) -> None:
    """Prints counts before and after for each split, then every row that was left out or corrected."""
    for split, prepared in sorted(built.splits.items()):
        faulty = len(prepared.problems)
        print(
            f"{split}: {prepared.num_read} rows read, {len(prepared.rows)} written "
            f"({prepared.num_repeats} repeated, {faulty} faulty)"
        )
        for problem in prepared.problems[:_MAX_SHOWN]:
            print(f"  left out: {problem}", file=sys.stderr)
        if faulty > _MAX_SHOWN:
            print(f"  left out: {faulty - _MAX_SHOWN} more; all are in {build.SIDECAR}", file=sys.stderr)
        for note in prepared.notes:
            print(f"  corrected: {note}", file=sys.stderr)
    for note in built.notes:
        print(f"note: {note}")
    for fault in built.faults:
        print(f"warning: {fault}", file=sys.stderr)
