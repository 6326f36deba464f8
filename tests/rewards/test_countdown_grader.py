"""The Countdown grader: what counts as an answer, and what it is worth."""

from __future__ import annotations

import pytest

from verl_sara.rewards import UnknownDataSource, compute_score, countdown

GOLD = {"target": 22, "numbers": [3, 5, 7]}

CASES = [
    # text, target, numbers, reason
    ("3*5+7", 22, [3, 5, 7], "ok"),
    ("<answer>3*5+7</answer>", 22, [3, 5, 7], "ok"),
    ("<answer> 3 * 5 + 7 = 22 </answer>", 22, [3, 5, 7], "ok"),
    ("**3*5+7 = 22**", 22, [3, 5, 7], "ok"),
    ("2**3", 8, [2, 3], "unparsed"),
    ("9//2*2", 8, [9, 2, 2], "unparsed"),
    ("1.5+3", 8, [5, 3], "wrong_numbers"),
    ("3/(5-5)", 1, [3, 5, 5], "wrong"),
    ("3+5 or 5-3", 8, [3, 5], "ambiguous"),
    ("hello", 8, [3, 5], "no_answer"),
    ("<answer>", 8, [3, 5], "truncated"),
]


@pytest.mark.parametrize(("text", "target", "numbers", "reason"), CASES)
def test_countdown_table(text, target, numbers, reason):
    grade = countdown.grade(text, {"target": target, "numbers": numbers})
    assert (grade.reason, grade.acc) == (reason, int(reason == "ok"))


def test_unknown_data_source_names_the_allowed_ones():
    with pytest.raises(UnknownDataSource, match=r"'gsm9k'.*countdown.*lighteval/MATH"):
        compute_score("gsm9k", "3*5+7", GOLD)
