"""The dataset class of a user, the attempt's configuration on disk, and what has no effect with SARA."""

import copy
import sys

import pytest

from tests.config.test_presets import OPTIONS, composed, train_file  # noqa: F401  (fixtures)

pytestmark = pytest.mark.verl

OWN = "from verl.utils.dataset.rl_dataset import RLHFDataset\nclass Mine(RLHFDataset): pass\nclass Other: pass\n"


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def named(path, name="Mine", key="data.custom_cls"):
    return [f"{key}.path={path}", f"{key}.name={name}"]


def problems(config):
    from verl_sara.adapters.preflight import find_problems

    return list(find_problems(config))


@pytest.fixture
def started(tmp_path, train_file, monkeypatch):  # noqa: F811
    """Runs Hydra's own main with verl's config and returns the configs that the jobs get."""
    import hydra
    import verl  # noqa: F401  (registers the presets)
    from hydra.core.global_hydra import GlobalHydra

    def run(*overrides, flags=()):
        configs = []
        job = hydra.main(config_path="pkg://verl.trainer.config", config_name="ppo_trainer", version_base=None)
        arguments = [
            f"data.train_files={train_file}", "data.train_batch_size=16", "actor_rollout_ref.rollout.n=8",
            "actor_rollout_ref.actor.ppo_mini_batch_size=8", f"trainer.default_local_dir={tmp_path}/run",
            "trainer.nnodes=1", "trainer.n_gpus_per_node=1", f"hydra.run.dir={tmp_path}/hydra",
            f"hydra.sweep.dir={tmp_path}/sweep", "hydra/job_logging=disabled", "hydra/hydra_logging=disabled",
        ]  # fmt: skip
        monkeypatch.setattr(sys, "argv", ["main_ppo", *flags, *arguments, *overrides])
        try:
            job(configs.append)()
        finally:
            GlobalHydra.instance().clear()
        return configs

    return run


@pytest.mark.parametrize("path", ["{}", "file://{}"])
def test_the_command_line_of_today_puts_the_class_beneath_ours(started, own, path, capsys):
    [config] = started("+sara=paper", *named(path.format(own)))
    custom = config.data.custom_cls
    assert (custom.path, custom.name) == ("pkg://verl_sara.adapters.dataset", "SaraDataset")
    assert dict(custom.sara.base) == {"path": path.format(own), "name": "Mine"}
    assert f"{path.format(own)}:Mine is read through SaraDataset" in capsys.readouterr().out


def test_without_a_preset_nothing_is_changed(started, own, tmp_path):
    [config] = started(*named(own))
    assert (config.data.custom_cls.path, config.data.custom_cls.name) == (str(own), "Mine")
    assert not (tmp_path / "run").exists()


def test_a_sweep_is_told_the_two_overrides(started, own, capsys):
    sweep = ["+sara=paper", "data.seed=1,2"]
    with pytest.raises(SystemExit):
        started(*sweep, *named(own), flags=["--multirun"])
    said = capsys.readouterr().err
    base = named(own, key="data.custom_cls.sara.base")
    assert f"instead of its path and name, {base[0]} {base[1]}" in said
    assert [config.data.seed for config in started(*sweep, *base, flags=["--multirun"])] == [1, 2]


@pytest.mark.parametrize("key", ["data.custom_cls", "data.custom_cls.sara.base"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Mine", None),
        ("Other", "{key} is {own}:Other, which does not derive from RLHFDataset; allowed: path, a file or pkg://module"),
        ("Absent", "{key} is {own}:Absent (AttributeError: "),
    ],
)
def test_a_class_that_cannot_be_wrapped_is_named_by_its_key(composed, own, key, name, message):  # noqa: F811
    found = problems(composed("+sara=paper", *named(own, name, key)))
    assert found == [] if message is None else found[0].startswith(message.format(key=key, own=own))
    assert len(found) <= 1


def test_two_classes_are_refused(composed, own):  # noqa: F811
    [problem] = problems(composed("+sara=paper", *named(own), *named(own, key="data.custom_cls.sara.base")))
    assert "allowed: one of them" in problem


def test_the_configuration_of_every_attempt_can_be_run_again(started, own, tmp_path):
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    secret = "+ray_kwargs.ray_init.runtime_env.env_vars.{}"
    overrides = [f"{secret.format('WANDB_API_KEY')}=x123", f"{secret.format('NCCL_DEBUG')}=WARN", *named(own)]
    [config] = started("+sara=paper", *overrides)
    folder = tmp_path / "run" / "sara"
    [path] = folder.iterdir()
    assert path.name == "config.attempt-1.yaml" and "x123" not in path.read_text()
    with initialize_config_dir(str(folder), version_base=None):
        again = OmegaConf.to_container(compose("config.attempt-1"))
    expected = copy.deepcopy(OmegaConf.to_container(config, resolve=True))
    environment = expected["ray_kwargs"]["ray_init"]["runtime_env"]["env_vars"]
    assert environment == {"WANDB_API_KEY": "x123", "NCCL_DEBUG": "WARN"}
    environment["WANDB_API_KEY"] = "masked"
    assert again == expected

    started("+sara=paper", *overrides)
    assert [p.name for p in folder.iterdir()] == ["config.attempt-1.yaml"], "no ledger yet: the same attempt"
    (folder / "ledger.attempt-1.jsonl").write_text("")
    started("+sara=paper", *overrides)
    assert (folder / "config.attempt-2.yaml").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.v1.sampler.sync_refill_failed_groups=true", "failed_groups is True; .*: False .it has no effect"),
        (f"{OPTIONS}.stall_deadline_s=3600", r"stall_deadline_s is 3600 with rollout_timeout_s 3600\.0; allowed"),
        ("+data.custom_cls.sara.selection.seed=1", "selection 'verl' has no parameter seed; allowed: none"),
    ],
)
def test_what_has_no_effect_or_cannot_work_is_refused(composed, override, message):  # noqa: F811
    import re

    [problem] = problems(composed("+sara=paper", override))
    assert re.search(message, problem), problem


def test_group_sizes_per_prompt_are_refused(composed, train_file):  # noqa: F811
    import pandas as pd

    pd.DataFrame({"prompt": ["x"] * 32, "__rollout_n__": 4}).to_parquet(train_file)
    [problem] = problems(composed("+sara=paper"))
    assert "has the column __rollout_n__, which has no effect with SARA" in problem
