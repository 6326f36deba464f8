"""Real verl on the real Slurm: one job trains the tiny Countdown recipe to its end."""

import sys
from pathlib import Path

import pytest

from verl_sara.ledger import read_ledger

ROOT = Path(__file__).parents[2]
STEPS = 2
pytestmark = [pytest.mark.slurm, pytest.mark.verl, pytest.mark.e2e]


def test_a_job_trains_to_the_end_and_its_ledger_balances(project):
    sys.path.insert(0, str(ROOT / "recipes/countdown_tiny"))
    from prepare import prepare

    prepare(ROOT / ".cache/countdown_tiny")
    del project.env["SARA_TRAIN"]
    project.env |= {"COUNTDOWN_TINY": str(ROOT / ".cache/countdown_tiny"), "PYTHONPATH": str(ROOT)}
    job = project.submit(
        "slurm/train.sbatch", "countdown_tiny", "paper", "--",
        f"trainer.total_training_steps={STEPS}", "trainer.val_before_train=false", "trainer.test_freq=-1",
    )  # fmt: skip
    state = project.wait(job, seconds=900)
    assert state["JobState"] == "COMPLETED", project.output(job)[-3000:]
    run = project.runs / "countdown_tiny/paper/seed0"
    ledger = read_ledger(run)
    assert [step["step"] for step in ledger.history()] == [1, 2] and not ledger.lost
    assert all(step["fates"]["trained"]["groups"] == 8 for step in ledger.history())
    assert f"attempt 1: steps 1 to {STEPS}" in project.output(job)
    assert len((run / "verl.attempt-1.jsonl").read_text().splitlines()) == STEPS
    assert not list(Path("/tmp").glob(f"sara-{job}*"))
