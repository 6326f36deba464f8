"""Real `main_ppo` on CPU: `+sara=paper`, killed after a checkpoint, resumed, and what its files say.

One run in two attempts, with many checks: starting verl costs minutes.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
STEPS, DEADLINE_S = 4, 900
pytestmark = [pytest.mark.verl, pytest.mark.e2e]


def wait_for(condition, process, log):
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, f"main_ppo ended early:\n{tail(log)}"
        assert time.monotonic() < end, f"main_ppo did not get there within {DEADLINE_S} s:\n{tail(log)}"
        time.sleep(0.5)


def tail(log):
    return log.read_text(errors="replace")[-3000:]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of 4 steps: attempt 1 is killed in step 3, after the checkpoint of step 2."""
    sys.path.insert(0, str(ROOT / "recipes/countdown_tiny"))
    from demo import end_session, start
    from prepare import prepare

    prepare(ROOT / ".cache/countdown_tiny")
    folder = tmp_path_factory.mktemp("run")
    options = [
        "trainer.save_freq=2", "trainer.resume_mode=auto", f"trainer.rollout_data_dir={folder}/dump",
        "trainer.val_before_train=false", "trainer.test_freq=-1",
    ]  # fmt: skip
    log = folder / "console.log"
    first = start("paper", folder, STEPS, 1, options, attempt=1)
    try:
        tracker = folder / "latest_checkpointed_iteration.txt"
        wait_for(lambda: tracker.exists() and tracker.read_text() == "2", first, log)
        files = [folder / f"sara/{name}.attempt-1.jsonl" for name in ("journal", "ledger")]
        wait_for(lambda: any('"step":3' in file.read_text() for file in files), first, log)
        for pid in demo_members(first.pid):
            os.kill(pid, signal.SIGKILL)
    finally:
        end_session(first)
    log.rename(folder / "console.attempt-1.log")
    validation = ["trainer.test_freq=4"]
    second = start("paper", folder, STEPS, 1, options + validation, attempt=2)
    try:
        end = time.monotonic() + DEADLINE_S
        while second.poll() is None:
            assert time.monotonic() < end, tail(log)
            time.sleep(0.5)
    finally:
        end_session(second)
    assert second.returncode == 0, tail(log)
    return folder


def demo_members(session):
    from demo import session_members

    return session_members(session)


@pytest.fixture(scope="module")
def ledger(run_dir):
    from verl_sara.ledger import read_ledger

    return read_ledger(run_dir / "sara")


def test_the_killed_run_continues_at_the_next_step(ledger, run_dir):
    assert [(s["step"], s["attempt"]) for s in ledger.history()] == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert (run_dir / "latest_checkpointed_iteration.txt").read_text() == "4"


def test_rollouts_of_the_killed_step_are_part_of_the_cost(ledger):
    if [s for s in ledger.steps if s["attempt"] == 1 and s["step"] == 3]:
        assert len(ledger.steps) == 5  # killed after the step's lines were written: counted there
    else:
        assert ledger.lost_rollouts > 0 and len(ledger.steps) == 4


def test_no_prompt_of_the_pass_is_lost_or_repeated_by_the_resume(ledger):
    trained_history = {(s["step"], s["attempt"]) for s in ledger.history()}
    visited = [g["prompt_id"] for g in ledger.groups if (g["step"], g["attempt"]) in trained_history]
    assert len(visited) == len(set(visited)), "a prompt came twice within the first pass"


def test_the_banner_and_the_numbers_reach_verls_log(run_dir):
    assert "verl_sara: SARA active, preset paper, verl 0.9.1" in (run_dir / "console.log").read_text(errors="replace")
    lines = [json.loads(line) for line in (run_dir / "verl.attempt-2.jsonl").read_text().splitlines()]
    by_step = {line["step"]: line["data"] for line in lines}
    assert by_step[4]["sara/effective_fraction"] == 1.0
    assert by_step[4]["sara/rollouts_launched_total"] >= by_step[4]["sara/rollouts_trained_total"] == 64
    assert any(key.startswith("val-core/") and "acc" in key for key in by_step[4]), "validation gave no accuracy"


def test_verdicts_follow_the_rule(ledger):
    from verl_sara.core import BetaPrior, prob_effective

    for group in ledger.groups:
        outcomes, k = group["slots"]["outcome"], group["group_size"]
        prior = BetaPrior(*group["prior"])
        assert (group["n0"], group["n1"], k) == (5, 5, 8)
        if group["verdict"] == "abandon":
            expected = prob_effective(len(outcomes), sum(outcomes), group_size=k, prior=prior)
            assert group["p_eff"] == expected < 0.4 and len(set(outcomes)) == 1
        elif group["verdict"] == "commit":
            assert 0 < sum(x for x in outcomes if x is not None) < len(outcomes)
    assert {g["verdict"] for g in ledger.groups} >= {"commit", "abandon"}


def test_every_trained_group_is_complete_mixed_and_the_only_thing_in_the_batch(ledger, run_dir):
    for step in ledger.history():
        groups = [g for g in ledger.groups if (g["step"], g["attempt"]) == (step["step"], step["attempt"])]
        trained = {g["uid"]: g for g in groups if g["fate"] == "trained"}
        assert len(trained) == 8
        for group in trained.values():
            outcomes = group["slots"]["outcome"]
            assert len(outcomes) == 8 and 0 < sum(outcomes) < 8
        rows = [json.loads(line) for line in (run_dir / f"dump/{step['step']}.jsonl").read_text().splitlines()]
        for row in rows:
            row["uid"] = row["uid"].partition("_")[0]  # verl dumps the row's key: uid, session, index
        assert Counter(row["uid"] for row in rows) == dict.fromkeys(trained, 8)
        for uid, group in trained.items():
            scores = [row["score"] for row in rows if row["uid"] == uid]
            assert sum(score >= 1 for score in scores) == sum(group["slots"]["outcome"])


def test_the_ledger_balances_and_holds_no_validation_prompt(ledger):
    from verl_sara.ledger import balance

    for step in ledger.steps:
        groups = [g for g in ledger.groups if (g["step"], g["attempt"]) == (step["step"], step["attempt"])]
        assert balance(groups) == step["fates"]
    assert {g["step"] for g in ledger.groups} == {1, 2, 3, 4}
