"""Reading a user's rollouts in the forms they come in, and refusing what cannot be planned on."""

import json

import pytest

from verl_sara.core import ConfigError
from verl_sara.simulate.observed import read_observed


def write(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def as_text(observed):
    return {group.prompt_id: "".join("FP"[outcome] for outcome in group.outcomes) for group in observed.groups}


def test_a_folder_of_dumped_rollouts(tmp_path):
    def rows(step, prompts):
        return [
            {
                "input": p,
                "output": "x" * 7,
                "gts": "",
                "score": float(o == "P"),
                "step": step,
                "uid": f"{step}{p}_{i}_0",
            }
            for p, outcomes in prompts.items()
            for i, o in enumerate(outcomes)
        ]

    padding = [{"input": "?", "output": "", "score": 0.0, "step": 2, "uid": "pad0_0_0"}]
    write(tmp_path / "10.jsonl", rows(10, {"q3": "PPPP"}))
    write(tmp_path / "2.jsonl", rows(2, {"q1": "PFPF", "q2": "FFFF"}) + padding)
    observed = read_observed(tmp_path)
    assert as_text(observed) == {"q1": "PFPF", "q2": "FFFF", "q3": "PPPP"}
    assert (observed.group_size, observed.length_unit, observed.is_censored) == (4, "characters", False)
    assert list(as_text(observed)) == ["q1", "q2", "q3"]  # steps in numeric order
    assert observed.groups[0].lengths == [7, 7, 7, 7]
    assert any("padding row" in problem for problem in observed.problems)


def test_plain_lines(tmp_path):
    rows = [
        {"prompt_id": "a", "correct": True, "num_tokens": 5},
        {"prompt_id": "b", "correct": False, "num_tokens": 9},
        {"prompt_id": "a", "correct": False, "num_tokens": 6},
        {"prompt_id": "b", "correct": False, "num_tokens": 3},
        {"prompt_id": "c", "correct": True, "num_tokens": 3},
        {"correct": True},
    ]
    observed = read_observed(write(tmp_path / "mine.jsonl", rows))
    assert as_text(observed) == {"a": "PF", "b": "FF"}
    assert (observed.length_unit, observed.batch_size) == ("tokens", None)
    assert any("single rollout" in problem for problem in observed.problems)
    assert any("without prompt or outcome" in problem for problem in observed.problems)


def test_the_same_prompt_in_two_steps_is_two_groups(tmp_path):
    rows = [{"prompt_id": "a", "acc": x, "step": step} for step in (1, 2) for x in (0, 1)]
    observed = read_observed(write(tmp_path / "mine.jsonl", rows))
    assert [group.prompt_id for group in observed.groups] == ["a", "a"]
    assert (observed.length_unit, observed.batch_size) == ("", 1)


def test_scores_that_are_not_binary_need_a_threshold(tmp_path):
    path = write(tmp_path / "mine.jsonl", [{"prompt_id": "a", "score": x} for x in (0.1, 1.0, 0.9, -1)])
    with pytest.raises(ConfigError, match=r"mine.jsonl:1: outcome 0.1 is not binary; allowed: true and false, 0 and 1"):
        read_observed(path)
    assert as_text(read_observed(path, success_threshold=0.9)) == {"a": "FPPF"}


def ledger_group(uid, outcomes, group_size=4, **changes):
    slots = {
        "outcome": [None if o == "x" else int(o == "P") for o in outcomes],
        "tokens": [10] * len(outcomes),
        "status": ["ok"] * len(outcomes),
        "round": [0] * len(outcomes),
    }
    names = {"uid": uid, "prompt_id": f"p{uid}", "group_size": group_size, "slots": slots, "step": 1}
    return {"schema": 1, "kind": "group", **names, **changes}


def test_a_ledger_with_abandoned_and_failed_groups(tmp_path):
    run = {"schema": 1, "kind": "run", "options": {"batch_size": 3}}
    groups = [ledger_group("1", "PFPF"), ledger_group("2", "FFF"), ledger_group("3", "Px"), ledger_group("4", "")]
    observed = read_observed(write(tmp_path / "ledger.attempt-1.jsonl", [run, *groups]))
    assert as_text(observed) == {"p1": "PFPF", "p2": "FFF"}
    assert (observed.group_size, observed.batch_size, observed.is_censored) == (4, 3, True)
    assert any("failed rollout" in problem for problem in observed.problems)


@pytest.mark.parametrize("content", ["", "not json\n", '{"prompt_id": "a", "correct": true}\n'])
def test_nothing_to_plan_on(tmp_path, content):
    path = tmp_path / "mine.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match="no group of two rollouts"):
        read_observed(path)


def test_a_missing_file(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere does not exist; allowed: a run folder"):
        read_observed(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no lines were found"):
        read_observed(tmp_path)
