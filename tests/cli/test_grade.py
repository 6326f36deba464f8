"""`sara grade`: both formats, both outputs, comparison with verl."""

from __future__ import annotations

import argparse
import json

import pytest

from verl_sara.cli import grade

ROWS = [
    {"id": "a", "data_source": "math", "answer": r"so \boxed{\dfrac{1}{2}}", "gold": "0.5"},
    {"id": 2, "data_source": "countdown", "answer": "3*5+7", "gold": {"target": 22, "numbers": [3, 5, 7]}},
    {"id": 3, "data_source": "HuggingFaceH4/MATH-500", "answer": r"\boxed{5}", "gold": "6"},
    {"id": 4, "data_source": "aime24", "answer": "who knows, really, not me", "gold": "033"},
    {"id": 5, "data_source": "math", "answer": "7", "gold": None},
]
EXPECTED = [
    {"id": "a", "acc": 1, "score": 1.0, "reason": "ok"},
    {"id": 2, "acc": 1, "score": 1.0, "reason": "ok"},
    {"id": 3, "acc": 0, "score": 0.0, "reason": "wrong"},
    {"id": 4, "acc": 0, "score": 0.0, "reason": "no_answer"},
    {"id": 5, "acc": 0, "score": 0.0, "reason": "error"},
]
DUMP = [
    {"input": "q", "output": r"\boxed{73}", "gts": "073", "score": 1.0, "step": 1, "uid": "u_0_0"},
    {
        "input": "q",
        "output": "<answer>3*5</answer>",
        "gts": {"target": 22, "numbers": [3, 5, 7]},
        "score": 0.0,
        "uid": "v_0_0",
    },
    {"input": "q", "output": "", "gts": "073", "score": 0.0, "step": 1, "uid": f"pad{'0' * 32}_0_0"},
]


def sara(*argv):
    parser = argparse.ArgumentParser(prog="sara")
    grade.add_parser(parser.add_subparsers(dest="command", required=True))
    args = parser.parse_args(["grade", *map(str, argv)])
    return args.func(args)


def write(path, rows, tail=""):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows) + tail)
    return path


def printed(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_json_prints_four_keys_a_line_in_the_order_of_the_file(tmp_path, capsys):
    assert sara(write(tmp_path / "a.jsonl", ROWS), "--json") == 0
    assert printed(capsys) == EXPECTED


def test_the_table_counts_reasons_and_right_answers(tmp_path, capsys):
    assert sara(write(tmp_path / "a.jsonl", ROWS)) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines] == [
        ["reason", "answers", "share"],
        ["ok", "2", "40.0%"],
        ["wrong", "1", "20.0%"],
        ["no_answer", "1", "20.0%"],
        ["error", "1", "20.0%"],
        ["acc", "2", "40.0%"],
    ]


def test_a_dump_of_verl_is_graded_by_its_gold_answers_without_padding(tmp_path, capsys):
    assert sara(write(tmp_path / "1.jsonl", DUMP), "--json") == 0
    out, err = capsys.readouterr()
    assert [json.loads(line) for line in out.splitlines()] == [
        {"id": "u_0_0", "acc": 1, "score": 1.0, "reason": "ok"},
        {"id": "v_0_0", "acc": 0, "score": 0.0, "reason": "wrong_numbers"},
    ]
    assert "1 padding rows" in err


def test_line_separators_inside_an_answer_do_not_split_the_row(tmp_path, capsys):
    row = {"id": 1, "data_source": "math", "answer": "line\u2028one\u0085two \\boxed{7}", "gold": "7"}
    assert sara(write(tmp_path / "a.jsonl", [row]), "--json") == 0
    assert printed(capsys)[0]["acc"] == 1


def test_a_torn_last_line_is_told_and_any_other_bad_line_is_status_1(tmp_path, capsys):
    assert sara(write(tmp_path / "a.jsonl", ROWS, tail='{"id": 9, "ans'), "--json") == 0
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == len(ROWS)
    assert "row 6 left out: torn last line" in err
    assert sara(write(tmp_path / "b.jsonl", ROWS, tail='{"id": 9, "ans\n{"id": 10}\n'), "--json") == 1
    out, err = capsys.readouterr()
    assert json.loads(out.splitlines()[-1]) == {"id": 10, "acc": 0, "score": 0.0, "reason": "error"}
    assert "row 6 left out: not JSON" in err


def test_unknown_source_and_missing_file_are_status_2(tmp_path, capsys):
    row = {"id": 1, "data_source": "gsm9k", "answer": "1", "gold": "1"}
    assert sara(write(tmp_path / "a.jsonl", [row])) == 2
    assert "no grader for data_source 'gsm9k'; allowed: " in capsys.readouterr().err
    assert sara(tmp_path / "none.jsonl") == 2
    assert "no such file" in capsys.readouterr().err
    assert sara(write(tmp_path / "b.jsonl", [{"answer": "1", "gold": "1"}]), "--data-source", "gsm9k") == 2


def test_an_empty_file_has_no_answers(tmp_path, capsys):
    assert sara(write(tmp_path / "a.jsonl", [])) == 0
    assert capsys.readouterr().out == "no answers\n"


def test_disagreements_are_counted_by_grader_and_shown():
    answers = [grade.read_answer(row, number) for number, row in enumerate(ROWS[:4], start=1)]
    grades = [grade.grader_for(answer.data_source)(answer.text, answer.gold) for answer in answers]

    def verls(source, text, gold):
        if source == "aime":
            return {"score": -1.0, "acc": False}
        if "who knows" in text:
            raise RuntimeError("boom")
        return 1.0

    report = grade.against_verl(answers, grades, 20, verls)
    assert "1 answers left out: verl has no grader for Countdown" in report
    assert "verl math_reward: agrees on 1 of 3; right only for us 0, right only for verl 2" in report
    assert "verl math_dapo: agrees on 2 of 3; right only for us 1, right only for verl 0" in report
    assert "  4: ours 0 (no_answer), verl raises RuntimeError; gold '033'" in report
    assert "verl raises" not in grade.against_verl(answers, grades, 0, verls)


@pytest.mark.verl
def test_against_verls_own_graders(tmp_path, capsys):
    """The answers of lesson 6.4: right on one of verl's graders, wrong on the other, or wrong on both."""
    rows = [
        {"id": "sign", "data_source": "math", "answer": r"\boxed{\frac{-3}{4}}", "gold": r"-\frac{3}{4}"},
        {"id": "bold", "data_source": "math", "answer": "**Answer:** 73", "gold": "73"},
        {"id": "same", "data_source": "math", "answer": r"\boxed{7}", "gold": "7"},
    ]
    assert sara(write(tmp_path / "a.jsonl", rows), "--against", "verl") == 0
    out = capsys.readouterr().out
    assert "verl math_reward: agrees on 1 of 3; right only for us 2" in out
    assert "verl math_dapo: agrees on 1 of 3; right only for us 2" in out
