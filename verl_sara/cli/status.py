"""`sara status`: how far runs are, what they saved so far, and what the queue says."""

import argparse
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from verl_sara.cli.launch import find_recipe
from verl_sara.cli.launch.progress import Progress, progress, runs_below
from verl_sara.cli.launch.recipes import recipe_names
from verl_sara.core import ConfigError

HEAD = ("run", "step", "checkpoint", "attempt", "rollouts", "lost", "saved vs ideal DS", "job")


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "status",
        help="step, attempt, savings and queue state of runs",
        description="Reads the ledgers of run folders, finished or not, and asks squeue for their jobs.",
    )
    parser.add_argument(
        "runs", nargs="*", type=Path, default=[Path("runs")], metavar="RUN", help="run folder or above"
    )
    parser.add_argument(
        "--root", type=Path, default=Path.cwd(), metavar="DIR", help="project folder; default: here"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Prints the table.

    Raises:
      ConfigError: If a folder does not exist or holds no run.
    """
    found = []
    for folder in args.runs:
        runs = runs_below(folder) if folder.is_dir() else []
        if not runs:
            raise ConfigError(f"no run in {folder}; allowed: a run folder, or a folder with runs below it")
        found += runs
    jobs = parse_queue(_queue())
    rows = []
    for folder in dict.fromkeys(found):
        job = folder / ".job"  # written by the batch script that last began here
        number = job.read_text().strip() if job.is_file() else ""
        rows.append((progress(folder, steps=_steps(args.root, folder)), jobs.get(number, "")))
    print(table(rows))
    return 0


def _steps(root: Path, folder: Path) -> int | None:
    """Returns the step that ends the run in a folder RECIPE/ARM/seedN, None if its recipe does not say."""
    above = folder.resolve().parent.parent
    for name in recipe_names(root):
        if above.as_posix().endswith(f"/{name}"):
            return find_recipe(root, name).whole("trainer.total_training_steps")
    return None


def _queue() -> str:
    if not shutil.which("squeue"):
        return ""
    ask = ["squeue", "--me", "--noheader", "--format=%A|%T|%r"]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout


def parse_queue(text: str) -> dict[str, str]:
    """Returns `number state (reason)` by job number, of squeue's lines `number|state|reason`."""
    jobs = {}
    for line in text.splitlines():
        number, state, reason = [*line.split("|"), "", ""][:3]
        jobs[number] = f"{number} {state}" + (f" ({reason})" if reason not in ("", "None") else "")
    return jobs


def table(rows: Sequence[tuple[Progress, str]]) -> str:
    """Returns the table, one row a run, then the notes."""
    cells = [HEAD, *(_row(one, job) for one, job in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(HEAD))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    notes = [f"{one.run}: {one.note}" for one, _ in rows if one.note]
    return "\n".join([*lines, *notes])


def _row(one: Progress, job: str) -> tuple[str, ...]:
    saved = "-"
    if one.saved is not None:
        low, high = (f"{100 * value:.0f} %" for value in one.saved)
        saved = low if low == high else f"{low} to {high}"
    return (
        str(one.run),
        f"{one.step}/{'?' if one.steps is None else one.steps}",
        str(one.checkpoint),
        str(one.attempt),
        str(one.rollouts),
        str(one.lost),
        saved,
        job or "-",
    )
