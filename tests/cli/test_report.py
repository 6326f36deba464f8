"""`sara report`: names, seeds, baselines, JSON, and what is refused."""

import argparse
import json
import sys

import pytest

from tests.simulated_runs import write_arms
from verl_sara.cli import report
from verl_sara.core import ConfigError
from verl_sara.ledger import LedgerError
from verl_sara.summary import summarise


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    return write_arms(tmp_path_factory.mktemp("arms"), ("ds", "paper"), steps=3)


def sara_report(*args):
    parser = argparse.ArgumentParser(prog="sara")
    report.add_parser(parser.add_subparsers())
    parsed = parser.parse_args(["report", *map(str, args)])
    return parsed.func(parsed)


def test_json_is_the_summary_of_the_runs(arms, capsys):
    assert sara_report(*arms.values(), "--json") == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(summarise(arms)))


def test_json_needs_no_plotting(arms, monkeypatch, capsys):
    for name in ("matplotlib", "pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, None)
    assert sara_report(arms["ds"], "--json") == 0 and "arms" in json.loads(capsys.readouterr().out)


def test_without_matplotlib_the_report_says_what_to_install(arms, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("verl_sara.report")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"pip install 'verl-sara\[analysis\]'"):
        sara_report(arms["ds"])


def test_the_report_is_written_and_the_table_printed(arms, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert sara_report(*arms.values(), "--steps", 2) == 0
    printed = capsys.readouterr().out
    assert "| paper |" in printed and "report: sara-report/report.html" in printed
    assert {"report.html", "report.md"} < {path.name for path in (tmp_path / "sara-report").iterdir()}


def test_one_unreadable_run_does_not_stop_the_others(arms, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert sara_report(arms["ds"], tmp_path / "empty", "--out", tmp_path / "out", "--json") == 0
    captured = capsys.readouterr()
    assert list(json.loads(captured.out)["arms"]) == ["ds"] and "not read: empty: no ledger in" in captured.err


@pytest.mark.parametrize(
    ("texts", "names"),
    [
        (["ds", "paper"], ["ds", "paper"]),
        (["base=ds", "paper"], ["base", "paper"]),
        (["x=ds", "x=paper"], ["x/1", "x/2"]),
        (["s1/ds", "s2/ds", "paper"], ["ds/1", "ds/2", "paper"]),
        (["a=b"], ["a=b"]),
        (["n=a=b"], ["n"]),
    ],
)
def test_names_of_runs(tmp_path, monkeypatch, texts, names):
    monkeypatch.chdir(tmp_path)
    for folder in ("ds", "paper", "s1/ds", "s2/ds", "a=b"):
        (tmp_path / folder).mkdir(parents=True)
    assert list(report.named_runs(texts)) == names


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["nowhere"], "run 'nowhere' does not exist; allowed: a run folder, or NAME=FOLDER"),
        (["x=nowhere"], "run 'x=nowhere' does not exist"),
        (["ds", "x=ds"], "is given twice; allowed: every run once"),
    ],
)
def test_runs_that_cannot_be_are_refused(tmp_path, monkeypatch, texts, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ds").mkdir()
    with pytest.raises(ConfigError, match=message):
        report.named_runs(texts)


def test_options_that_cannot_be_are_refused(arms):
    with pytest.raises(ConfigError, match="--steps is 0; allowed: >= 1"):
        sara_report(arms["ds"], "--steps", 0, "--json")
    with pytest.raises(LedgerError, match="baseline 'dapo' is no arm; allowed: ds, paper"):
        sara_report(*arms.values(), "--baseline", "dapo", "--json")


def test_a_baseline_is_an_arm_or_a_run_folder(tmp_path):
    from verl_sara.cli.report import name_baselines

    for name in ("ds", "paper"):
        (tmp_path / name).mkdir()
    paper, ds = str(tmp_path / "paper"), str(tmp_path / "ds")
    assert name_baselines(["ds"], [paper, ds]) == (["ds"], [paper, ds])
    assert name_baselines([ds], [paper, ds]) == (["ds"], [paper, ds])
    assert name_baselines([ds], [paper]) == (["ds"], [paper, ds])
    assert name_baselines([ds], [paper, f"base={ds}"]) == (["base"], [paper, f"base={ds}"])
    assert name_baselines(["nowhere"], [paper]) == (["nowhere"], [paper])
