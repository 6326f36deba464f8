"""The evaluation of a checkpoint: which weights it loads, and the numbers it leaves."""

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_sara.cli.launch import Placement, eval_command, evaluation, find_recipe
from verl_sara.core import SaraError

ROOT = Path(__file__).parents[2]
SOURCES = st.sampled_from(["aime24", "lighteval/MATH", "countdown"])


@pytest.fixture
def run(tmp_path):
    """A run folder with a checkpoint that two processes saved."""
    (tmp_path / "global_step_4/actor").mkdir(parents=True)
    (tmp_path / "global_step_4/actor/fsdp_config.json").write_text('{"world_size": 2}')
    return tmp_path


@given(st.dictionaries(SOURCES, st.tuples(st.integers(1, 64), st.floats(0, 1)), min_size=1))
def test_each_data_source_has_its_average_and_n(expected):
    logged = {f"val-core/{source}/acc/mean@{n}": avg for source, (n, avg) in expected.items()}
    noise = {f"val-core/{source}/acc/best@2/mean": 2.0 for source in expected} | {"val-aux/num_turns/min": 2}
    found = evaluation.accuracies({**noise, **logged})
    assert {one["data_source"]: (one["n"], one["avg"]) for one in found} == expected


def test_a_log_without_accuracy_leaves_no_numbers(run):
    (run / "log").write_text(json.dumps({"step": 4, "data": {"val-core/x/reward/mean@4": 0.5}}) + "\n")
    for log in (run / "log", run / "none"):
        with pytest.raises(SaraError, match="logged no accuracy"):
            evaluation.write_numbers(run, 4, log, {})
    assert not list(run.glob("eval.*"))


def fake_merger(run, monkeypatch, status):
    """A Python in verl's place: makes the folder that follows --target_dir, and notes its arguments."""
    script = run / "python"
    script.write_text(
        f'#!/usr/bin/env bash\necho "$*" >>"{run}/calls"\nmkdir -p "${{@: -1}}"\necho said\nexit {status}\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    return run / "calls"


def test_shards_of_another_number_of_processes_are_merged_once(run, monkeypatch, capfd):
    calls = fake_merger(run, monkeypatch, 0)
    assert evaluation.merge(run, 4, 2) is None and not calls.exists()
    for _ in range(2):
        assert evaluation.merge(run, 4, 8) == run / "eval/model.step-4"
    assert calls.read_text().count("verl.model_merger") == 1 and (run / "eval/model.step-4").is_dir()
    assert capfd.readouterr().out == "", "standard output is the answer"


def test_a_failed_merger_leaves_no_model(run, monkeypatch):
    fake_merger(run, monkeypatch, 3)
    with pytest.raises(SaraError, match="merger ended with status 3"):
        evaluation.merge(run, 4, 1)
    assert not (run / "eval/model.step-4").exists()


def test_a_step_without_a_checkpoint_is_refused(run):
    with pytest.raises(SaraError, match="has no checkpoint global_step_5"):
        evaluation.merge(run, 5, 1)


@pytest.mark.parametrize("model", [None, Path("/r/eval/model.step-4")])
def test_weights_come_from_the_shards_or_from_the_merged_model(model):
    recipe = find_recipe(ROOT, "countdown_qwen2.5_3b/eval")
    command = eval_command(
        recipe, root=ROOT, run=Path("/r"), step=4, place=Placement(gpus=2), extra=["a=1"], model=model
    )
    from_shards = "trainer.resume_from_path=/r/global_step_4" in command
    from_model = "actor_rollout_ref.model.path=/r/eval/model.step-4" in command
    assert (from_shards, from_model) == (model is None, model is not None)
    assert "trainer.val_only=true" in command and command[-1] == "a=1"
    assert not any("sara" in word for word in command), "plain verl"
