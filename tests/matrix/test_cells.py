"""Every cell of the matrix composes with verl's configuration and passes the preflight; needs no run."""

import sys
from pathlib import Path

import pytest

from tests.matrix.cells import CELLS

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.verl


def test_every_estimator_meets_both_presets():
    estimators = {"gae", "grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"}
    assert {(cell.estimator, cell.preset) for cell in CELLS} >= {(e, p) for e in estimators for p in ("paper", "tuned")}
    assert {cell.group_size for cell in CELLS} == {2, 4, 8, 16, 32}
    assert len({cell.name for cell in CELLS}) == len(CELLS)


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_cell_composes_and_passes_the_preflight(cell, tmp_path, monkeypatch):
    import verl  # noqa: F401  (registers the preset group, as a run does before Hydra composes)
    from hydra import compose, initialize_config_module

    from verl_sara.adapters.preflight import find_problems

    monkeypatch.setenv("COUNTDOWN_TINY", str(tmp_path))
    sys.path.insert(0, str(ROOT / "recipes/countdown_tiny"))
    from demo import command

    words = command(cell.preset, tmp_path, 2, 1, cell.overrides)
    overrides = [word for word in words[words.index(str(ROOT)) + 1 :] if not word.startswith("hydra.")]
    with initialize_config_module("verl.trainer.config", version_base=None):
        config = compose("ppo_trainer", overrides=[f"hydra.searchpath=[file://{ROOT}]", *overrides])
    problems = [problem for problem in find_problems(config) if "does not exist" not in problem]
    assert problems == []
