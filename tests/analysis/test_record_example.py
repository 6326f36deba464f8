"""The example is small, free of paths, and recorded by the script beside it."""

import importlib.util
from pathlib import Path

import pytest

from tests.simulated_runs import write_run
from verl_sara.ledger import read_ledger
from verl_sara.summary import summarise_arm

ANALYSIS = Path(__file__).parents[2] / "analysis"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("record_example", ANALYSIS / "record_example.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_example_is_sound_and_small():
    files = list((ANALYSIS / "example").rglob("*.jsonl"))
    assert files and sum(path.stat().st_size for path in files) < 2e6
    for folder in (ANALYSIS / "example").iterdir():
        assert read_ledger(folder).problems == []


def test_a_recorded_run_gives_the_same_numbers_and_names_no_path(script, tmp_path):
    run = write_run(tmp_path / "run", "paper", steps=3)
    (tmp_path / "example" / "old").mkdir(parents=True)
    script.record({"paper": run}, tmp_path / "example")
    copy = tmp_path / "example" / "paper"
    assert summarise_arm(copy) == summarise_arm(run) and not (tmp_path / "example" / "old").exists()
    assert str(tmp_path) not in (copy / "sara" / "ledger.attempt-1.jsonl").read_text()


def test_runs_that_are_too_large_replace_nothing(script, tmp_path, monkeypatch):
    monkeypatch.setattr(script, "LIMIT_MB", 0.001)
    (tmp_path / "example" / "old").mkdir(parents=True)
    with pytest.raises(ValueError, match=r"the runs hold 0\.\d MB; allowed: 0\.001 MB"):
        script.record({"paper": write_run(tmp_path / "run", "paper", steps=3)}, tmp_path / "example")
    assert (tmp_path / "example" / "old").exists()
