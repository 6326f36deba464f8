"""A run that is killed at any moment of a step and started again: one history, and no rollout missing in the cost.

The process that holds the ledger is the coordinator's; `collecting` is one of its kind that says what it has done.
"""

import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from verl_sara.ledger import read_ledger

ROOT = Path(__file__).parents[2]
STEPS = 5
PHASES = ("register", "launch", "return", "finish", "written", "save")


def run(folder, *, kill=None):
    """Runs an attempt, to its end or until `kill` = (phase, how often it was said, delay in s, signal).

    Returns what the process said, its exit status and its errors.
    """
    command = [sys.executable, "-m", "tests.adapters.collecting", str(folder), str(STEPS)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = []
    for line in process.stdout:
        said.append(tuple(line.split()))
        if kill and sum(words[0] == kill[0] for words in said) == kill[1]:
            time.sleep(kill[2])
            process.send_signal(kill[3])
            kill = None
    errors = process.stderr.read()
    return said, process.wait(timeout=60), errors


def trained(ledger):
    """By step of the history, the trained groups: prompt and outcomes."""
    kept = {(step["step"], step["attempt"]) for step in ledger.history()}
    groups = sorted(ledger.groups, key=lambda group: (group["step"], group["index"]))
    return [
        (group["step"], group["prompt_id"], group["slots"]["outcome"])
        for group in groups if group["fate"] == "trained" and (group["step"], group["attempt"]) in kept
    ]  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """What a run trains that nothing happens to."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    _, status, errors = run(folder)
    assert status == 0, errors
    return trained(read_ledger(folder / "sara"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["term", "kill"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_run_goes_on_from_its_checkpoint_and_every_rollout_is_in_the_cost(phase, number, tmp_path, uninterrupted):
    chance = random.Random(f"{phase}/{number}")
    often = chance.randint(2, 200) if phase in ("launch", "return") else chance.randint(2, STEPS - 1)
    said, status, errors = run(tmp_path, kill=(phase, often, 0.02 * chance.random(), number))
    assert status == -number, errors
    again, status, errors = run(tmp_path)
    assert status == 0, errors

    ledger = read_ledger(tmp_path / "sara")
    assert [step["step"] for step in ledger.history()] == list(range(1, STEPS + 1))
    assert all("not finished (cut off" in problem for problem in ledger.problems), ledger.problems
    assert trained(ledger) == uninterrupted
    finished = {(line["attempt"], line["step"]): line["fates"]["launched"]["rollouts"] for line in ledger.steps}
    for attempt, words in ((1, said), (2, again)):
        saved = [int(step) for what, step in words if what == "saved"]
        assert {(attempt, step) for step in saved} <= set(finished)
        launched = Counter(int(step) for what, step in words if what == "launch")
        for step, count in launched.items():
            in_cost = finished.get((attempt, step), ledger.lost.get(step, {}).get("rollouts", 0))
            assert count <= in_cost, f"step {step} of attempt {attempt} launched {count} rollouts"
    total = sum(finished.values()) + ledger.lost_rollouts
    assert total >= sum(what == "launch" for what, _ in (*said, *again))
    starts = [int(step) for what, step in again if what == "register"]
    assert starts[0] == 1 + max((int(step) for what, step in said if what == "saved"), default=0)
