"""Units, percent and degree signs after an answer: split off, and compared if both sides are known."""

from __future__ import annotations

import re

_NAMES = {
    "mm": "mm millimeter millimetre",
    "cm": "cm centimeter centimetre",
    "m": "m meter metre",
    "km": "km kilometer kilometre",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "g": "g gram gm",
    "kg": "kg kilogram",
    "lb": "lb lbs pound",
    "oz": "oz ounce",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week",
    "year": "year yr",
    "dollar": "dollar usd",
    "cent": "cent",
    "mph": "mph",
    "degree": "degree deg",
    "radian": "radian rad",
}
_BASE = {name: base for base, names in _NAMES.items() for name in names.split()}
_SQUARE = re.compile(r"^(?:square|sq|cubic|cu)\.?\s+|\s+(?:squared|cubed)$")
_ANGLE = re.compile(r"\\(?:sin|cos|tan|cot|sec|csc)")
_DEGREE = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?$")
_BRACKETED = re.compile(r"\s*[/*^]?\s*\{?⟦([^⟦⟧]*)⟧\}?\s*(?:\^\s*\{?-?\d\}?)?$")
_EXPONENT = re.compile(r"\s*\^\s*\{?-?\d\}?$")
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ./"
_NOT_UNITS = frozenset(["sin", "cos", "tan", "log", "ln", "exp", "mod", "and", "or", "sqrt", "to"])
_VALUE_ENDS = "0123456789}])%"
_CURRENCY = "£€¥"


def base_unit(words: str) -> str:
    """Returns the canonical name of a unit, in singular and without `square`; empty if it is unknown."""
    words = _SQUARE.sub("", words.strip(" .").casefold())
    return _BASE.get(words) or (_BASE.get(words[:-1], "") if words.endswith("s") else "")


def split_unit(text: str) -> tuple[str, str, bool]:
    r"""Returns an answer without its unit, the canonical name if the unit is known, and whether `%` followed.

    Bracketed text (`⟦cm⟧^{2}`) after something is always a unit. Plain words are one if they are known, or
    follow a space and have 3 letters or more, so that `3xy` stays a product.
    """
    text = text.strip(" " + _CURRENCY)
    unit, is_percent = "", False
    for _ in range(6):
        if text.endswith("%"):
            text, is_percent = text[:-1].rstrip(), True
            continue
        match = _BRACKETED.search(text) if "⟧" in text else None
        if match is None and "circ" in text and not _ANGLE.search(text):
            match = _DEGREE.search(text)
        if match is not None and match.start() > 0:
            words = match.group(1) if match.re is _BRACKETED else "degree"
            is_percent = is_percent or words.strip() in ("percent", "%")
            unit = base_unit(words) or unit
            text = text[: match.start()].rstrip()
            continue
        rest, words = _plain_unit(text)
        if not words:
            break
        is_percent = is_percent or words == "percent"
        unit, text = base_unit(words) or unit, rest
    return text, unit, is_percent


def _plain_unit(text: str) -> tuple[str, str]:
    """Returns text and trailing words that can only be a unit; the words are empty if there are none."""
    if "^" not in text and text[-1:] in _VALUE_ENDS:
        return text, ""
    bare = _EXPONENT.sub("", text)
    if bare != text and not bare[-1:].isalpha():
        return text, ""
    front, _, last = bare.rpartition(" ")
    if len(last) > 1 and base_unit(last) and front.strip():
        return front, last
    rest = bare.rstrip(_LETTERS)
    words = bare[len(rest) :]
    if not words.strip(" ./") or not rest or rest[-1] not in _VALUE_ENDS:
        return text, ""
    names = words.replace("/", " ").split()
    if any(name in _NOT_UNITS for name in names):
        return text, ""
    is_number = rest.strip().replace(".", "").replace(",", "").isdigit()
    is_known = bool(base_unit(words)) and (len(words.strip()) > 1 or (words[0] == " " and is_number))
    is_apart = words[0] == " " and all(len(name.strip(".")) > 2 or base_unit(name) for name in names)
    is_word = is_apart and any(len(name) > 2 for name in names)
    if not (is_known or is_word) or (bare != text and not is_known):
        return text, ""
    return rest.rstrip(), words.strip()
