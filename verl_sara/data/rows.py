"""One row of verl's data format: how it is made, and what is wrong with one. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .identity import prompt_id

ROLES = ("system", "user", "assistant", "tool")

_MARKUP = re.compile(r"<\|[a-z_]{2,30}\|>|<｜[^｜<>]{1,40}｜>|\[/?INST\]|<(?:start|end)_of_turn>")


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a data file.

    Attributes:
      file: The file or hub data set.
      row: Row number, from 1; 0 if the file as a whole is meant.
      what: What is wrong, with the value.
      allowed: What would be right.
    """

    file: str
    row: int
    what: str
    allowed: str

    def __str__(self) -> str:
        place = f"{self.file} row {self.row}" if self.row else self.file
        return f"{place}: {self.what}; allowed: {self.allowed}"


def make_row(
    *,
    prompt: str | list[dict[str, str]],
    data_source: str,
    ground_truth: Any,
    ability: str,
    split: str,
    index: int,
    source_row: int = 0,
) -> dict[str, Any]:
    """Returns a row in verl's schema.

    Args:
      prompt: Text of one user message, or messages.
      data_source: Selects the grader.
      ground_truth: Text for mathematics, a mapping with `target` and `numbers` for Countdown.
      ability: Free label of the kind of task.
      split: `train` or `test`.
      index: Position in the split.
      source_row: Row number in the source, from 1; 0 for a generated problem.
    """
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    return {
        "data_source": data_source,
        "prompt": messages,
        "ability": ability,
        "reward_model": {"style": "rule", "ground_truth": ground_truth},
        "extra_info": {
            "split": split,
            "index": index,
            "prompt_id": prompt_id(messages, data_source, ground_truth),
            "source_row": source_row,
        },
    }


def faults(row: Mapping[str, Any], prompt_key: str = "prompt") -> list[tuple[str, str]]:
    """Returns what is wrong with a row's shape, as pairs of the fault and what is allowed."""
    found = prompt_faults(row.get(prompt_key), prompt_key)
    data_source = row.get("data_source")
    if not isinstance(data_source, str) or not data_source.strip():
        found.append((f"data_source is {_shown(data_source)}", "the name of a data source"))
    reward_model = row.get("reward_model")
    if not isinstance(reward_model, Mapping):
        found.append((f"reward_model is {_shown(reward_model)}", "a mapping with ground_truth"))
    elif is_missing(reward_model.get("ground_truth")):
        found.append(("reward_model.ground_truth is missing", "the gold answer"))
    extra_info = row.get("extra_info", {})
    if not isinstance(extra_info, Mapping):
        found.append((f"extra_info is {_shown(extra_info)}", "a mapping, or no such column"))
    return found


def prompt_faults(prompt: Any, prompt_key: str = "prompt") -> list[tuple[str, str]]:
    """Returns what is wrong with a prompt: it must be messages with a role and text, without chat markup."""
    messages = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(messages, (list, tuple)) or not messages:
        return [(f"{prompt_key} is {_shown(prompt)}", "a non-empty list of messages")]
    for message in messages:
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ROLES:
            return [(f"{prompt_key} has a message with role {_shown(role)}", f"one of {', '.join(ROLES)}")]
        content = message.get("content")
        if (
            not isinstance(content, (str, list))
            or not content
            or (isinstance(content, str) and not content.strip())
        ):
            return [(f"{prompt_key} has an empty or non-text content {_shown(content)}", "text")]
        markup = _MARKUP.search(content) if isinstance(content, str) else None
        if markup is not None:
            return [
                (
                    f"{prompt_key} holds chat markup {markup.group()!r}",
                    "plain text; verl applies the chat template",
                )
            ]
    return []


def is_missing(value: Any) -> bool:
    """Whether a value is `None`, NaN, or text of white space only."""
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
