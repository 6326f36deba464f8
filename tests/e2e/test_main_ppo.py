"""Real `main_ppo` on CPU: `+sara=paper`, killed after a checkpoint, resumed, and what its files say.

One run in two attempts, with many checks: starting verl costs minutes.
"""

import json
from collections import Counter

import pytest
from killed_runs import kill_and_resume

STEPS = 4
pytestmark = [pytest.mark.verl, pytest.mark.e2e]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    """A run of 4 steps: attempt 1 is killed in step 3, after the checkpoint of step 2."""
    folder = tmp_path_factory.mktemp("run")
    options = [f"trainer.rollout_data_dir={folder}/dump"]
    return kill_and_resume("paper", folder, options, steps=STEPS, killed_after=2, at_the_end=["trainer.test_freq=4"])


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
