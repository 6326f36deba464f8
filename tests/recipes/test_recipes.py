"""Every recipe with every arm composes with the installed verl, sets only keys verl has, and passes preflight."""

import copy
import functools
import io
from pathlib import Path

import pytest

from verl_sara.cli.launch import (
    ABLATIONS,
    ARMS,
    Placement,
    eval_command,
    find_recipe,
    recipe_names,
    train_command,
)
from verl_sara.cli.launch.recipes import CPU_RECIPES

ROOT = Path(__file__).parents[2]
NAMES = recipe_names(ROOT)
ARMS_OF = {"ablations": ("uniform", "ds", *ABLATIONS), "algorithms": ("uniform", "paper")}
"""The arms of the families that do not have them all."""

PRODUCT = [
    (name, arm)
    for name in NAMES
    if not name.endswith("/eval")
    for arm in ARMS_OF.get(name.partition("/")[0], ARMS)
]
GROUPS = {"grpo", "rloo", "reinforce_plus_plus", "gae"}
pytestmark = pytest.mark.verl


@pytest.fixture(scope="module", autouse=True)
def data(tmp_path_factory):
    """Parquet files where the recipes look for them."""
    import pandas as pd

    folder = tmp_path_factory.mktemp("data")
    names = ("math", "aime24", "countdown", "countdown4", "countdown_tiny", "arithmetic_smollm2")
    for name in names:
        (folder / name).mkdir()
        for split in ("train", "test", "val"):
            pd.DataFrame({"prompt": ["x"] * 512}).to_parquet(folder / name / f"{split}.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SARA_DATA", str(folder))
        for name in names[-2:]:
            patch.setenv(name.upper(), str(folder / name))
        yield folder


@pytest.fixture(scope="module")
def composed():
    import verl  # noqa: F401  (registers the presets)
    from hydra import compose, initialize_config_module
    from omegaconf import OmegaConf

    load, read = OmegaConf.load, {}

    def load_once(file):
        """verl's forty YAML files, parsed once instead of once a recipe."""
        text = file.read() if hasattr(file, "read") else Path(file).read_text()
        if text not in read:
            read[text] = load(io.StringIO(text))
        return copy.deepcopy(read[text])

    @functools.cache
    def make(*overrides):
        with initialize_config_module("verl.trainer.config", version_base=None):
            return compose("ppo_trainer", overrides=[f"hydra.searchpath=[file://{ROOT}]", *overrides])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OmegaConf, "load", load_once)
        yield make


def overrides_of(name, arm):
    """Returns what the batch script gives to verl."""
    recipe = find_recipe(ROOT, name)
    place = Placement(gpus=recipe.whole("trainer.n_gpus_per_node") or 1)
    command = train_command(recipe, arm, 3, root=ROOT, run=Path("/r u=n"), attempt=1, place=place, extra=[])
    return [word for word in command[4:] if not word.startswith("hydra.")]


def flat(node, prefix=""):
    for key, value in node.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def unknown_keys(values, plain):
    """Returns the keys of a recipe that verl does not have; a list of verl's may be given as a list only."""
    return sorted(key for key in flat(values) if key not in plain)


@pytest.fixture(scope="module")
def plain(composed):
    from omegaconf import OmegaConf

    return set(flat(OmegaConf.to_container(composed())))


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_sets_only_keys_that_verl_has(name, plain):
    assert unknown_keys(find_recipe(ROOT, name).values, plain) == []


def test_a_misspelt_key_is_found(plain):
    values = {"trainer": {"save_frq": 1, "save_freq": 2}, "data": {"seed": 1}, "critic": {"optim": {"lrr": 1}}}
    assert unknown_keys(values, plain) == ["critic.optim.lrr", "trainer.save_frq"]


@pytest.mark.parametrize(("name", "arm"), PRODUCT)
def test_every_arm_of_a_recipe_passes_preflight(name, arm, composed):
    check(name, arm, composed)


@pytest.mark.parametrize("arm", ABLATIONS)
def test_every_ablation_changes_what_its_name_says(arm, composed):
    config, base = (check("ablations", a, composed) for a in (arm, "ds" if arm.startswith("ds") else "paper"))
    from omegaconf import OmegaConf

    options = [
        OmegaConf.to_container(c.trainer.v1.sampler.sampler_kwargs, resolve=True) for c in (config, base)
    ]
    changed = {key for key in options[0] if options[0][key] != options[1][key]} - {"run_name"}
    expected = {override.partition("=")[0].rpartition(".")[2] for override in ABLATIONS[arm][1:]}
    assert changed == {"group_size" if key == "n" else key for key in expected}


def check(name, arm, composed):
    """Composes a recipe with an arm, checks it, and returns it."""
    from verl_sara.adapters.preflight import find_problems
    from verl_sara.config.schema import build_config, options_of

    config = composed(*overrides_of(name, arm))
    assert list(find_problems(config)) == []
    options = build_config(options_of(config))
    recipe = find_recipe(ROOT, name)
    assert options.batch_size == recipe.whole("data.train_batch_size")
    assert config.trainer.n_gpus_per_node == (recipe.whole("trainer.n_gpus_per_node") or 1)
    assert config.trainer.default_local_dir == "/r u=n" and options.run_dir == "/r u=n/sara"
    assert (config.data.seed, options.seed, config.trainer.resume_mode) == (3, 3, "auto")
    assert config.algorithm.adv_estimator in GROUPS
    wanted = {"dps": "dps", "paper+dps": "dps"}.get(arm, "verl")
    assert config.data.custom_cls.sara.selection.name == wanted
    assert str(config.reward.custom_reward_function.path) == "pkg://verl_sara.rewards"
    return config


def test_the_evaluation_of_a_recipe_has_more_responses_and_sets_than_its_training():
    for name in ("math_r1_distill_1.5b", "countdown_qwen2.5_3b"):
        training, evaluation = (find_recipe(ROOT, n) for n in (name, f"{name}/eval"))
        assert len(evaluation.get("data.val_files")) == 2 and isinstance(training.get("data.val_files"), str)
        assert evaluation.get("actor_rollout_ref.rollout.val_kwargs.n") == 16


@pytest.mark.parametrize("name", [*CPU_RECIPES, *(name for name in NAMES if name.endswith("/eval"))])
def test_the_evaluation_of_a_recipe_composes(name, composed):
    recipe, place = find_recipe(ROOT, name), Placement(gpus=1)
    command = eval_command(recipe, root=ROOT, run=Path("/r"), step=2, place=place, extra=[])
    config = composed(*command[4:-1])  # the last one is Hydra's own folder
    assert config.trainer.val_only and config.trainer.val_before_train
    assert config.trainer.resume_from_path == "/r/global_step_2"
    assert config.actor_rollout_ref.actor.checkpoint.load_contents == ["model"]


def test_a_recipe_overrides_the_settings_of_a_machine_without_an_accelerator(composed):
    names = ("countdown_tiny", "arithmetic_smollm2")
    tiny, chat = (composed(*overrides_of(name, "ds")).actor_rollout_ref.rollout for name in names)
    assert tiny.max_num_seqs == chat.max_num_seqs
    largest = 49152 * 576 * 4  # bytes of SmolLM2's embedding, which has to fit
    assert chat.checkpoint_engine.update_weights_bucket_megabytes * 2**20 >= largest
    assert tiny.checkpoint_engine.update_weights_bucket_megabytes * 2**20 < largest


def test_every_recipe_has_a_readme_that_names_its_variants():
    for folder in sorted((ROOT / "recipes").iterdir()):
        if not (folder / "config.yaml").exists() or folder.name == "countdown_tiny":  # described with the demo
            continue
        text = (folder / "README.md").read_text()
        for part in ("## Question", "## Command", "## Hardware", "## Expected", "## Table"):
            assert part in text, f"{folder.name}: {part}"
        for variant in folder.glob("*.yaml"):
            assert variant.stem == "config" or variant.stem in text, f"{folder.name}: {variant.stem}"
        assert folder.name in (ROOT / "recipes/README.md").read_text()


def test_required_verl_is_the_one_that_is_pinned():
    from verl_sara.cli.doctor import TESTED

    fields = dict(line.split("=", 1) for line in (ROOT / "recipes/REQUIRED_VERL.txt").read_text().splitlines()[1:])
    assert fields["VERSION"] == TESTED["verl"] and fields["VERSION"] in fields["PIP_INSTALL"]
