"""The command `sara`: one module per subcommand, each with `add_parser`."""

import argparse
import sys

from verl_sara import __version__
from verl_sara.cli import data, doctor, explain, grade, plan, report, simulate, status, submit
from verl_sara.core import SaraError


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command with all its subcommands."""
    parser = argparse.ArgumentParser(prog="sara", description="Sequential adaptive rollout allocation for verl.")
    parser.add_argument("--version", action="version", version=f"verl-sara {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for module in (doctor, explain, simulate, plan, data, grade, submit, status, report):
        module.add_parser(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Runs the command and returns its exit status: 0 done, 1 the command's own no, 2 bad input."""
    args = build_parser().parse_args(argv)
    try:
        return int(args.func(args) or 0)
    except (SaraError, OSError) as error:
        print(f"sara {args.command}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
