"""Which runs the notebooks read: the folders named in SARA_RUNS, else the example beside this file."""

import os
from pathlib import Path

from verl_sara.report import Runs, load_runs

EXAMPLE = Path(__file__).parent / "example"


def run_folders() -> dict[str, Path]:
    """Returns run folders by name. SARA_RUNS is a list of [NAME=]FOLDER, separated as in PATH.

    Runs of one name are seeds of one arm.
    """
    from verl_sara.cli.report import named_runs

    texts = os.environ.get("SARA_RUNS", "").split(os.pathsep)
    if any(texts):
        return named_runs([text for text in texts if text])
    return {folder.name: folder for folder in sorted(EXAMPLE.iterdir()) if folder.is_dir()}


def load() -> Runs:
    """Reads the runs, and prints what was skipped or looks wrong in them."""
    runs = load_runs(run_folders())
    for name, reason in runs.unread.items():
        print(f"{name} was not read: {reason}")
    for name, arm in runs.summary["arms"].items():
        for problem in arm["problems"]:
            print(f"{name}: {problem}")
    return runs
