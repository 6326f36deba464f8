"""Every preset composes with the installed verl and passes preflight; bad runs stop before Ray."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.verl
PACKAGE = Path(__file__).parents[2] / "verl_sara"
PRESETS = sorted(p.stem for p in (PACKAGE / "config/sara").glob("*.yaml") if p.stem != "base")
OPTIONS = "trainer.v1.sampler.sampler_kwargs"


@pytest.fixture
def train_file(tmp_path):
    import pandas as pd

    path = tmp_path / "train.parquet"
    pd.DataFrame({"prompt": ["x"] * 32}).to_parquet(path)
    return path


@pytest.fixture
def composed(train_file):
    from tests.adapters.scripted import compose_config

    def make(*overrides):
        return compose_config(
            f"data.train_files={train_file}", "data.train_batch_size=16", "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=8", *overrides,
        )  # fmt: skip

    return make


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("selection", [None, "uniform", "dps", "mopps"])
def test_every_preset_composes_and_passes_preflight(composed, preset, selection):
    from verl_sara.adapters.preflight import find_problems
    from verl_sara.config.schema import build_config, options_of

    chosen = [f"+sara/selection={selection}"] if selection else []
    config = composed(f"+sara={preset}", *chosen)
    assert list(find_problems(config)) == []
    options = build_config(options_of(config))
    assert (options.preset, options.group_size, options.batch_size) == (preset, 8, 16)


def test_presets_set_only_our_options_and_known_keys_of_verl(composed):
    """Key by key, a preset changes what the README lists and nothing else."""
    from omegaconf import OmegaConf

    def flat(node, prefix=""):
        for key, value in node.items():
            name = f"{prefix}{key}"
            if isinstance(value, dict):
                yield from flat(value, f"{name}.")
            else:
                yield name, value

    plain = dict(flat(OmegaConf.to_container(composed())))
    allowed = (
        "actor_rollout_ref.rollout.agent.agent_loop_manager_class", "data.custom_cls.", "data.gen_batch_size",
        "data.dataloader_num_workers", "trainer.v1.sampler.custom_sampler.", f"{OPTIONS}.",
    )  # fmt: skip
    for preset in PRESETS:
        ours = dict(flat(OmegaConf.to_container(composed(f"+sara={preset}"))))
        changed = {key for key, value in ours.items() if key not in plain or plain[key] != value}
        extra = {key for key in changed if not key.startswith(allowed)}
        assert extra == ({"algorithm.filter_groups.enable", "algorithm.filter_groups.metric"} & extra)
        assert bool(extra) == (preset == "verl_ds")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (f"{OPTIONS}.tau_low=2", "tau_low is 2; allowed"),
        (f"+{OPTIONS}.tau=0.3", "unknown option 'tau'; did you mean tau_low"),
        ("actor_rollout_ref.rollout.n=1", "group_size is 1"),
        ("data.gen_batch_size=16", "data.gen_batch_size is 16; allowed with SARA: 1"),
        ("data.dataloader_num_workers=8", "data.dataloader_num_workers is 8; allowed with SARA: 0"),
        ("trainer.v1.trainer_mode=separate_async", "'separate_async'; allowed with SARA: 'sync' .*GPUs would wait"),
        ("trainer.v1.trainer_mode=colocate_async", "'colocate_async'; allowed with SARA: 'sync' .*it would be sync"),
        ("trainer.use_v1=false", "trainer.use_v1 is False"),
        ("data.custom_cls.path=/mine.py", "data.custom_cls is /mine.py:SaraDataset .FileNotFoundError.*; allowed"),
        ("trainer.v1.sampler.custom_sampler.path=pkg://json", "custom_sampler is pkg://json:SaraReplayBuffer"),
        ("actor_rollout_ref.rollout.agent.agent_loop_manager_class=a.B", "agent_loop_manager_class is a.B"),
        ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.enable is true"),
        ("algorithm.filter_groups.max_num_gen_batches=4", "max_num_gen_batches is ignored"),
        (f"{OPTIONS}.importance_correction=horvitz_thompson", "adv_estimator is 'gae'; allowed with .* sara_grpo"),
        ("custom_reward_function.path=mine.py", "the key is reward.custom_reward_function.path"),
        ("reward.reward_model.enable=true", "without enable_resource_pool"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=6", "no multiple of .* 6; nearest .*: 4, 8"),
        ("actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=48", "48, .* 128 rows .*that do: 16, 32;"),
        ("trainer.n_gpus_per_node=5", "128 rows do not divide among 5 GPUs; nearest train_batch_size: 15 or 20"),
        ("data.train_batch_size=64", "hold 32 prompts, data.train_batch_size is 64"),
        ("data.val_files=${data.train_files}", "data.val_files are data.train_files"),
        ("trainer.v1.sampler.custom_sampler.name=ObservingReplayBuffer", "ObservingReplayBuffer; allowed with SARA"),
        ("critic.ppo_mini_batch_size=7", "critic.ppo_mini_batch_size is 7; allowed: a divisor"),
        ("data.train_files=/nowhere.parquet", "/nowhere.parquet does not exist"),
    ],
)
def test_preflight_names_what_is_wrong(composed, override, message):
    import re

    from verl_sara.adapters.preflight import find_problems

    problems = list(find_problems(composed("+sara=paper", override)))
    assert any(re.search(message, problem) for problem in problems), problems


def test_an_own_dataset_derived_from_ours_is_accepted(composed, tmp_path):
    from verl_sara.adapters.preflight import find_problems

    module = tmp_path / "mine.py"
    module.write_text("from verl_sara.adapters.dataset import SaraDataset\nclass Mine(SaraDataset): pass\n")
    config = composed("+sara=paper", f"data.custom_cls.path={module}", "data.custom_cls.name=Mine")
    assert list(find_problems(config)) == []


def main_ppo(*arguments, env=(), cwd):
    command = [sys.executable, "-m", "verl.trainer.main_ppo", *arguments]
    return run(command, cwd=cwd, env=dict(env), timeout=240)


def run(command, *, cwd, env, timeout=60):
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, timeout=timeout
    )


def test_a_bad_option_ends_main_ppo_before_ray_starts(tmp_path, train_file):
    job = main_ppo(
        "+sara=paper", f"+{OPTIONS}.tau_lo=0.3", f"data.train_files={train_file}", "data.train_batch_size=16",
        cwd=tmp_path,
    )  # fmt: skip
    assert job.returncode == 1
    assert "unknown option 'tau_lo'; did you mean tau_low?" in job.stderr
    assert "ray init kwargs" not in job.stdout


def test_a_preset_is_found_from_a_wheel(tmp_path):
    root = Path(__file__).parents[2]
    build = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, root]
    subprocess.run(build, check=True, timeout=240)
    wheel = next(tmp_path.glob("verl_sara-*.whl"))
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", target, wheel]
    subprocess.run(install, check=True, timeout=240)
    probe = "import verl_sara, sys; sys.stderr.write(verl_sara.__file__)"
    env = {"PYTHONPATH": str(target)}
    where = run([sys.executable, "-c", probe], cwd=tmp_path, env=env)
    assert str(target) in where.stderr
    job = main_ppo("+sara=paper", "--cfg", "job", env=env.items(), cwd=tmp_path)
    assert job.returncode == 0, job.stderr
    assert "agent_loop_manager_class: verl_sara.adapters.agent_loop.SaraAgentLoopManager" in job.stdout
