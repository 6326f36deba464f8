"""The identity of a prompt: a content hash, stable across files, epochs and runs. Standard library only."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

ID_LENGTH = 16
"""Hex digits of a prompt id: 64 bits, so that a collision among 10 million prompts has probability 3e-6."""


def prompt_id(prompt: Any, data_source: object, ground_truth: Any) -> str:
    """Returns the identity of a training problem as `ID_LENGTH` hex digits.

    Two rows are the same problem exactly when normalised prompt, data source and gold answer agree. The
    container types do not matter: lists, tuples and arrays of the same content give the same id.

    Args:
      prompt: Text, or a sequence of messages with `role` and `content`.
      data_source: Name of the data source.
      ground_truth: Gold answer: text, number, or a mapping.
    """
    content = [normalise_prompt(prompt), str(data_source), _plain(ground_truth)]
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:ID_LENGTH]


def normalise_prompt(prompt: Any) -> str:
    """Returns the prompt's text in Unicode NFC with runs of white space as one space; roles mark messages."""
    if isinstance(prompt, str):
        prompt = [{"role": "user", "content": prompt}]
    messages = _plain(prompt)
    parts = []
    for message in messages if isinstance(messages, list) else [messages]:
        if isinstance(message, dict):
            content = message.get("content")
            if not isinstance(content, str):
                content = json.dumps(content, sort_keys=True, ensure_ascii=False)
            parts.append(f"{message.get('role', 'user')}: {content}")
        else:
            parts.append(str(message))
    return " ".join(unicodedata.normalize("NFC", "\n".join(parts)).split())


def _plain(value: Any) -> Any:
    """Returns a value with mappings, sequences, arrays and array scalars as plain Python types."""
    if isinstance(value, str):
        return str(value)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Iterable) and not isinstance(value, bytes):
        return [_plain(item) for item in value]
    return value if isinstance(value, (bool, int, float)) or value is None else str(value)
