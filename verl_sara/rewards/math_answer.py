r"""Mathematics: one grader for MATH, MATH-500 and AIME.

Where the answer stands, in this order: the last balanced `\boxed{}`, the last `<answer>` tag, the last line
that says `Answer: ...`, `the answer is ...` or `#### ...`, else a text that is nothing but a short answer.
Only what follows the last `</think>` is read, if there is one. Then `equivalence` compares, and asks
`symbolic` for what is left.
"""

from __future__ import annotations

import re
from typing import Any

from . import symbolic
from .base import Grade
from .equivalence import Group, Undecided, equal, normal_form, parse
from .text import after_thinking, last_boxed, tail, trailing_boxes

_MARK = re.compile(
    r"answers?\b[ \t*_]*(?:(?:to|for|of) [^\n.:=]{1,80}?)?\b[ \t*_]*(?:is|are|[:=])[ \t*_:=]*\s*([^\n]+)",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"\.\s|\.$|;\s|,? (?:because|since|so|which|where|as)\b")
_MAX_MARKS = 16
_MAX_BARE = 200
_MAX_QUESTIONS = 8
_MAX_BARE_WORDS = 2
_MAX_UNIT_WORDS = 6


def grade(text: str, gold: Any, undecided: Undecided = symbolic.equal) -> Grade:
    """Returns the grade of a response to a problem with a mathematical answer. Never raises.

    Args:
      text: The response.
      gold: Text or number; a text that holds a box stands for what is in its last box. Anything else, or an
        empty text, gives the reason `error`.
      undecided: Decides what the normal form leaves open; see `equivalence.equal`.
    """
    ask = _at_most(_MAX_QUESTIONS, undecided)
    try:
        expected = read_gold(gold)
        response = after_thinking(tail(str(text)))
        answer, reason = extract(response)
        if answer is None:
            return Grade.of(reason)
        if equal(expected, answer, ask) or _is_split(expected, response, ask):
            return Grade.of("ok", normal_form(expected))
        return Grade.of("wrong", normal_form(answer))
    except symbolic.SymbolicTimeout as error:
        return Grade.of("timeout", str(error))
    except Exception as error:  # the contract with the trainer: a grade, whatever the text holds
        return Grade.of("error", f"{type(error).__name__}: {error}")


def _at_most(num_questions: int, undecided: Undecided) -> Undecided:
    """Returns `undecided` for the first questions and "different" for all further ones.

    Each question has a deadline of its own; long lists of expressions must not add theirs up.
    """
    left = num_questions

    def ask(gold: str, answer: str) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and undecided(gold, answer)

    return ask


def read_gold(gold: Any) -> str:
    """Returns the gold answer as text.

    Raises:
      ValueError: If it is empty, not a number, or neither text nor a number.
    """
    if hasattr(gold, "item") and not isinstance(gold, str):
        gold = gold.item()
    is_number = isinstance(gold, (int, float)) and not isinstance(gold, bool) and gold == gold
    if not isinstance(gold, str) and not is_number:
        raise ValueError(f"gold answer must be text or a number, found {gold!r:.80}")
    text = str(gold)
    boxed, _ = last_boxed(text)
    text = (boxed if boxed is not None else text).strip()
    if not text:
        raise ValueError("gold answer is empty")
    return text


def extract(response: str) -> tuple[str | None, str]:
    """Returns the answer in a response, and if there is none the reason for that."""
    boxed, is_cut = last_boxed(response)
    if boxed is not None:
        return (boxed, "ok") if boxed.strip() else (None, "unparsed")
    start = response.rfind("<answer>")
    if start >= 0:
        content = response[start + len("<answer>") :].partition("</answer>")[0].strip()
        return (content, "ok") if content else (None, "unparsed")
    marked = _marked(response)
    if marked:
        return marked, "ok"
    if is_cut:
        return None, "truncated"
    bare = response.strip()
    return (bare, "ok") if _is_bare(bare) else (None, "no_answer")


def _is_bare(text: str) -> bool:
    """Whether a text is nothing but a short answer: one line of few words, or a value with its unit."""
    if not text or len(text) > _MAX_BARE or "\n" in text:
        return False
    num_words = sum(word.strip(".,:;").isalpha() and len(word) > 1 for word in text.split())
    return num_words <= (_MAX_UNIT_WORDS if text[0] in "0123456789$\\-.([{" else _MAX_BARE_WORDS)


def _marked(response: str) -> str:
    """Returns what the last `Answer:`-like mark stands before; empty if there is none."""
    position = response.rfind("####")
    if position >= 0:
        return response[position:].lstrip("# ").partition("\n")[0].strip()
    lowered = response.lower()
    position = len(lowered)
    for _ in range(_MAX_MARKS):
        position = lowered.rfind("answer", 0, position)
        if position < 0:
            break
        match = _MARK.match(lowered, position)
        if match is not None and match.end() <= len(response):
            return _SENTENCE_END.split(response[match.start(1) : match.end(1)], maxsplit=1)[0].strip(" *_`")
    return ""


def _is_split(expected: str, response: str, undecided: Undecided) -> bool:
    r"""Whether a gold list was answered in several boxes in a row, as in `\boxed{1} and \boxed{2}`."""
    if not isinstance(parse(expected), Group):
        return False
    boxes = trailing_boxes(response)
    return len(boxes) > 1 and equal(expected, ",".join(boxes), undecided)
