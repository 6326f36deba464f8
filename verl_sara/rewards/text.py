"""Where the answer stands in a response: reasoning tags, boxes, the tail of a long text. Linear time."""

from __future__ import annotations

import re

MAX_TEXT = 200_000
"""Characters of a response that are read, counted from its end."""

_BOX = "\\boxed"
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def tail(text: str) -> str:
    """Returns the last `MAX_TEXT` characters of a text; final answers stand at the end."""
    return text[-MAX_TEXT:]


def after_thinking(text: str) -> str:
    """Returns what follows the last `</think>`, or the whole text; the opening tag is never required.

    Templates of R1-style models append `<think>` to the prompt, so responses lack it.
    """
    return text.rpartition("</think>")[2]


def last_boxed(text: str) -> tuple[str | None, bool]:
    r"""Returns the content of the last balanced `\boxed{...}` and whether a later box is cut off.

    `\boxed {3}` and `\boxed 3` count, braces nest, `\{` and `\}` are not braces, and an earlier box without
    braces does not hide a later one. An unclosed box is passed over (second value true) and the last complete
    one before it is returned.
    """
    is_cut = False
    if _BOX not in text:
        return None, False
    position = len(text)
    for _ in range(8):  # unclosed boxes tried from the end; bounds the work on garbage
        position = text.rfind(_BOX, 0, position)
        if position < 0:
            break
        content = _box_content(text, position + len(_BOX))
        if content is not None:
            return content, is_cut
        is_cut = True
    return None, is_cut


def _box_content(text: str, start: int) -> str | None:
    while start < len(text) and text[start] in " \t\n":
        start += 1
    if start >= len(text):
        return None
    if text[start] != "{":
        end = start
        while end < len(text) and text[end] not in " \t\n$,;.":
            end += 1
        return text[start:end].rstrip("}") or None
    end = text.find("}", start)
    if end >= 0 and text.find("{", start + 1, end) < 0 and text.find("\\", start, end) < 0:
        return text[start + 1 : end]
    depth = 0
    for match in _BRACE.finditer(text, start):
        char = match.group()
        if char == "{":
            depth += 1
        elif char == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : match.start()]
    return None


def trailing_boxes(text: str) -> list[str]:
    r"""Returns the contents of the last boxes that only commas, `and`, `or` or `$` separate, in order."""
    boxes: list[str] = []
    end = len(text)
    for _ in range(8):
        start = text.rfind(_BOX, 0, end)
        content = _box_content(text, start + len(_BOX)) if start >= 0 else None
        if content is None:
            break
        gap = text[text.find(content, start) + len(content) : end] if boxes else ""
        if gap.strip("}").replace("and", "").replace("or", "").strip(" ,;$\n\\()[]}"):
            break
        boxes.insert(0, content)
        end = start
    return boxes
