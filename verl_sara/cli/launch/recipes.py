"""The recipes: folders under `recipes/`, each with `config.yaml` and perhaps variants of it.

`NAME` is `recipes/NAME/config.yaml`, `NAME/VARIANT` is `recipes/NAME/VARIANT.yaml`. A variant is its
base with changes: its defaults list begins with `/recipes/NAME/config`.
"""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_sara.core import ConfigError

CPU_RECIPES = ("arithmetic_smollm2", "countdown_tiny")
"""Recipes that run without an accelerator, with `+sara/host=cpu`."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A recipe.

    Attributes:
      name: As the user writes it, `folder` or `folder/variant`.
      option: The option of Hydra's group `recipes`, `folder/config` or `folder/variant`.
      values: What its YAML files set, merged.
    """

    name: str
    option: str
    values: dict[str, Any]

    @property
    def is_cpu(self) -> bool:
        """Whether it runs without an accelerator."""
        return self.name.partition("/")[0] in CPU_RECIPES

    def get(self, key: str, overrides: Iterable[str] = ()) -> Any:
        """Returns the value of a dotted key, as the last of the overrides has it; None if it is not set."""
        import yaml

        for override in reversed(list(overrides)):
            name, sets, text = override.lstrip("+").partition("=")
            if sets and name == key:
                return yaml.safe_load(text)
        node: Any = self.values
        for part in key.split("."):
            node = node.get(part) if isinstance(node, dict) else None
        return node

    def whole(self, key: str, overrides: Iterable[str] = ()) -> int | None:
        """Returns the value of a key if it is a whole number, else None."""
        value = self.get(key, overrides)
        return value if type(value) is int else None


def recipe_names(root: Path) -> list[str]:
    """Returns the names of all recipes and variants of a source folder."""
    names = []
    for path in sorted((root / "recipes").glob("*/*.yaml")):
        names.append(path.parent.name if path.stem == "config" else f"{path.parent.name}/{path.stem}")
    return names


def find_recipe(root: Path, name: str) -> Recipe:
    """Returns a recipe by its name.

    Raises:
      ConfigError: If there is no such recipe.
    """
    names = recipe_names(root)
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        allowed = ", ".join(names) or f"none: there is no folder recipes/ in {root}"
        raise ConfigError(f"recipe {name!r} is unknown{hint} (allowed: {allowed})")
    option = name if "/" in name else f"{name}/config"
    return Recipe(name, option, _load(root, f"recipes/{option}"))


def _load(root: Path, config: str) -> dict[str, Any]:
    import yaml

    values = yaml.safe_load((root / f"{config}.yaml").read_text(encoding="utf-8")) or {}
    merged: dict[str, Any] = {}
    for base in values.pop("defaults", []):
        if isinstance(base, str) and base.startswith("/recipes/"):
            _merge(merged, _load(root, base.removeprefix("/")))
    _merge(merged, values)
    return merged


def _merge(into: dict[str, Any], values: dict[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = value


def run_dir(runs: Path, recipe: str, arm: str, seed: int) -> Path:
    """Returns the folder of a run: fixed, so that a later attempt finds the checkpoints of the earlier."""
    return runs / recipe / arm / f"seed{seed}"
