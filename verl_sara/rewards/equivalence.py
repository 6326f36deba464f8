r"""When two mathematical answers are the same: a structure for each, compared element by element.

An answer is read as a number, a number in a base, a word, an expression, or a group (tuple, interval, set,
list, union, matrix) of answers. Numbers are exact fractions, so `0.5` is `\frac12` and `0.333` is not
`\frac13`. What two unequal expressions mean is asked of a function that the caller hands in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from .latex import canonical, closing, split_top
from .units import split_unit

MAX_ANSWER = 1000
"""Longest answer that is read as mathematics, in characters; a longer one equals only its own copy."""

Undecided = Callable[[str, str], bool]
"""Decides whether two unequal expressions (gold, answer), in canonical LaTeX, mean the same."""


class Leaf(NamedTuple):
    """An answer without parts.

    Attributes:
      kind: `number`, `based`, `text` or `expr`.
      text: Canonical spelling without white space.
      value: The exact value of a number, else `None`.
      is_percent: Whether a percent sign followed.
      unit: Canonical name of the unit that followed, empty if none or unknown.
    """

    kind: str
    text: str
    value: Fraction | None = None
    is_percent: bool = False
    unit: str = ""


class Group(NamedTuple):
    """An answer with parts; `kind` is one of `() [] (] [) set list union`, or `matrix` with its columns."""

    kind: str
    items: tuple[Leaf | Group, ...]
    text: str


Answer = Leaf | Group

_UNORDERED = frozenset({"set", "list", "union"})
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?|[-+]?\d{1,3}(?: \d{3})+(?:\.\d+)?")
_INTEGER = re.compile(r"[-+]?\d{1,400}")
_NUM = r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)"
_DECIMAL = re.compile(_NUM)
_FRACTION = re.compile(rf"([-+]?)(?:\\frac\{{({_NUM})\}}\{{({_NUM})\}}|\(?({_NUM})\)?/\(?({_NUM})\)?)")
_MIXED = re.compile(r"([-+]?)(\d+)(?: ?\\frac\{(\d+)\}\{(\d+)\}| (\d+)/(\d+))")
_SCIENTIFIC = re.compile(rf"({_NUM})(?:\*10\^\{{([-+]?\d{{1,3}})\}}|[eE]([-+]?\d{{1,3}}))")
_REPEATING = re.compile(r"([-+]?)(\d*)\.(\d*)\\overline\{(\d+)\}")
_MAX_NUMBER = 200
_BASED = re.compile(r"((?=[A-Za-z]*\d)[0-9A-Za-z]{1,400})_\{(\d{1,2})\}")
_LEFT_SIDE = re.compile(r"(?:[A-Za-z\\ ⟦⟧'.]|_\{[^{}]*\}|\^\{-1\}|\([A-Za-z0-9, ]*\)){1,60}")
_IMPLICIT_PRODUCT = re.compile(r"(\\[A-Za-z]+)\*(?=[A-Za-z])|\*(?!\d)|(?<!\d)\*")
_SPACES = re.compile(r"(\\[A-Za-z]+) +(?=[A-Za-z])| +")
_APART = re.compile(r"(?<=\d) +(?=[\d.])")
_COMMANDS = re.compile(r"\\[A-Za-z]+")
_MATRIX = re.compile(r"\\begin ?\{([bpvBV]?matrix|array)\}(?:\{[lcr|]*\})?(.*)\\end ?\{\1\}", re.DOTALL)
_FUNCTIONS = "(?:arc)?(?:sin|cos|tan|cot|sec|csc)|log|exp|max|min|gcd|lcm|mod|deg|cis"
_WORD = re.compile(rf"(?<![\\A-Za-z])(?!(?:{_FUNCTIONS})(?![A-Za-z]))[A-Za-z]{{3,}}")
_RELATION = re.compile(r"[<>]|\\(?:le|ge|ne|in)(?![A-Za-z])")
_VARIABLE = re.compile(r"(?<![\\A-Za-z])[A-DF-HJ-Za-df-hj-z](?![A-Za-z])")


def equal(gold: str, answer: str, undecided: Undecided) -> bool:
    """Returns whether an answer equals the gold answer. Whatever `undecided` raises passes through."""
    gold, answer = gold.strip(), answer.strip()
    if gold == answer or _compact(gold) == _compact(answer):
        return True
    if len(gold) > MAX_ANSWER or len(answer) > MAX_ANSWER:
        return False
    first, second = parse(gold), parse(answer)
    if _same(first, second, undecided):
        return True
    if isinstance(first, Leaf) and isinstance(second, Leaf) and "=" in gold and "=" in answer:
        if ("=" in first.text) != ("=" in second.text):  # `2x+y=5` against `y=5-2x`
            return undecided(_compact(canonical(gold)), _compact(canonical(answer)))
    elif isinstance(first, Group) != isinstance(second, Group) and "," in gold and "," in answer:
        return _same(parse(gold, False), parse(answer, False), undecided)  # `1,234` may be a list after all
    return False


def _compact(text: str) -> str:
    r"""Returns the text without white space, except in `\le x`, and with a mark in `2 3`, which is not 23."""
    if " " not in text:
        return text
    text = _APART.sub("␣", text)
    return _SPACES.sub(_kept_space, text) if "\\" in text else text.replace(" ", "")


def _kept_space(match: re.Match[str]) -> str:
    return f"{match.group(1)} " if match.group(1) else ""


def normal_form(text: str) -> str:
    """Returns one spelling for all answers that are equal without asking `undecided`, as far as possible."""
    return _show(parse(text)) if len(text) <= MAX_ANSWER else text


def _show(answer: Answer) -> str:
    if isinstance(answer, Leaf):
        return str(answer.value) if answer.value is not None else answer.text
    items = [_show(item) for item in answer.items]
    if answer.kind in _UNORDERED:
        items.sort()
    if "matrix" in answer.kind:
        return f"{answer.kind}({','.join(items)})"
    left, right = {"set": "{}", "list": "  ", "union": "  "}.get(answer.kind, answer.kind)
    return f"{left}{(' U ' if answer.kind == 'union' else ',').join(items)}{right}".strip()


@lru_cache(maxsize=4096)
def parse(text: str, has_thousands: bool = True) -> Answer:
    """Returns the structure of an answer; any text has one.

    Args:
      text: The answer, LaTeX or plain.
      has_thousands: Whether `1,234` is one number; else it is a list of two.
    """
    text = text.strip(" $")
    if _INTEGER.fullmatch(text):
        return Leaf("number", text, Fraction(int(text)))
    return _parse(canonical(text), has_thousands, 0)


def _parse(text: str, has_thousands: bool, depth: int) -> Answer:
    text = _without_left_side(text.strip())
    if text == r"\{ \}" or text == r"\{\}":
        return Leaf("expr", r"\emptyset")
    while text.startswith("{") and closing(text, 0) == len(text) - 1:
        text = text[1:-1].strip()
    if depth > 8 or not text:
        return Leaf("expr", text.replace(" ", ""))
    if has_thousands and _THOUSANDS.fullmatch(text):
        return _leaf(text.replace(",", "").replace(" ", ""))
    matrix = _MATRIX.fullmatch(text) if "\\begin" in text else None
    if matrix is not None:
        return _matrix(matrix, text, depth)
    for kind, separator in (("union", "\\cup "), ("list", ","), ("list", ";")):
        if separator in text and len(parts := split_top(text, separator)) > 1:
            return _group(kind, parts, text, depth)
    bracketed = _bracketed(text)
    if bracketed is not None:
        kind, inner = bracketed
        parts = split_top(inner, "," if "," in inner else ";")
        if len(parts) > 1 or kind == "set":
            return _group(kind, [part for part in parts if part.strip() or len(parts) > 1], text, depth)
        if kind in ("()", "[]"):
            return _parse(inner, has_thousands, depth + 1)
    if text.count("\\pm ") == 1:
        return _group("list", [text.replace("\\pm ", sign).removeprefix("+") for sign in "+-"], text, depth)
    return _leaf(text)


def _group(kind: str, parts: list[str], text: str, depth: int) -> Group:
    labels = [part.partition("=")[0].strip() for part in parts if "=" in part]
    if kind == "list" and len(labels) == len(parts) == len(set(labels)):
        kind, parts = "()", sorted(map(str.strip, parts))  # `y=3, x=2` is the point (2, 3)
    items: list[Answer] = []
    for part in parts:
        item = _parse(part, False, depth + 1)
        is_flat = kind in ("list", "set") and isinstance(item, Group) and item.kind == "list"
        items.extend(item.items if is_flat and isinstance(item, Group) else [item])
    if kind == "set":
        items = list(dict.fromkeys(items))
    return Group(kind, tuple(items), text)


def _bracketed(text: str) -> tuple[str, str] | None:
    r"""Returns kind and content of a text that is one bracket pair, `\{` included; `None` if it is not."""
    if text.startswith("\\{") and text.endswith("\\}"):
        return "set", text[2:-2]
    if text[0] in "([" and text[-1] in ")]" and closing(text, 0) == len(text) - 1:
        return text[0] + text[-1], text[1:-1]
    return None


def _matrix(match: re.Match[str], text: str, depth: int) -> Group:
    name, body = match.groups()
    rows = [row.split("&") for row in re.split(r"\\\\", body) if row.strip()]
    items = tuple(_parse(cell, True, depth + 1) for row in rows for cell in row)
    return Group(
        f"{'v' if name in ('vmatrix', 'Vmatrix') else ''}matrix{len(rows[0]) if rows else 0}", items, text
    )


def _without_left_side(text: str) -> str:
    """Returns the text without a left side: `x=`, `f(x)=`, words, a sign of membership, a calculation."""
    for sign in ("\\approx ", "\\in ") if "\\" in text else ():
        left, found, right = text.partition(sign)
        if found and (not left.strip() or _LEFT_SIDE.fullmatch(left)):
            text = right.strip()
    left, _, right = text.partition("=")
    if not right.strip() or ("," in right and "=" in right):  # a list `x=1, y=2` is cut at its commas first
        return text
    left = left.strip()
    is_calculation = "," not in left and not any(char.isalpha() for char in _COMMANDS.sub("", left))
    if left and not is_calculation and not _LEFT_SIDE.fullmatch(left):
        return text
    return right.rpartition("=")[2].strip()  # a chain `x=3+4=7` ends in the answer


def _leaf(text: str) -> Leaf:
    if text.startswith("⟦") and text.find("⟧") == len(text) - 1:
        return Leaf("text", _word_form(text))
    text, unit, is_percent = split_unit(text)
    compact = _compact(text)
    while compact.startswith("(") and closing(compact, 0) == len(compact) - 1:
        compact = text = compact[1:-1]
    value = _number(text.strip(), compact)
    if value is not None:
        return Leaf("number", compact, value, is_percent, unit)
    based = _BASED.fullmatch(compact)
    if based is not None:
        return Leaf("based", f"{based.group(1).lstrip('0') or '0'}_{{{based.group(2)}}}")
    if "⟦" in compact or "␣" in compact or _WORD.search(text):
        return Leaf("text", _word_form(compact))
    return Leaf("expr", _IMPLICIT_PRODUCT.sub(_kept_space, compact), unit=unit)


def _word_form(text: str) -> str:
    return "".join(char for char in text.casefold() if char.isalnum() or char in "+-=/<>^␣") or text


def _number(text: str, compact: str) -> Fraction | None:
    """Returns the exact value of an integer, decimal, fraction, mixed, scientific or repeating number."""
    if len(compact) > _MAX_NUMBER or not compact:
        return None
    if _DECIMAL.fullmatch(compact):
        return _fraction(compact)
    has_quotient = "\\frac" in text or "/" in text
    if has_quotient and compact.lstrip("+-")[:1] != "\\" and (match := _MIXED.fullmatch(text)):
        sign, whole, top, bottom, plain_top, plain_bottom = match.groups()
        part = _quotient(top or plain_top, bottom or plain_bottom)
        if part is not None and part < 1:
            return (-1 if sign == "-" else 1) * (int(whole) + part)
        return None
    if has_quotient and (match := _FRACTION.fullmatch(compact)):
        sign, top, bottom, plain_top, plain_bottom = match.groups()
        value = _quotient(top or plain_top, bottom or plain_bottom)
        return -value if value is not None and sign == "-" else value
    if "\\overline" not in compact:
        match = _SCIENTIFIC.fullmatch(compact) if "10^" in compact or "e" in compact.lower() else None
        return match and _fraction(match.group(1)) * Fraction(10) ** int(match.group(2) or match.group(3))
    if match := _REPEATING.fullmatch(compact):
        sign, whole, head, period = match.groups()
        tail = Fraction(int(period), 10 ** len(head) * (10 ** len(period) - 1))
        value = Fraction(int(whole or "0")) + Fraction(int(head or "0"), 10 ** len(head)) + tail
        return -value if sign == "-" else value
    return None


def _quotient(top: str, bottom: str) -> Fraction | None:
    if "." in top or "." in bottom:
        divisor = _fraction(bottom)
        return _fraction(top) / divisor if divisor else None
    return Fraction(int(top), int(bottom)) if int(bottom) else None


def _fraction(digits: str) -> Fraction:
    return Fraction(digits.rstrip(".")) if "." in digits else Fraction(int(digits))


def _same(gold: Answer, answer: Answer, undecided: Undecided) -> bool:
    if not gold.text or not answer.text:
        return False
    if gold.text == answer.text and getattr(gold, "unit", "") == getattr(answer, "unit", ""):
        return True
    if isinstance(gold, Group) or isinstance(answer, Group):
        return _same_group(gold, answer, undecided)
    if gold.unit and answer.unit and gold.unit != answer.unit:
        return False
    if gold.value is not None and answer.value is not None:
        return _same_number(gold, answer)
    if "based" in (gold.kind, answer.kind):
        digits = {leaf.text.partition("_")[0] for leaf in (gold, answer)}
        return len(digits) == 1 and gold.kind != answer.kind
    if "text" in (gold.kind, answer.kind):
        return _word_form(gold.text) == _word_form(answer.text)
    return gold.text == answer.text or (_is_open(gold, answer) and undecided(gold.text, answer.text))


def _same_number(gold: Leaf, answer: Leaf) -> bool:
    """Numbers are equal as they stand; `50%` also equals 0.5, because the sign may be meant either way."""
    assert gold.value is not None and answer.value is not None
    if gold.value == answer.value:
        return True
    scaled = [leaf.value / 100 if leaf.is_percent else leaf.value for leaf in (gold, answer)]
    return gold.is_percent != answer.is_percent and scaled[0] == scaled[1]


def _is_open(gold: Leaf, answer: Leaf) -> bool:
    """Whether two unequal expressions could still mean the same, judged by the kind of statement."""
    for sign in (
        lambda text: "=" in text,
        lambda text: ":" in text,
        lambda text: bool(_RELATION.search(text)),
    ):
        if sign(gold.text) != sign(answer.text):
            return False
    if ":" in gold.text or not gold.text or not answer.text:
        return False
    for number, other in ((gold, answer), (answer, gold)):
        if number.value is not None and _VARIABLE.search(_COMMANDS.sub(" ", other.text)):
            return False
    return True


def _same_group(gold: Answer, answer: Answer, undecided: Undecided) -> bool:
    if isinstance(gold, Leaf) or isinstance(answer, Leaf):
        group, leaf = (gold, answer) if isinstance(gold, Group) else (answer, gold)
        assert isinstance(group, Group) and isinstance(leaf, Leaf)
        if group.kind in ("set", "list") and len(set(group.items)) == 1:
            single = group.items[0]
            return _same(single, leaf, undecided) if group is gold else _same(leaf, single, undecided)
        if _RELATION.search(leaf.text) and group.kind in ("()", "[]", "(]", "[)", "union"):
            return undecided(gold.text, answer.text)
        return False
    kinds = {gold.kind, answer.kind}
    if kinds <= _UNORDERED:
        return _same_unordered(gold.items, answer.items, undecided)
    if len(kinds) > 1 and kinds != {"()", "list"}:
        return False
    return len(gold.items) == len(answer.items) and all(
        _same(first, second, undecided) for first, second in zip(gold.items, answer.items, strict=True)
    )


def _same_unordered(gold: tuple[Answer, ...], answer: tuple[Answer, ...], undecided: Undecided) -> bool:
    if len(gold) != len(answer):
        return False
    left, right = list(gold), list(answer)
    for decide in (lambda _first, _second: False, undecided):
        for item in list(left):
            match = next((other for other in right if _same(item, other, decide)), None)
            if match is not None:
                left.remove(item)
                right.remove(match)
    return not left
