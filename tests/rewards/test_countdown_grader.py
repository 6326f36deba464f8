"""The Countdown grader: what counts as an answer, and what it is worth."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from verl_sara.data.countdown import generate
from verl_sara.rewards import REASONS, UnknownDataSource, compute_score, countdown, grader_for

GOLD = {"target": 22, "numbers": [3, 5, 7]}
PROBLEMS = generate(120, sizes=(2, 3, 4, 5), max_number=50, seed=11)
TINY = generate(120, sizes=(2, 3, 4), max_number=9, ops="+-*", max_target=99, seed=11)

# response, reason, against 3, 5, 7 -> 22
CASES = [
    # forms of a right answer
    ("3*5+7", "ok"),
    ("7+5*3", "ok"),
    ("(3*5)+7", "ok"),
    ("((3)*(5))+(7)", "ok"),
    ("7--3*5", "unparsed"),
    ("7-(-3*5)", "ok"),
    ("+3*5+7", "ok"),
    ("3 * 5 + 7", "ok"),
    ("3*5+7 = 22", "ok"),
    ("22 = 3*5+7", "ok"),
    ("3*5+7 =", "ok"),
    ("3*5+7.", "ok"),
    ("x = 3*5+7", "ok"),
    ("**3*5+7**", "ok"),
    ("$3*5+7$", "ok"),
    ("`3*5+7`", "ok"),
    ("3 × 5 + 7", "ok"),
    ("3·5+7", "ok"),
    ("（3＊5）＋7", "ok"),
    ("3∗5＋7＝22", "ok"),
    (r"3 \times 5 + 7", "ok"),
    (r"\left(3 \cdot 5\right) + 7", "ok"),
    (r"\boxed{3 \times 5 + 7 = 22}", "ok"),
    ("<answer>3*5+7</answer>", "ok"),
    ("<answer> 3*5 + 7 = 22 </answer>", "ok"),
    ("<answer>\n3*5+7\n</answer>", "ok"),
    ("<answer>The answer is 3*5+7</answer>", "ok"),
    ("<answer>3*5+7", "ok"),
    ("<answer>1</answer> no: <answer>3*5+7</answer>", "ok"),
    ("<think>3+5</think><answer>3*5+7</answer>", "ok"),
    ("3+5+7 = 15</think>3*5+7", "ok"),
    ("First 3*5 = 15, then 15+7 = 22. So 3*5+7 = 22.", "ok"),
    ("3*5+7 = 15+7 = 22", "ok"),
    ("- 3*5+7 = 22", "ok"),
    ("1) 3*5+7 = 22", "ok"),
    ("Either 3*5+7 or 7+3*5.", "ok"),
    ("00003*5+7", "ok"),
    # wrong value, wrong claim
    ("3+5+7", "wrong"),
    ("3*5-7", "wrong"),
    ("-3*5+7", "wrong"),
    ("(3+5)*7 = 22", "wrong"),
    ("3*5+7 = 23", "wrong"),
    ("21 = 3*5+7", "wrong"),
    ("7/(5-3)", "wrong"),
    # numbers
    ("3*5", "wrong_numbers"),
    ("3*5+7+0", "wrong_numbers"),
    ("3*5+7*1", "wrong_numbers"),
    ("22+3-3", "wrong_numbers"),
    ("35+7", "wrong_numbers"),
    ("3*5+7.0", "wrong_numbers"),
    ("(1.5+1.5)*5+7", "wrong_numbers"),
    ("<answer>22</answer>", "unparsed"),
    # not of the grammar
    ("3**5+7", "unparsed"),
    ("3^5+7", "unparsed"),
    ("3//5+7", "unparsed"),
    ("3*5+7)", "unparsed"),
    ("(3*5+7", "unparsed"),
    ("3*+5 7", "unparsed"),
    ("3 5*7", "unparsed"),
    ("3*5+7!", "no_answer"),
    ("sqrt(3)*5+7", "no_answer"),
    ("x3*5+7", "no_answer"),
    ("3*5+7y", "no_answer"),
    ("3*5+7%", "no_answer"),
    ("(" * 40 + "3*5+7" + ")" * 40, "unparsed"),
    ("3*5+7" + " " * 600 + "*1", "wrong_numbers"),
    # nothing, cut off, several
    ("", "no_answer"),
    ("I give up", "no_answer"),
    ("the numbers are 3, 5 and 7", "no_answer"),
    ("<answer></answer>", "unparsed"),
    ("<answer>none</answer>", "unparsed"),
    ("<answer>", "truncated"),
    ("<answer>3*5+", "truncated"),
    (r"\boxed{3*5+", "truncated"),
    ("3*5+7 or 3+5+7", "ambiguous"),
    ("3*5+7</think>", "no_answer"),
    ("3*5+7</think>3+5+7", "wrong"),
    # hostile
    ("__import__('os').abort()", "no_answer"),
    ("<answer>__import__('os').abort()</answer>", "unparsed"),
    ("9**9**9**9", "wrong_numbers"),
    ("\x00\ud800 3*5+7", "ok"),
]


@pytest.mark.parametrize(("response", "reason"), CASES)
def test_countdown_table(response, reason):
    grade = countdown.grade(response, GOLD)
    assert (grade.reason, grade.acc) == (reason, int(reason == "ok")), grade


@pytest.mark.parametrize(
    ("expression", "target", "numbers", "acc"),
    [
        ("6/4*2", 3, [2, 4, 6], 1),
        ("7/3*3", 7, [3, 3, 7], 1),
        ("7/3*3", 7, [3, 7, 7], 0),
        ("1/(1-5/6)", 6, [1, 1, 5, 6], 1),
        ("8/(3-8/3)", 24, [3, 3, 8, 8], 1),
        ("3/(5-5)", 1, [3, 5, 5], 0),
        ("3/(5-5)*0", 0, [0, 3, 5, 5], 0),
        ("10/4", 2, [10, 4], 0),
        ("2-5", -3, [2, 5], 1),
        ("3*5", 15, [3, 5, 5], 0),
        ("999999999999*2", 1999999999998, [999999999999, 2], 1),
    ],
)
def test_arithmetic_is_exact_and_numbers_are_a_multiset(expression, target, numbers, acc):
    assert countdown.grade(expression, {"target": target, "numbers": numbers}).acc == acc


@pytest.mark.parametrize(
    "gold",
    [
        {"target": 22, "numbers": [7, 5, 3]},
        {"target": 22, "nums": [3, 5, 7]},
        {"target": np.int64(22), "numbers": np.array([3, 5, 7])},
        {"target": 22.0, "numbers": np.array([3.0, 5.0, 7.0])},
        {"target": 22, "numbers": (3, 5, 7), "nums": None},
        '{"target": 22, "numbers": [3, 5, 7]}',
    ],
)
def test_gold_may_come_in_any_container(gold):
    assert compute_score(np.str_("countdown"), "3*5+7", gold)["acc"] == 1


@pytest.mark.parametrize(
    "gold",
    [None, "", "22", 22, [], {}, {"target": 22}, {"numbers": [3]}, {"target": None, "numbers": [3, 5]}]
    + [
        {"target": 22, "numbers": bad}
        for bad in ([], None, 3, "357", [3.5, 5], [None], [True, 5], [float("nan")])
    ],
)
def test_unusable_gold_is_an_error_and_not_a_wrong_answer(gold):
    grade = countdown.grade("3*5+7", gold)
    assert (grade.reason, grade.acc, grade.is_failure) == ("error", 0, True)


@pytest.mark.parametrize("name", ["gsm9k", "", "Countdown", None, np.str_("code")])
def test_unknown_data_source_names_the_allowed_ones(name):
    with pytest.raises(UnknownDataSource, match=r"allowed: .*countdown.*lighteval/MATH"):
        compute_score(name, "3*5+7", GOLD)
    with pytest.raises(ValueError, match="no grader"):
        grader_for(name)


def test_every_reason_has_the_same_keys_and_plain_types():
    seen = set()
    for response in [response for response, _ in CASES] + ["3*5+7"]:
        for gold in (GOLD, None):
            result = compute_score("countdown", response, gold)
            assert {key: type(value) for key, value in result.items()} == {
                "score": float,
                "acc": int,
                "reason": str,
                "pred": str,
            }
            seen.add(result["reason"])
    assert seen == set(REASONS) - {"timeout"}


@pytest.mark.parametrize("problem", PROBLEMS + TINY, ids=lambda problem: problem.solution)
def test_own_solution_is_right_and_every_perturbation_is_wrong(problem):
    gold, solution = problem.ground_truth, problem.solution
    for response in (
        solution,
        f"<answer>{solution} = {problem.target}</answer>",
        f"So {solution} = {problem.target}.",
    ):
        assert countdown.grade(response, gold).acc == 1
    for perturbed in perturbations(problem):
        assert countdown.grade(perturbed, gold).acc == 0, perturbed
        assert countdown.grade(f"<answer>{perturbed}</answer>", gold).acc == 0, perturbed


def perturbations(problem):
    """Yields expressions that differ from the solution in one place and are wrong by construction."""
    text, target = problem.solution, problem.target
    for match in re.finditer(r"\d+", text):
        start, end = match.span()
        for other in {int(match.group()) + 1, int(match.group()) * 10, 0} - {int(match.group())}:
            yield f"{text[:start]}{other}{text[end:]}"
    for match in re.finditer(r"[-+*/]", text):
        for operator in "+-*/":
            changed = f"{text[: match.start()]}{operator}{text[match.end() :]}"
            if countdown.evaluate(changed) != target:
                yield changed
        yield f"{text[: match.start()]}{text[match.end() :]}"
        yield (
            f"{text[: match.start()]}{match.group() * 2}{text[match.end() :]}"
            if match.group() in "*/"
            else f"{text}+"
        )
    yield f"{text}+0"
    yield f"{text}*1"
    yield f"{text} = {target + 1}"
    yield f"({text}"
    yield str(target)


@given(text=st.text(max_size=200))
@settings(max_examples=120, deadline=None)
def test_never_raises(text):
    assert countdown.grade(text, GOLD).reason in REASONS


@given(text=st.text(alphabet="357+-*/()= .,\n<answer></>\\boxed{}x", max_size=120))
@settings(max_examples=250, deadline=None)
def test_a_right_verdict_means_an_exact_expression_over_the_numbers(text):
    grade = countdown.grade(text, GOLD)
    if grade.acc:
        assert countdown.evaluate(grade.pred) == 22
        assert sorted(map(int, re.findall(r"\d+", grade.pred))) == [3, 5, 7]


WORDS = st.text(
    alphabet=st.characters(categories=("Ll", "Lu", "Zs", "Po"), exclude_characters="!%,.\\"), max_size=80
)


@given(before=WORDS, after=WORDS, response=st.sampled_from([response for response, _ in CASES]))
@settings(max_examples=120, deadline=None)
def test_prose_around_a_marked_answer_changes_nothing(before, after, response):
    assume("<answer>" not in response and "think" not in response and "boxed" not in response)
    marked = f"<answer>{response}</answer>"
    assert countdown.grade(f"{before} {marked} {after}", GOLD) == countdown.grade(marked, GOLD)


@given(before=WORDS, after=WORDS, response=st.sampled_from([r for r, _ in CASES if r and r == r.strip()]))
@settings(max_examples=120, deadline=None)
def test_prose_on_other_lines_changes_nothing_for_an_untagged_answer(before, after, response):
    assert countdown.grade(f"{before}\n{response}\n{after}", GOLD) == countdown.grade(response, GOLD)


EXPRESSIONS = st.recursive(
    st.integers(0, 99).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda parts: f"({''.join(parts)})"),
    max_leaves=8,
)


@given(EXPRESSIONS)
@settings(max_examples=120, deadline=None)
def test_the_parser_agrees_with_pythons_own_on_exact_fractions(expression):
    wrapped = re.sub(r"\d+", lambda match: f"Fraction({match.group()})", expression)
    try:
        expected = eval(wrapped, {"Fraction": Fraction})  # text of this test, not of a model
    except ZeroDivisionError:
        expected = None
    assert countdown.evaluate(expression) == expected


@pytest.mark.parametrize(
    "piece", ["1+1a", "-a", "(", "1+", "((1+1)) a", "3*5+7 a", "<answer>", r"\boxed{", "3 5 7 "]
)
def test_a_megabyte_of_garbage_is_graded(piece):
    """Any step that is quadratic in the text takes minutes here; `bench_grading` measures the time."""
    assert not countdown.grade(piece * (1_000_000 // len(piece)), GOLD).is_failure
