"""`sara data`: options, what is printed, exit status."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from verl_sara.cli import data

SAMPLES = Path(__file__).parents[1] / "data" / "samples"


def sara(*argv):
    parser = argparse.ArgumentParser(prog="sara")
    data.add_parser(parser.add_subparsers(dest="command", required=True))
    args = parser.parse_args(["data", *map(str, argv)])
    return args.func(args)


def test_math_prints_counts_and_gold_against_gold(tmp_path, capsys):
    source = tmp_path / "math.jsonl"
    lines = (SAMPLES / "math.jsonl").read_text()
    source.write_text(lines + lines + '{"problem": "No gold"}\n')
    assert sara("math", "--out", tmp_path / "out", "--source", source, "--test-size", 2) == 0
    out, err = capsys.readouterr()
    assert "train: 25 rows read, 10 written (12 repeated, 1 faulty)" in out
    assert "test: 2 rows read, 2 written (0 repeated, 0 faulty)" in out
    assert "gold against gold: 12/12 = 100 %" in out
    assert f"left out: {source} row 25: the gold answer is missing" in err
    assert pq.read_metadata(tmp_path / "out/train.parquet").num_rows == 10


def test_strict_fails_on_a_faulty_row_and_writes_nothing(tmp_path, capsys):
    source = tmp_path / "math.jsonl"
    source.write_text((SAMPLES / "math.jsonl").read_text() + '{"problem": "No gold"}\n')
    assert sara("math", "--out", tmp_path / "out", "--source", source, "--strict") == 1
    assert "row 13" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_aime24_writes_thirty_test_rows(tmp_path, capsys):
    assert sara("aime24", "--out", tmp_path, "--source", SAMPLES / "aime24.jsonl", "--strict") == 0
    rows = pq.read_table(tmp_path / "test.parquet").to_pylist()
    assert len(rows) == 30
    assert {row["data_source"] for row in rows} == {"aime24"}
    assert "warning" not in capsys.readouterr().err


def test_countdown_is_generated_by_the_options(tmp_path):
    options = ["--train-size", 40, "--test-size", 10, "--sizes", "2,3", "--max-number", 9, "--ops=+-*"]
    assert sara("countdown", "--out", tmp_path, "--template", "tiny", "--seed", 7, *options) == 0
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert len(rows) == 40
    for row in rows:
        gold = row["reward_model"]["ground_truth"]
        assert row["prompt"][0]["content"] == f"{' '.join(map(str, gold['numbers']))} = {gold['target']}"
        assert len(gold["numbers"]) in (2, 3)
    settings = json.loads((tmp_path / "source.json").read_text())["settings"]
    assert (settings["seed"], settings["ops"], settings["max_number"]) == (7, "+-*", 9)


def test_countdown_from_a_source(tmp_path):
    source = SAMPLES / "countdown.jsonl"
    assert sara("countdown", "--out", tmp_path, "--source", source, "--train-size", 6, "--test-size", 2) == 0
    assert pq.read_metadata(tmp_path / "train.parquet").num_rows == 6


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["math", "--source", "nowhere.jsonl"], "no such file or folder: nowhere.jsonl"),
        (
            ["math", "--source", SAMPLES / "math.jsonl", "--data-source", "gsm9k"],
            "no grader for data_source 'gsm9k'",
        ),
        (["countdown", "--ops", "^"], "ops must be"),
        (["countdown", "--sizes", "2", "--max-number", "2"], "distinct problems"),
    ],
)
def test_bad_input_is_status_2_with_a_message(tmp_path, capsys, argv, message):
    assert sara(*argv, "--out", tmp_path / "out") == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
