"""The Countdown generator, its solver, and the prompt text."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_sara.data.countdown import (
    TEMPLATES,
    generate,
    generate_splits,
    prompt_text,
    random_expression,
    solutions,
    solve,
)
from verl_sara.rewards import countdown


def test_splits_are_disjoint_reproducible_and_solved_by_their_own_solution():
    train, test = generate_splits(200, 50, seed=3)
    assert (train, test) == generate_splits(200, 50, seed=3)
    assert train != generate_splits(200, 50, seed=4)[0]
    keys = [problem.key for problem in train + test]
    assert len(set(keys)) == 250
    for problem in train + test:
        assert countdown.grade(problem.solution, problem.ground_truth).acc == 1
        assert solve(problem.numbers, problem.target) is not None


def test_sizes_may_be_weighted():
    counts = Counter(len(problem.numbers) for problem in generate(400, sizes={3: 3, 4: 1}, seed=5))
    assert set(counts) == {3, 4}
    assert counts[3] > 2 * counts[4]


def test_the_tiny_task_keeps_to_its_limits():
    problems = generate(300, sizes=(2, 3, 4), max_number=9, ops="+-*", max_target=50, seed=0)
    for problem in problems:
        assert 2 <= len(problem.numbers) <= 4
        assert all(1 <= number <= 9 for number in problem.numbers)
        assert 1 <= problem.target <= 50
        assert set(problem.solution) <= set("0123456789+-*()")
        prompt = prompt_text(problem.numbers, problem.target, template="tiny")
        assert set(prompt) <= set("0123456789 =")
    assert prompt_text([3, 5, 7], 22, template="tiny") == "3 5 7 = 22"


def test_excluded_problems_do_not_appear():
    first = generate(100, sizes=(2,), max_number=9, seed=1)
    second = generate(20, sizes=(2,), max_number=9, seed=1, exclude=first)
    assert not {problem.key for problem in first} & {problem.key for problem in second}


@pytest.mark.parametrize(
    ("settings_", "match"),
    [
        ({"sizes": (1,)}, "sizes must be"),
        ({"sizes": ()}, "sizes must be"),
        ({"sizes": {3: -1}}, "sizes must be"),
        ({"ops": "+^"}, "ops must be"),
        ({"ops": ""}, "ops must be"),
        ({"max_number": 0}, "max_number and max_target"),
        ({"max_target": 0}, "max_number and max_target"),
        ({"sizes": (2,), "max_number": 2}, "found only .* of the 100 asked for"),
    ],
)
def test_impossible_settings_say_what_is_allowed(settings_, match):
    with pytest.raises(ValueError, match=match):
        generate(100, **settings_)


def test_the_solver_finds_every_solution_and_no_other():
    assert set(solutions([1, 2], 3)) == {"1+2", "2+1"}
    assert set(solutions([2, 2], 4)) == {"2+2", "2*2"}
    assert solve([3, 3, 8, 8], 24) == "8/(3-8/3)"
    assert solve([1, 1, 1], 97) is None
    assert solve([5, 5], 1, ops="+-*") is None
    assert solve([5, 5], 1, ops="/") == "5/5"


@given(st.lists(st.integers(1, 12), min_size=2, max_size=4), st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_every_solution_is_graded_right(numbers, target):
    gold = {"target": target, "numbers": numbers}
    for solution in itertools.islice(solutions(numbers, target), 10):
        assert countdown.grade(solution, gold).acc == 1, solution


@given(
    st.integers(0, 10**6),
    st.lists(st.integers(0, 9), min_size=1, max_size=6),
    st.sampled_from(["+", "+-*", "+-*/"]),
)
@settings(max_examples=100, deadline=None)
def test_a_random_expression_uses_each_number_once_with_few_brackets(seed, numbers, ops):
    text = random_expression(random.Random(seed), numbers, ops)
    value = countdown.evaluate(text)
    assert value is not None
    assert Counter(map(int, "".join(c if c.isdigit() else " " for c in text).split())) == Counter(numbers)
    if len(numbers) > 1:
        assert not (text.startswith("(") and text.endswith(")") and countdown_is_wrapped(text))
    if value.denominator == 1 and len(numbers) > 1:
        assert countdown.grade(text, {"target": int(value), "numbers": numbers}).acc == 1


def countdown_is_wrapped(text):
    """Whether the first bracket closes at the very end."""
    depth = 0
    for position, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return position == len(text) - 1
    return False


def test_a_zero_and_division_alone_is_refused():
    with pytest.raises(ValueError, match="hold a zero"):
        random_expression(random.Random(0), [0, 5], "/")


def test_the_prompt_asks_for_every_number_exactly_once_and_has_no_markup():
    text = prompt_text([3, 5, 7], 22, ops="+-*")
    assert "[3, 5, 7]" in text
    assert "equals 22" in text
    assert "every number exactly once" in text
    assert "+, -, *" in text
    assert "<|" not in text
    with pytest.raises(ValueError, match=", ".join(TEMPLATES)):
        prompt_text([3, 5], 8, template="poem")
