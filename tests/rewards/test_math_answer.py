"""The grader for mathematics: a table of pairs, and what holds for any text."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_sara.rewards import compute_score, math_answer
from verl_sara.rewards.equivalence import equal, normal_form

from .math_cases import EQUIVALENCE, EXTRACTION

PAIRS = [(kind, *case) for kind, cases in EQUIVALENCE.items() for case in cases]
KEYS = {"score": float, "acc": int, "reason": str, "pred": str}

# A response that cannot be mistaken for an answer: no digit, no backslash, no mark.
PROSE = st.text(alphabet=st.characters(categories=("Lu", "Ll", "Zs"), exclude_characters="aA"), max_size=60)


def never(_gold, _answer):
    """An `undecided` that leaves it at the normal form."""
    return False


def test_the_table_is_large_and_has_both_verdicts():
    num_right = sum(acc for *_, acc in PAIRS)
    assert len(PAIRS) >= 250
    assert min(num_right, len(PAIRS) - num_right) >= 70


@pytest.mark.parametrize(("kind", "gold", "answer", "acc"), PAIRS)
def test_boxed_answer_against_gold(kind, gold, answer, acc):
    grade = math_answer.grade(f"We get $\\boxed{{{answer}}}$.", gold)
    assert (grade.acc, grade.is_failure) == (acc, False), (kind, grade)


@pytest.mark.parametrize(("gold", "response", "reason"), EXTRACTION)
def test_where_the_answer_is_found(gold, response, reason):
    grade = math_answer.grade(response, gold)
    assert (grade.reason, grade.acc) == (reason, int(reason == "ok")), grade


@pytest.mark.parametrize(
    "gold", sorted({gold for _, gold, _, _ in PAIRS} | {gold for gold, *_ in EXTRACTION})
)
def test_gold_equals_itself_without_asking(gold):
    assert math_answer.grade(f"\\boxed{{{gold}}}", gold, never).acc == 1


@pytest.mark.parametrize(
    "gold", [33, 33.0, "33", np.int64(33), np.float64(33.0), np.str_("033"), r"so \boxed{33}"]
)
def test_gold_may_be_any_number_or_text(gold):
    assert math_answer.grade(r"\boxed{33}", gold).reason == "ok"


@pytest.mark.parametrize("gold", [None, "", "  ", float("nan"), [], ["33"], {"target": 1}, True, r"\boxed{}"])
def test_unusable_gold_is_an_error_and_not_a_wrong_answer(gold):
    grade = math_answer.grade(r"\boxed{33}", gold)
    assert (grade.reason, grade.acc, grade.is_failure) == ("error", 0, True)


@pytest.mark.parametrize(
    "source", ["math", "aime24", "AIME_2024", "lighteval/MATH", np.str_("HuggingFaceH4/MATH-500")]
)
def test_one_grader_for_all_data_sources(source):
    result = compute_score(source, r"\boxed{\frac{-3}{4}}", r"-\frac{3}{4}", {}, reward_router_address=None)
    assert result == {"score": 1.0, "acc": 1, "reason": "ok", "pred": "-3/4"}
    assert {key: type(value) for key, value in result.items()} == KEYS


def test_right_answers_of_a_group_have_one_pred_for_majority_votes():
    answers = [r"\frac12", "0.5", "1/2", r"x=\dfrac{1}{2}"]
    assert {compute_score("math", f"\\boxed{{{answer}}}", "0.5")["pred"] for answer in answers} == {"1/2"}


@given(text=st.text(max_size=300), gold=st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_never_raises_and_always_the_same_keys(text, gold):
    grade = math_answer.grade(text, gold, never)
    assert {key: type(value) for key, value in grade.as_dict().items()} == KEYS
    assert grade.acc == int(grade.reason == "ok")


PIECES = (
    r"\frac|\sqrt|{|}|(|)|[|]|\{|\}|^|_|,|;|=|<|\pm |\cup |\text{| and |\boxed{|$|%|\%|1|23|.5|x|\pi |-|+|*|/"
    r"|!|&|\\|\left|\right| |\begin{pmatrix}|\end{pmatrix}|⟦|⟧|\overline{|10^{9}|√|\in |\le |y=|cm|^\circ"
)
LATEX = st.lists(st.sampled_from(PIECES.split("|")), max_size=25).map("".join)


@given(gold=LATEX, answer=LATEX)
@settings(max_examples=250, deadline=None)
def test_any_pieces_of_latex_have_a_normal_form_and_equal_themselves(gold, answer):
    normal_form(answer)
    equal(gold, answer, never)
    if gold.strip():
        assert equal(gold, gold, never)
        assert equal(gold, f" {gold} ", never)


@given(before=PROSE, after=PROSE, case=st.sampled_from([case for case in PAIRS if case[2] != ""]))
@settings(max_examples=120, deadline=None)
def test_prose_around_the_box_changes_nothing(before, after, case):
    _, gold, answer, _ = case
    bare = math_answer.grade(f"\\boxed{{{answer}}}", gold, never)
    assert math_answer.grade(f"{before} $\\boxed{{{answer}}}$ {after}", gold, never) == bare


@given(st.integers(-(10**6), 10**6), st.integers(1, 10**4), st.integers(2, 9))
@settings(max_examples=120, deadline=None)
def test_every_spelling_of_a_fraction_is_equal_and_its_neighbour_is_not(top, bottom, factor):
    spellings = [
        f"{top}/{bottom}",
        f"\\frac{{{top}}}{{{bottom}}}",
        f"\\dfrac{{{factor * top}}}{{{factor * bottom}}}",
    ]
    for spelling in spellings:
        assert equal(f"\\frac{{{top}}}{{{bottom}}}", f"x = {spelling}", never)
        assert not equal(f"\\frac{{{top + 1}}}{{{bottom}}}", spelling, never)


@pytest.mark.parametrize(
    "piece",
    [
        r"\boxed{",
        "{",
        "}",
        "answer is ",
        "Answer:",
        r"\boxed{1}",
        "(",
        r"\frac",
        " ",
        "1,",
        "####",
        "</think>",
        "\n",
        "a",
    ],
)
def test_a_megabyte_of_garbage_is_graded_and_not_failed(piece):
    """Any step that is quadratic in the text takes minutes here; `bench_grading` measures the time."""
    text = piece * (1_000_000 // len(piece))
    assert math_answer.grade(text, "12", never).reason in ("no_answer", "wrong", "truncated", "unparsed")
