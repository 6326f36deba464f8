"""Countdown problems: a seeded generator, a solver, and the prompt text. Standard library only."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from verl_sara.rewards.countdown import apply

DATA_SOURCE = "countdown"

OPERATORS = "+-*/"

TEMPLATES = {
    "prose": (
        "Using the numbers {numbers}, write an arithmetic expression that equals {target}. "
        "Use every number exactly once, and only the operations {ops} and brackets. "
        "Think step by step, then give the expression inside <answer> and </answer>, "
        "for example <answer>(1 + 2) / 3</answer>."
    ),
    "tiny": "{bare} = {target}",
}
"""Prompt templates: `prose` for language models, `tiny` for a character-level model trained from scratch."""

_MAX_FRUITLESS = 20_000
_PRECEDENCE = {"+": 1, "-": 1, "*": 2, "/": 2}


@dataclass(frozen=True)
class CountdownProblem:
    """One solvable problem.

    Attributes:
      numbers: The given numbers, in the order shown.
      target: The value to reach, at least 1.
      solution: An expression that uses each number once and equals the target.
    """

    numbers: list[int]
    target: int
    solution: str

    @property
    def key(self) -> tuple[tuple[int, ...], int]:
        """Identity: the sorted numbers and the target."""
        return tuple(sorted(self.numbers)), self.target

    @property
    def ground_truth(self) -> dict[str, object]:
        """The gold answer as the grader takes it."""
        return {"target": self.target, "numbers": list(self.numbers)}


@dataclass(frozen=True)
class _Term:
    """A value, how it is written, and how tightly its outermost operator binds (3 for a number)."""

    value: Fraction
    text: str
    precedence: int = 3


def _number(value: int) -> _Term:
    return _Term(Fraction(value), str(value))


def _combine(left: _Term, right: _Term, operator: str) -> _Term | None:
    """Returns `left operator right` with only the brackets it needs; `None` for a division by zero."""
    value = apply(operator, left.value, right.value)
    if value is None:
        return None
    level = _PRECEDENCE[operator]
    left_text = f"({left.text})" if left.precedence < level else left.text
    needs_brackets = right.precedence < level or (right.precedence == level and operator in "-/")
    right_text = f"({right.text})" if needs_brackets else right.text
    return _Term(value, f"{left_text}{operator}{right_text}", level)


def random_expression(rng: random.Random, numbers: Sequence[int], ops: str = OPERATORS) -> str:
    """Returns a random expression that uses each number exactly once and does not divide by zero.

    Raises:
      ValueError: If the operators are not a subset of `+-*/`, or `/` alone meets a zero.
    """
    _check_ops(ops)
    if set(ops) == {"/"} and 0 in numbers:
        raise ValueError(f"the numbers {list(numbers)} hold a zero, so ops='/' alone cannot join them")
    return _random_term(rng, numbers, ops).text


def _random_term(rng: random.Random, numbers: Sequence[int], ops: str) -> _Term:
    terms = [_number(number) for number in numbers]
    rng.shuffle(terms)
    while len(terms) > 1:
        position = rng.randrange(len(terms) - 1)
        left, right = terms[position : position + 2]
        joined = None
        while joined is None:  # a division by zero is drawn again
            joined = _combine(left, right, rng.choice(ops))
        terms[position : position + 2] = [joined]
    return terms[0]


def solve(numbers: Sequence[int], target: int, ops: str = OPERATORS) -> str | None:
    """Returns an expression that uses each number once and equals the target, `None` if there is none."""
    return next(solutions(numbers, target, ops), None)


def solutions(numbers: Sequence[int], target: int, ops: str = OPERATORS) -> Iterator[str]:
    """Yields every solution, each distinct text once, by exhaustive search; meant for at most 6 numbers."""
    _check_ops(ops)
    seen: set[str] = set()
    dead: set[tuple[Fraction, ...]] = set()
    yield from _search([_number(number) for number in numbers], Fraction(target), ops, seen, dead)


def _search(
    terms: list[_Term], target: Fraction, ops: str, seen: set[str], dead: set[tuple[Fraction, ...]]
) -> Iterator[str]:
    if len(terms) == 1:
        if terms[0].value == target and terms[0].text not in seen:
            seen.add(terms[0].text)
            yield terms[0].text
        return
    state = tuple(sorted(term.value for term in terms))
    if state in dead:  # these values were searched in full before, without a solution
        return
    is_dead = True
    for i, left in enumerate(terms):
        for j, right in enumerate(terms):
            if i == j:
                continue
            rest = [term for position, term in enumerate(terms) if position not in (i, j)]
            for operator in ops:
                joined = _combine(left, right, operator)
                if joined is not None:
                    for text in _search([*rest, joined], target, ops, seen, dead):
                        is_dead = False
                        yield text
    if is_dead and not seen:
        dead.add(state)


def _check_ops(ops: str) -> None:
    unknown = sorted(set(ops) - set(OPERATORS))
    if unknown or not ops:
        raise ValueError(f"ops must be one or more of {OPERATORS!r}, found {ops!r}")


def generate(
    num_problems: int,
    *,
    sizes: Mapping[int, float] | Sequence[int] = (3, 4),
    max_number: int = 99,
    seed: int = 0,
    ops: str = OPERATORS,
    max_target: int = 100,
    exclude: Sequence[CountdownProblem] = (),
) -> list[CountdownProblem]:
    """Returns distinct solvable problems; the same arguments give the same list.

    Numbers are uniform in 1..`max_number`, and the target is the value of a random expression over them, so
    that every problem is solvable. No two problems, nor one of `exclude`, share sorted numbers and target.

    Args:
      num_problems: Length of the list.
      sizes: How many numbers a problem has, at least 2: equally likely choices, or weights by size.
      max_number: Largest given number.
      seed: Seed of the generator.
      ops: Operators a solution may use, a subset of `+-*/`.
      max_target: Largest target; the smallest is 1.
      exclude: Problems that may not appear.

    Raises:
      ValueError: If an argument is out of range, or the settings allow too few distinct problems.
    """
    _check_ops(ops)
    weights = dict(sizes) if isinstance(sizes, Mapping) else dict.fromkeys(sizes, 1.0)
    if not weights or min(weights) < 2 or min(weights.values()) < 0 or sum(weights.values()) <= 0:
        raise ValueError(f"sizes must be whole numbers >= 2 with weights >= 0, found {sizes}")
    if max_number < 1 or max_target < 1:
        raise ValueError(f"max_number and max_target must be >= 1, found {max_number} and {max_target}")
    rng = random.Random(seed)
    seen = {problem.key for problem in exclude}
    problems: list[CountdownProblem] = []
    num_fruitless = 0
    while len(problems) < num_problems:
        num_fruitless += 1
        if num_fruitless > _MAX_FRUITLESS:
            raise ValueError(
                f"found only {len(problems)} distinct problems of the {num_problems} asked for with "
                f"sizes={weights}, max_number={max_number}, ops={ops!r}, max_target={max_target}; widen one"
            )
        size = rng.choices(list(weights), list(weights.values()))[0]
        numbers = [rng.randint(1, max_number) for _ in range(size)]
        term = _random_term(rng, numbers, ops)
        if term.value.denominator != 1 or not 1 <= term.value <= max_target:
            continue
        problem = CountdownProblem(numbers, int(term.value), term.text)
        if problem.key not in seen:
            seen.add(problem.key)
            problems.append(problem)
            num_fruitless = 0
    return problems


def generate_splits(
    num_train: int = 2000, num_test: int = 512, **settings: object
) -> tuple[list[CountdownProblem], list[CountdownProblem]]:
    """Returns disjoint train and test problems, by default in the published sizes; see `generate`."""
    problems = generate(num_train + num_test, **settings)  # type: ignore[arg-type]
    return problems[:num_train], problems[num_train:]


def prompt_text(numbers: Sequence[int], target: int, *, template: str = "prose", ops: str = OPERATORS) -> str:
    """Returns the prompt of a problem, without chat markup.

    Raises:
      ValueError: If the template is not one of `TEMPLATES`.
    """
    if template not in TEMPLATES:
        raise ValueError(f"unknown template {template!r}; allowed: {', '.join(TEMPLATES)}")
    return TEMPLATES[template].format(
        numbers=list(numbers), bare=" ".join(map(str, numbers)), target=target, ops=", ".join(ops)
    )
