"""`sara simulate`: what stopping, priors and schedules save on synthetic prompts, without a model."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from verl_sara.core import ConfigError

if TYPE_CHECKING:
    from verl_sara.simulate.table import Table

TABLES = {
    "headline": "the published savings: the paper's rule alone and on a ranked stream, against dynamic sampling",
    "history": "fitted and per-prompt priors with optimal stopping, against ideal dynamic sampling",
    "server": "wall-clock of rounds and streaming on a continuous-batching server",
    "robustness": "an abrupt policy shift: predicted prompts (DPS) alone, with SARA on top, and SARA alone",
    "guarantees": "the paper's four claims, checked numerically, and where each stops holding",
}


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "simulate",
        help="simulate collection on synthetic prompts, with the real decision core",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="tables:\n" + "\n".join(f"  {name:<11} {text}" for name, text in TABLES.items()),
    )
    parser.add_argument("--table", choices=TABLES, default="headline", help="what to simulate, default headline")
    parser.add_argument("--pool", choices=("A", "B", "C", "H"), default="B", help="synthetic pool, default B")
    parser.add_argument("--steps", type=int, metavar="N", help="training steps, >= 1; default as published")
    parser.add_argument("--batch-size", type=int, metavar="B", help="effective groups per step, >= 1")
    parser.add_argument("--seed", type=int, default=0, help="seed, default 0")
    parser.add_argument("--json", action="store_true", help="print the numbers as JSON")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Prints a table."""
    tables = simulated(args)
    if args.json:
        numbers = {name: table.numbers for name, table in tables.items()}
        print(json.dumps(numbers if len(tables) > 1 else numbers[args.table]))
    else:
        print("\n\n".join(table.text() for table in tables.values()))
    return 0


def simulated(args: argparse.Namespace) -> "dict[str, Table]":
    """Returns the tables that were asked for, by name.

    Raises:
      ConfigError: If numpy is missing or an option is out of range or of no use to the table.
    """
    try:
        from verl_sara.simulate import guarantees, robustness, tables
    except ImportError as error:
        raise ConfigError(f"sara simulate needs numpy: {error}") from error
    given: dict[str, Any] = {"num_steps": args.steps, "batch_size": args.batch_size}
    given = {name: value for name, value in given.items() if value is not None}
    for name, value in given.items():
        if value < 1:
            raise ConfigError(f"--{name.removeprefix('num_').replace('_', '-')} is {value}; allowed: >= 1")
    if args.table == "guarantees":
        if given or args.pool != "B":
            raise ConfigError("--table guarantees takes no --steps, --batch-size or --pool: its populations are fixed")
        return guarantees.guarantees(seed=args.seed)
    simulate = {
        "headline": tables.headline,
        "history": tables.history,
        "server": tables.server,
        "robustness": robustness.robustness,
    }[args.table]
    return {args.table: simulate(pool=args.pool, seed=args.seed, **given)}
