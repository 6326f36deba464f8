"""Real verl on the real Slurm: a job trains the tiny Countdown recipe, the next evaluates its checkpoint."""

import json
import sys
from pathlib import Path

import pytest

from verl_sara.cli.launch import find_recipe
from verl_sara.ledger import read_ledger

ROOT = Path(__file__).parents[2]
STEPS = 2
pytestmark = [pytest.mark.slurm, pytest.mark.verl, pytest.mark.e2e]


def use_verl(project):
    """Puts verl and the demo's model and data in the place of the small program."""
    sys.path.insert(0, str(ROOT / "recipes/countdown_tiny"))
    from prepare import prepare

    prepare(ROOT / ".cache/countdown_tiny")
    del project.env["SARA_TRAIN"]
    project.env |= {"COUNTDOWN_TINY": str(ROOT / ".cache/countdown_tiny"), "PYTHONPATH": str(ROOT)}


def train_and_evaluate(project, script, *overrides):
    """Submits `paper` and its evaluation, waits for the training and returns its run folder and both jobs."""
    common = ("trainer.val_before_train=false", "trainer.test_freq=-1")
    job = project.submit(f"slurm/{script}", "countdown_tiny", "paper", "--", *common, *overrides)
    evaluation = project.submit(
        f"--dependency=afterok:{job}", "--kill-on-invalid-dep=yes", "slurm/eval.sbatch", "countdown_tiny", "paper"
    )
    state = project.wait(job, seconds=900)
    assert state["JobState"] == "COMPLETED", project.output(job)[-6000:]
    return project.runs / "countdown_tiny/paper/seed0", job, evaluation


def test_a_job_trains_to_the_end_and_the_next_evaluates_its_checkpoint(project):
    import pandas as pd

    use_verl(project)
    run, job, evaluation = train_and_evaluate(
        project, "train.sbatch", f"trainer.total_training_steps={STEPS}", f"trainer.save_freq={STEPS}"
    )
    ledger = read_ledger(run)
    assert [step["step"] for step in ledger.history()] == [1, 2] and not ledger.lost
    assert all(step["fates"]["trained"]["groups"] == 8 for step in ledger.history())
    assert f"attempt 1: steps 1 to {STEPS}" in project.output(job)
    assert len((run / "verl.attempt-1.jsonl").read_text().splitlines()) == STEPS
    assert not list(Path("/tmp").glob(f"sara-{job}*"))

    state = project.wait(evaluation, seconds=600)
    assert state["JobState"] == "COMPLETED", project.output(evaluation)[-3000:]
    numbers = json.loads((run / f"eval.step-{STEPS}.json").read_text())
    (found,) = numbers["sets"]
    n = find_recipe(ROOT, "countdown_tiny").whole("actor_rollout_ref.rollout.val_kwargs.n")
    assert (found["data_source"], found["n"], numbers["step"]) == ("countdown", n, STEPS)
    num_responses = n * len(pd.read_parquet(ROOT / ".cache/countdown_tiny/val.parquet"))
    num_right = found["avg"] * num_responses
    assert 0 < num_right < num_responses and abs(num_right - round(num_right)) < 1e-6
    (logged,) = map(json.loads, (run / f"eval/verl.step-{STEPS}.jsonl").read_text().splitlines())
    assert logged["step"] == STEPS, "verl numbers its steps by the checkpoint that it has loaded"
    assert len(read_ledger(run).runs) == 1, "an evaluation is no attempt"
