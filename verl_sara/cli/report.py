"""`sara report`: figures, tables and numbers of runs, finished or still going."""

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from verl_sara.core import ConfigError


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser(
        "report",
        help="compare runs: savings, batches, stopping, time",
        description="Writes report.html (self-contained), report.md and PNG files, and prints the table. "
        "Works on runs still in progress, and on plain verl runs as far as verl's own log goes.",
    )
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="[NAME=]RUN",
        help="run folder; runs of one name are seeds of one arm; the name of the folder by default",
    )
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="RUN",
        help="arm to measure savings against, by name or run folder; may be repeated (default: the presets "
        "verl_ds and ds)",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the report (default: sara-report)")
    parser.add_argument("--steps", type=int, metavar="N", help="leave out steps after N, so that runs can be compared")
    parser.add_argument(
        "--json", action="store_true", help="print JSON as in summary.json; writes files with --out only"
    )
    parser.set_defaults(func=run)


def named_runs(texts: list[str]) -> dict[str, Path]:
    """Returns run folders by name; runs of one name become name/1, name/2, ...

    Raises:
      ConfigError: If a folder does not exist, or is given twice.
    """
    pairs = []
    for text in texts:
        name, is_named, path = text.partition("=")
        if not is_named or Path(text).exists():
            name, path = "", text
        folder = Path(path)
        if not folder.exists():
            raise ConfigError(f"run {text!r} does not exist; allowed: a run folder, or NAME=FOLDER")
        pairs.append((name or folder.resolve().name, folder))
    folders = [folder.resolve() for _, folder in pairs]
    if twice := {str(folder) for folder in folders if folders.count(folder) > 1}:
        raise ConfigError(f"run {min(twice)!r} is given twice; allowed: every run once")
    names = [name for name, _ in pairs]
    seeds = Counter[str]()
    runs: dict[str, Path] = {}
    for name, folder in pairs:
        seeds[name] += 1
        runs[f"{name}/{seeds[name]}" if names.count(name) > 1 else name] = folder
    return runs


def name_baselines(baselines: list[str], texts: list[str]) -> tuple[list[str], list[str]]:
    """Returns the baselines as names of arms, and the runs with the baselines that were not among them."""
    texts = list(texts)
    names = []
    for baseline in baselines:
        folders = {path.resolve(): name for name, path in named_runs(texts).items()}
        path = Path(baseline)
        is_name = baseline in {name.rpartition("/")[0] or name for name in folders.values()}
        if not is_name and path.is_dir():
            if path.resolve() not in folders:
                texts.append(baseline)
            name = folders.get(path.resolve(), path.resolve().name)
            baseline = name.rpartition("/")[0] or name
        names.append(baseline)
    return names, texts


def run(args: argparse.Namespace) -> int:
    """Prints the comparison and writes the report."""
    args.baseline, texts = name_baselines(args.baseline, args.runs)
    runs = named_runs(texts)
    if args.steps is not None and args.steps < 1:
        raise ConfigError(f"--steps is {args.steps}; allowed: >= 1")
    if args.json and args.out is None:
        from verl_sara.summary import summarise

        print(json.dumps(summarise(runs, baselines=args.baseline, last_step=args.steps)))
        return 0
    try:
        from verl_sara.report import load_runs, write_report_of
    except ImportError as error:
        raise ConfigError(
            f"the report needs the extra `analysis` ({error}): pip install 'verl-sara[analysis]'"
        ) from error
    from verl_sara.summary import table

    read = load_runs(runs, baselines=args.baseline, last_step=args.steps)
    page = write_report_of(read, args.out or Path("sara-report"))
    print(json.dumps(read.summary) if args.json else f"{table(read.summary)}\nreport: {page}")
    for name, reason in read.unread.items():
        print(f"not read: {name}: {reason}", file=sys.stderr)
    return 0
