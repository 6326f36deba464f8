"""Countdown: reach a target with `+ - * /` and brackets, using each given number exactly once.

An own tokenizer and precedence parser on exact fractions. Model text is never handed to an
evaluator, there is no exponent, and length, depth and literal size are capped, so that grading is
linear in the text and cannot be made to explode.
"""

from __future__ import annotations

import json
import re
from collections import Counter, deque
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from .base import Grade
from .text import after_thinking, last_boxed, tail

MAX_LENGTH = 512
"""Longest expression that is read, in characters."""

MAX_DEPTH = 32
"""Deepest nesting of brackets that is read."""

MAX_DIGITS = 12
"""Longest integer literal that is read, in digits."""

MAX_REGION = 20_000
"""Characters in which an untagged expression is looked for, counted from the end of the text."""

MAX_EXPRESSIONS = 64
"""Untagged expressions that are looked at, counted from the end of the text."""

_UNICODE = str.maketrans(
    dict.fromkeys("−–‐‑‒﹣－➖", "-")
    | dict.fromkeys("×✕✖∗⋅·∙•＊⨯", "*")
    | dict.fromkeys("÷∕⁄／➗", "/")
    | dict.fromkeys("＋➕﹢", "+")
    | {"（": "(", "）": ")", "＝": "=", "\u00a0": " ", "\u202f": " ", "\u2009": " "}
)
_LATEX = re.compile(r"\\(times|cdot|div|left|right)(?![A-Za-z])|\\[,;! ]")
_LATEX_FORMS = {"times": "*", "cdot": "*", "div": "/", "left": "", "right": ""}
# A stretch of expression characters. A dot, comma or caret that touches what follows belongs to it, so that
# `1.5+3` is read as one malformed stretch and never as `5+3`.
_STRETCH = re.compile(r"(?:[0-9()+\-*/= \t]|[.,^](?=[0-9(]))+")
_OPERATION = re.compile(r"[0-9)][ \t]*[-+*/]")
_LIST_MARK = re.compile(r"^(?:[-+]|[0-9]{1,2}\))[ \t]+")
_DIGITS = re.compile(r"[0-9]+")
_TOKEN = re.compile(r"[ \t]*(?:([0-9]+)|([-+*/()]))")
_POISON = re.compile(r"[\w\\!%^²³¹√]")


class ExpressionError(ValueError):
    """The text is not an expression of this grammar."""


class _Parser:
    """Recursive descent over `sum := ["-"|"+"] product (("+"|"-") product)*` on exact fractions.

    A division by zero makes the value `None`, which every operation hands on.
    """

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise ExpressionError(f"longer than {MAX_LENGTH} characters")
        self.tokens: list[str] = []
        text, position = text.rstrip(), 0
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None:
                raise ExpressionError(f"unexpected {text[position : position + 10]!r}")
            self.tokens.append(match.group(1) or match.group(2))
            position = match.end()
        self.position = 0

    def parse(self) -> Fraction | None:
        value = self.sum(0)
        if self.peek():
            raise ExpressionError(f"unexpected {self.peek()!r}")
        return value

    def peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.position += 1
        return token

    def sum(self, depth: int) -> Fraction | None:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
        sign = self.take() if self.peek() in ("-", "+") else "+"
        value = apply("-", Fraction(0), self.product(depth)) if sign == "-" else self.product(depth)
        while self.peek() in ("+", "-"):
            value = apply(self.take(), value, self.product(depth))
        return value

    def product(self, depth: int) -> Fraction | None:
        value = self.atom(depth)
        while self.peek() in ("*", "/"):
            value = apply(self.take(), value, self.atom(depth))
        return value

    def atom(self, depth: int) -> Fraction | None:
        token = self.take()
        if token == "(":
            value = self.sum(depth + 1)
            if self.take() != ")":
                raise ExpressionError("unclosed bracket")
            return value
        if not token.isdigit() or len(token) > MAX_DIGITS:
            raise ExpressionError(f"expected a number of at most {MAX_DIGITS} digits, found {token[:20]!r}")
        return Fraction(int(token))


def apply(operator: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    """Returns `left operator right`, exactly; `None` if that divides by zero or an operand is `None`."""
    if left is None or right is None or (operator == "/" and not right):
        return None
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    return left * right if operator == "*" else left / right


def evaluate(text: str) -> Fraction | None:
    """Returns the exact value of an expression, `None` if it divides by zero.

    Raises:
      ExpressionError: If the text is not of the grammar, or exceeds a cap.
    """
    return _Parser(plain(text)).parse()


def plain(text: str) -> str:
    """Returns the text with unicode and LaTeX operators replaced by their ASCII forms."""
    text = text.translate(_UNICODE)
    if "\\" not in text:
        return text
    return _LATEX.sub(lambda match: _LATEX_FORMS.get(match.group(1), " "), text)


def read_gold(gold: Any) -> tuple[int, tuple[int, ...]]:
    """Returns target and numbers of a Countdown gold answer.

    Args:
      gold: A mapping, or its JSON text, with `target` and `numbers` (or `nums`), a sequence or array of
        integers.

    Raises:
      ValueError: If it is anything else.
    """
    if isinstance(gold, str):
        try:
            gold = json.loads(gold)
        except json.JSONDecodeError:
            gold = None
    keys = sorted(gold) if hasattr(gold, "keys") else None
    numbers = None
    if keys is not None:
        numbers = gold["numbers"] if gold.get("numbers") is not None else gold.get("nums")
    if numbers is None or gold.get("target") is None or not isinstance(numbers, Iterable):
        shown = f"a mapping with keys {keys}" if keys is not None else repr(gold)[:80]
        raise ValueError(f"Countdown gold must be {{'target': int, 'numbers': [int, ...]}}, found {shown}")
    values = [_integer(value) for value in (gold["target"], *numbers)]
    if len(values) < 2:
        raise ValueError("Countdown gold has an empty list of numbers")
    return values[0], tuple(values[1:])


def _integer(value: Any) -> int:
    """Returns an exact integer from an int, an integral float or an array scalar; refuses everything else."""
    try:
        number = int(value)
        if number == value and not isinstance(value, (bool, str)):
            return number
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError(f"Countdown gold must hold integers, found {value!r}")


def grade(text: str, gold: Any) -> Grade:
    """Returns the grade of a response to a Countdown problem. Never raises.

    The answer is looked for after the last `</think>`: in the last `<answer>` tag, else in the last
    `\\boxed{}`, else in the untagged text. An expression may be followed or preceded by `= target`. Untagged
    working is allowed: only expressions that use every given number count, and if they disagree the grade is
    `ambiguous`.

    Args:
      text: The response alone, or with its prompt before a `</think>` or an `<answer>` tag.
      gold: See `read_gold`; an unusable gold gives the reason `error`.
    """
    try:
        target, numbers = read_gold(gold)
        region, if_none = _region(tail(str(text)))
        return _grade_region(plain(region), target, Counter(numbers), if_none)
    except Exception as error:  # the contract with the trainer: a grade, whatever the text holds
        return Grade.of("error", f"{type(error).__name__}: {error}")


def _region(text: str) -> tuple[str, str]:
    """Returns the part of the text that holds the answer, and the reason to give if there is none in it."""
    text = after_thinking(text)
    start = text.rfind("<answer>")
    if start >= 0:
        end = text.find("</answer>", start)
        region = text[start + len("<answer>") : end if end >= 0 else None]
        return region, "unparsed" if end >= 0 else "truncated"
    boxed, is_cut = last_boxed(text)
    return (boxed, "unparsed") if boxed is not None else (text, "truncated" if is_cut else "no_answer")


def _grade_region(region: str, target: int, numbers: Counter[int], if_none: str) -> Grade:
    verdicts: dict[str, str] = {}
    pred = malformed = ""
    for stretch in _stretches(region):
        sides = [side.strip() for side in stretch.split("=")]
        pred = sides[0]
        is_claim_right = all(side == str(target) for side in sides if side.isdigit())
        for side in sides:
            if Counter(int(digits) for digits in _DIGITS.findall(side)) != numbers:
                continue
            try:
                is_right = _Parser(side).parse() == target and is_claim_right
                verdicts[side.replace(" ", "")] = "ok" if is_right else "wrong"
            except ExpressionError:
                malformed = side
    if len(set(verdicts.values())) > 1:
        return Grade.of("ambiguous", "; ".join(verdicts))
    if verdicts:
        return Grade.of(*reversed(list(verdicts.items())[-1]))
    if if_none == "truncated":
        return Grade.of(if_none, pred)
    if malformed:
        return Grade.of("unparsed", malformed)
    if pred:
        return Grade.of("wrong_numbers", pred)
    return Grade.of(if_none)


def _stretches(region: str) -> Iterable[str]:
    """Returns the last `MAX_EXPRESSIONS` stretches of a text that can be an expression or an equation."""
    found: deque[str] = deque(maxlen=MAX_EXPRESSIONS)
    cut = max(0, len(region) - MAX_REGION)
    for match in _STRETCH.finditer(region, cut):
        stretch = match.group()
        if match.start() == cut > 0:  # its head is cut off
            continue
        if len(stretch) < 3 or len(stretch) > 2 * MAX_LENGTH or not _OPERATION.search(stretch):
            continue
        start, end = match.span()
        touches_before = stretch[0] not in " \t" and start > 0 and _POISON.match(region, start - 1)
        touches_after = stretch[-1] not in " \t" and _POISON.match(region, end)
        if touches_before or touches_after:
            continue
        found.append(_LIST_MARK.sub("", stretch.strip(" \t*=")))
    return found
