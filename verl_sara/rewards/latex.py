r"""LaTeX and plain text to one spelling: spacing, styles, fractions, roots, powers, operators. Strings only.

What an answer *is* (a number, a set, an interval) is decided in `equivalence`. Text wrappers survive as
`⟦...⟧`, so that units and words can still be told from variables there.
"""

from __future__ import annotations

import re

_UNICODE = str.maketrans(
    dict.fromkeys("−–‐‑﹣－", "-")
    | dict.fromkeys("×⋅·∙•∗＊", "*")
    | dict.fromkeys("÷∕⁄／", "/")
    | dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u3000\t\n\r", " ")
    | dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff", "")
    | {
        "（": "(",
        "）": ")",
        "［": "[",
        "］": "]",
        "｛": "{",
        "｝": "}",
        "，": ",",
        "＝": "=",
        "：": ":",
        "％": "%",
    }
    | {"π": r"\pi ", "∞": r"\infty ", "√": r"\√", "≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "≈": r"\approx "}
    | {
        "∪": r"\cup ",
        "∩": r"\cap ",
        "∈": r"\in ",
        "±": r"\pm ",
        "°": r"^{\circ}",
        "∅": r"\emptyset ",
        "θ": r"\theta ",
    }
    | {"²": "^{2}", "³": "^{3}", "½": r"\frac{1}{2}", "¼": r"\frac{1}{4}", "¾": r"\frac{3}{4}", "′": "'"}
    | {"＋": "+", "＜": "<", "＞": ">", "⟨": "(", "⟩": ")", "ℝ": r"\mathbb{R}", "→": r"\to "}
)
_TEXT = re.compile(
    r"\\(text(?:bf|it|rm|sf|tt|up|normal)?|mathrm|mbox|hbox|operatorname\*?|mathbf|mathit|mathsf|boldsymbol|bm|bold)"
    r"\s*\{([^{}]*)\}"
)
_LEAD = re.compile(r"^⟦[^⟦⟧]*\b(?:is|are|about|approximately|roughly)\W*⟧\s*(?=[^\s⟦])")
_NOTHING = (",\\!", r"\(", r"\)", r"\left.", r"\right.")
_STYLED_MATH = frozenset({"mathbf", "mathit", "mathsf", "boldsymbol", "bm", "bold"})
_COMMAND = re.compile(r"\\\\|\\([A-Za-z]+)\s*|\\([!,;: %#&_$])")
_COMMAND_FORMS = {
    "dfrac": r"\frac",
    "tfrac": r"\frac",
    "cfrac": r"\frac",
    "leq": r"\le ",
    "leqslant": r"\le ",
    "geq": r"\ge ",
    "geqslant": r"\ge ",
    "neq": r"\ne ",
    "lt": "<",
    "gt": ">",
    "cdot": "*",
    "times": "*",
    "ast": "*",
    "div": "/",
    "lbrace": r"\{",
    "rbrace": r"\}",
    "langle": "(",
    "rangle": ")",
    "lvert": "|",
    "rvert": "|",
    "vert": "|",
    "colon": ":",
    "percent": "%",
    "degree": r"^{\circ}",
    "degrees": r"^{\circ}",
    "varnothing": r"\emptyset ",
    "land": ",",
    "lor": ",",
    "space": " ",
    "quad": " ",
    "qquad": " ",
}
_STYLE = re.compile(
    r"left|right|[bB]igg?[lrm]?|(?:display|text)style|(?:no)?limits|rm|bf|it|mathstrut|nonumber"
)
_ESCAPE_FORMS = {"!": "", "$": "", "%": "%", "#": "#", "&": "&", "_": "_"}
_HALF_BRACED_FRACTION = re.compile(r"\\frac\s*(?:([^{\s\\])|(\{[^{}]*\}))\s*(?:([^{\s\\])|(?=\{))")
_BARE_ROOT = re.compile(r"\\sqrt\s*([^{\[\s\\])")
_BARE_SCRIPT = re.compile(r"([\^_])\s*(-?\d+|[^{\s\\(-])")
_CALL = re.compile(r"(?:\\sqrt|\^)\s*\(")
_PLAIN_ROOT = re.compile(r"(?:\\√|(?<![\\A-Za-z])sqrt)\s*(\d+)?")
_THOUSANDS_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
_PLAIN_WORDS = re.compile(r"(?<![\\A-Za-z])(pi|infinity|inf|infty)(?![A-Za-z])", re.IGNORECASE)
_CONNECTIVE = re.compile(r"\s+(?:and|or)\s+|,\s*(?:and|or)\s+")


def canonical(text: str) -> str:
    """Returns an answer in one spelling; white space is kept where it separates words or numbers."""
    text = text.replace("\n", " ").replace("\t", " ") if text.isascii() else text.translate(_UNICODE)
    if "\\begin" not in text:
        text = text.replace("\\\\", "\\")
    text = text.lstrip(" *`$").rstrip(" *`$.,;")
    if text.endswith("\\") and not text.endswith("\\\\"):
        text = text[:-1].rstrip(" *`$.,;")
    if "\\" in text:
        text = _without_styles(text)
    if "{,}" in text:
        text = _THOUSANDS_COMMA.sub("", text).replace("{,}", ",")
    text = text.replace("$", "").replace("~", " ").replace("**", "^")
    if "=" in text:
        text = text.replace("<=", r"\le ").replace(">=", r"\ge ").replace("!=", r"\ne ")
    text = _LEAD.sub("", text) if text.startswith("⟦") else text
    if text.isascii() and text.isdigit():
        return text
    if "pi" in text or "inf" in text or "Inf" in text:
        text = _PLAIN_WORDS.sub(lambda match: r"\pi " if match.group(1).lower() == "pi" else r"\infty ", text)
    if "sqrt" in text or "√" in text:
        text = _PLAIN_ROOT.sub(
            lambda match: f"\\sqrt{{{match.group(1)}}}" if match.group(1) else "\\sqrt", text
        )
    if " or " in text or " and " in text:
        text = _CONNECTIVE.sub(",", text)
    text = _brace_calls(text) if "(" in text else text
    if "\\frac" in text:
        text = _HALF_BRACED_FRACTION.sub(_braced_fraction, text)
    if "\\sqrt" in text:
        text = _BARE_ROOT.sub(r"\\sqrt{\1}", text)
    if "^" in text or "_" in text:
        text = _BARE_SCRIPT.sub(r"\1{\2}", text)
    return text.strip()


def _without_styles(text: str) -> str:
    """Returns LaTeX with one spelling for each command, text marked, and sizes and delimiters left out."""
    for spacing in _NOTHING:
        text = text.replace(spacing, "")
    if text.startswith(r"\[") and text.endswith(r"\]"):
        text = text[2:-2]
    return _COMMAND.sub(_command_form, _TEXT.sub(_text_form, text))


def _text_form(match: re.Match[str]) -> str:
    command, content = match.group(1), match.group(2)
    word = content.strip()
    if word in ("and", "or", ",", ", and", ", or"):
        return ","
    if command in _STYLED_MATH or not any(char.isalpha() for char in word) or word[0] in "0123456789-":
        return content
    if command == "mathrm" and len(word) == 1:
        return f"⟦{word}⟧" if word in "mgsh" else word
    return f"\\{word} " if command.startswith("operatorname") else f"⟦{word}⟧"


def _command_form(match: re.Match[str]) -> str:
    word, escape = match.groups()
    if word is None:
        return _ESCAPE_FORMS.get(escape, " ") if escape else match.group()
    form = _COMMAND_FORMS.get(word)
    if form is not None:
        return form
    if word in ("frac", "sqrt"):
        return match.group().rstrip()
    return "" if _STYLE.fullmatch(word) else f"\\{word} "


def _braced_fraction(match: re.Match[str]) -> str:
    bare_top, braced_top, bare_bottom = match.groups()
    top = f"{{{bare_top}}}" if bare_top else braced_top
    return f"\\frac{top}" + (f"{{{bare_bottom}}}" if bare_bottom else "")


def _brace_calls(text: str) -> str:
    """Returns the text with `sqrt(...)` and `^(...)` in braces, innermost brackets matched."""
    match = _CALL.search(text)
    for _ in range(20):
        if match is None:
            break
        end = closing(text, match.end() - 1)
        if end < 0:
            break
        head = match.group()[:-1].rstrip()
        inner = text[match.end() : end]
        text = f"{text[: match.start()]}{head}{{{inner}}}{text[end + 1 :]}"
        match = _CALL.search(text, match.start())
    return text


_CLOSERS = {"(": ")", "[": "]", "{": "}"}


def closing(text: str, start: int) -> int:
    r"""Returns the position where the bracket at `start` is closed, -1 if nowhere.

    The kinds `()` and `[]` may close each other, as in half-open intervals; `\{` counts as a brace.
    """
    depth = 0
    for position in range(start, len(text)):
        char = text[position]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
            if depth <= 0:
                return position if depth == 0 else -1
    return -1


def split_top(text: str, separator: str) -> list[str]:
    """Returns the parts of a text between separators that stand outside all brackets."""
    if separator not in text:
        return [text]
    parts, depth, start, position = [], 0, 0, 0
    while position < len(text):
        char = text[position]
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif depth == 0 and text.startswith(separator, position):
            parts.append(text[start:position])
            position += len(separator)
            start = position
            continue
        position += 1
    parts.append(text[start:])
    return parts
