"""The configuration of an attempt, written beside its ledger so that it can be run again."""

import copy
import os
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from verl_sara.ledger.schema import attempts

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


def write_run_config(config: DictConfig, run_dir: str | os.PathLike[str]) -> Path:
    """Writes verl's composed and resolved config to `config.attempt-<n>.yaml`, n being the next ledger's attempt.

    Hydra's own node is left out; environment variables whose names speak of a secret are masked.
    """
    folder = Path(run_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    name = f"config.attempt-{max(attempts(folder), default=0) + 1}"
    path = folder / f"{name}.yaml"
    config = copy.deepcopy(config)
    with read_write(config), open_dict(config):
        config.pop("hydra", None)
    plain = _masked(OmegaConf.to_container(config, resolve=True))
    header = f"# python -m verl.trainer.main_ppo --config-path {folder} --config-name {name}\n"
    path.write_text(header + OmegaConf.to_yaml(OmegaConf.create(plain)), encoding="utf-8")
    return path


def _masked(node: Any, *, is_environment: bool = False) -> Any:
    if isinstance(node, list):
        return [_masked(one) for one in node]
    if not isinstance(node, dict):
        return node
    hidden = {key for key in node if is_environment and SECRET.search(str(key))}
    return {
        key: "masked" if key in hidden else _masked(value, is_environment=key == "env_vars")
        for key, value in node.items()
    }
