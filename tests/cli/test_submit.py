"""`sara submit`: the sbatch calls against a golden file, refusals before submission, a fake sbatch."""

import argparse
import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_sara.cli import submit
from verl_sara.cli.launch import (
    ARMS,
    Submission,
    arm_overrides,
    cpus_needed,
    find_recipe,
    gpu_count,
    ports,
    sbatch_commands,
)
from verl_sara.cli.launch.command import experiment_name, setting
from verl_sara.core import ConfigError

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "submit.golden.txt"
CASES = {
    "one run on CPU": "countdown_tiny --arm paper",
    "one run on a GPU": "math_r1_distill_1.5b --arm paper+dps --seed 4 --slurm=--time=8:00:00",
    "an array with an evaluation": "countdown_qwen2.5_3b --arm uniform,paper --seed 0,1 --eval",
    "a variant": "math_r1_distill_1.5b/8gpu --arm ds",
    "several nodes": "math_r1_distill_1.5b/8gpu --arm ds,paper --nodes 2 --eval",
    "overrides": "algorithms/ppo --arm paper -- trainer.save_freq=5 'trainer.experiment_name=\"a b\"'",
}


def parse(text):
    parser = argparse.ArgumentParser()
    submit.add_parser(parser.add_subparsers(required=True))
    return parser.parse_args(["submit", *shlex.split(text)])


def calls(text):
    one = submit.submission(parse(text))
    moved = Submission(
        **{name: getattr(one, name) for name in one.__slots__} | {"root": Path("/pro ject"), "logs": Path("/logs")}
    )
    return sbatch_commands(moved)


def test_calls_are_those_of_the_golden_file(monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = []
    for name, text in CASES.items():
        lines += [f"# {name}: sara submit {text}", *map(shlex.join, calls(text)), ""]
    assert "\n".join(lines) == GOLDEN.read_text()


@pytest.mark.parametrize(
    ("options", "gpus", "cpus"),
    [
        ([], "--gpus-per-node=8", "--cpus-per-task=72"),
        (["--gres=gpu:a100:8"], None, "--cpus-per-task=72"),
        (["--gpus-per-node=h100:8", "--cpus-per-task=96"], None, None),
        (["--gres=lscratch:100", "-c", "40"], "--gpus-per-node=8", None),
        (["-G8"], None, "--cpus-per-task=72"),
    ],
)
def test_gpus_and_cpus_are_asked_for_unless_the_user_does(monkeypatch, options, gpus, cpus):
    monkeypatch.chdir(ROOT)
    text = " ".join(f"--slurm={option}" for option in options)
    (call,) = calls(f"math_r1_distill_1.5b/8gpu --arm ds {text}")
    asked = [word for word in call if word.startswith(("--gpus-per-node", "--cpus-per-task"))]
    assert set(asked) - set(options) == {gpus, cpus} - {None}


@given(st.integers(1, 8), st.integers(1, 16), st.integers(1, 32))
def test_the_cpus_of_all_nodes_hold_what_verl_reserves(gpus, nodes, units):
    needed = cpus_needed(gpus, nodes, units)
    assert nodes * needed >= 3 * gpus * nodes + units + 3 and needed >= 3 * gpus
    assert nodes * (needed - 1) < 3 * gpus * nodes + units + 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("countdown_tny --arm paper", "did you mean countdown_tiny"),
        ("countdown_tiny --arm papr", "did you mean paper"),
        ("countdown_tiny --arm paper,paper", "every arm once"),
        ("countdown_tiny --arm paper --seed 0,x", "seeds are '0,x'; allowed: different whole numbers"),
        ("countdown_tiny --arm paper --seed 1,1", "seeds are '1,1'"),
        ("countdown_tiny --arm paper --nodes -1", "--nodes is -1; allowed: >= 1"),
    ],
)
def test_wrong_names_are_refused(monkeypatch, text, message):
    monkeypatch.chdir(ROOT)
    with pytest.raises(ConfigError, match=message):
        submit.submission(parse(text))


@pytest.mark.verl
def test_an_unknown_key_is_refused_before_submission(monkeypatch, tmp_path):
    import pandas as pd

    monkeypatch.chdir(ROOT)
    pd.DataFrame({"prompt": ["x"] * 512}).to_parquet(tmp_path / "train.parquet")
    monkeypatch.setenv("COUNTDOWN_TINY", str(tmp_path))
    for text, message in (
        ("countdown_tiny --arm paper -- trainer.save_frq=1", "trainer.save_frq"),
        ("countdown_tiny --arm paper -- trainer.v1.sampler.sampler_kwargs.tau_low=2", "tau_low is 2; allowed"),
    ):
        with pytest.raises(ConfigError, match=message):
            submit.check(submit.submission(parse(text)))


@pytest.fixture
def fake_sbatch(tmp_path, monkeypatch):
    """An sbatch that counts job numbers and keeps its arguments."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(submit, "check", lambda one: None)
    script = tmp_path / "bin/sbatch"
    script.parent.mkdir()
    script.write_text(
        f'#!/usr/bin/env bash\nprintf "%s\\n" "$*" >>"{tmp_path}/calls"\n'
        '[[ $* != *--time=never* ]] || { echo "no such time" >&2; exit 1; }\n'
        f'echo $((40 + $(wc -l <"{tmp_path}/calls")))\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent), prepend=":")
    monkeypatch.setenv("SARA_RUNS", str(tmp_path / "runs"))
    return tmp_path / "calls"


def test_an_evaluation_waits_for_the_job_before_it(fake_sbatch, capsys):
    assert submit.run(parse("countdown_tiny --arm paper --eval")) == 0
    first, second = fake_sbatch.read_text().splitlines()
    assert "--dependency" not in first and "--dependency=afterok:41 " in second
    printed = capsys.readouterr().out
    assert "job 41" in printed and "job 42" in printed and "sara status" in printed


def test_a_refusal_of_sbatch_is_told(fake_sbatch, capsys):
    assert submit.run(parse("countdown_tiny --arm paper --slurm=--time=never --eval")) == 1
    assert "sbatch refused: no such time" in capsys.readouterr().out
    assert len(fake_sbatch.read_text().splitlines()) == 1


def test_a_dry_run_submits_nothing(fake_sbatch, capsys):
    assert submit.run(parse("countdown_tiny --arm paper --dry-run")) == 0
    assert not fake_sbatch.exists() and "train.sbatch countdown_tiny paper 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("environ", "count"),
    [
        ({}, 0),
        ({"SLURM_GPUS_ON_NODE": "8"}, 8),
        ({"SLURM_GPUS_ON_NODE": "gpu:h100:8(S:0-1)"}, 8),
        ({"SLURM_GPUS_PER_NODE": "h100:4"}, 4),
        ({"SLURM_GPUS_PER_NODE": "a100:2,v100:1"}, 3),
        ({"SLURM_GPUS_PER_NODE": "gpu:2(IDX:0,1)"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "0,GPU-1a"}, 2),
        ({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, 0),
        ({"CUDA_VISIBLE_DEVICES": "", "ROCR_VISIBLE_DEVICES": "0"}, 1),
    ],
)
def test_gpus_are_counted_however_slurm_tells_them(environ, count):
    assert gpu_count(environ) == count


def test_a_count_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="SLURM_GPUS_ON_NODE is 'many'; allowed"):
        gpu_count({"SLURM_GPUS_ON_NODE": "many"})


@given(st.integers(0, 10**9), st.integers(0, 63), st.integers(1, 9))
def test_ports_are_different_and_in_range(job, node, count):
    found = ports(job, node, count)
    assert len(set(found)) == count and all(20000 <= port < 32000 for port in found)


def test_a_port_in_use_is_not_given():
    import socket

    first = ports(7, 0, 1)[0]
    with socket.socket() as taken:
        taken.bind(("", first))
        assert first not in ports(7, 0, 5)


@given(st.text(st.characters(exclude_characters="$\n\r\0", exclude_categories=["Cs"]), max_size=30))
def test_a_quoted_setting_reads_back_in_hydra(text):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    parsed = OverridesParser.create().parse_override(setting("a.b", f"/{text}"))
    assert (parsed.key_or_group, str(parsed.value())) == ("a.b", f"/{text}")


@pytest.mark.parametrize("arm", ARMS)
def test_names_of_runs_are_plain_and_seeds_reach_every_draw(arm):
    recipe = find_recipe(ROOT, "math_r1_distill_1.5b/8gpu")
    name = experiment_name(recipe, arm, 3)
    assert not set(name) - set("abcdefghijklmnopqrstuvwxyz0123456789._-")
    seeds = [override for override in arm_overrides(arm, 3, recipe.name) if override.endswith("seed=3")]
    assert len(seeds) == 3 + ("dps" in arm)


def test_dps_forgets_as_its_authors_set_it_for_the_task():
    decay = "data.custom_cls.sara.selection.decay"
    for arm in ("dps", "paper+dps"):
        assert f"{decay}=0.5" in arm_overrides(arm, 0, "countdown_qwen2.5_3b/8gpu")
        assert not any(word.startswith(decay) for word in arm_overrides(arm, 0, "math_r1_distill_1.5b"))
    assert not any(word.startswith(decay) for word in arm_overrides("paper", 0, "algorithms"))


def test_values_of_a_recipe_come_from_its_base_and_overrides_win():
    recipe = find_recipe(ROOT, "math_r1_distill_1.5b/8gpu")
    assert (recipe.whole("trainer.n_gpus_per_node"), recipe.whole("trainer.total_training_steps")) == (8, 360)
    extra = ["trainer.total_training_steps=5", "++trainer.total_training_steps=7"]
    assert recipe.whole("trainer.total_training_steps", extra) == 7
    assert recipe.whole("trainer.nothing") is None
