"""JSON lines as they are found in practice: torn, glued, foreign. Nothing is skipped silently."""

import json
import os
from collections.abc import Iterable, Iterator
from typing import IO, Any

try:  # verl brings it; several times as fast, and stricter
    from orjson import loads as _loads
except ImportError:
    _loads = json.loads

_DECODER = json.JSONDecoder()
_BLANK = " \t\r\n\x00\ufeff"


class Problems:
    """Counts what was skipped or looks wrong, by kind, with the first place of each."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[int, str]] = {}

    def add(self, kind: str, where: str = "", count: int = 1) -> None:
        """Notes `count` occurrences of `kind`, a text that reads on after "3 x"."""
        known, first = self._found.get(kind, (0, where))
        self._found[kind] = (known + count, first)

    def count(self, kind: str) -> int:
        """Returns how often `kind` was noted."""
        return self._found.get(kind, (0, ""))[0]

    def sentences(self) -> list[str]:
        """Returns one line per kind."""
        return [
            f"{count} x {kind}" + (f" (first: {first})" if first else "")
            for kind, (count, first) in self._found.items()
        ]


def _whole_object(line: bytes | str) -> dict[str, Any]:
    """Returns the one object that an ordinary line holds; ValueError for any other line."""
    record = _loads(line)
    if type(record) is not dict:
        raise ValueError("not an object")
    return record


def parse_lines(lines: Iterable[bytes | str], where: str, problems: Problems) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yields (line number, object) of the lines of a JSONL text, UTF-8 if they are bytes.

    Glued objects are split, the readable part of a torn line is kept; blank lines are skipped,
    everything else is counted.
    """
    for number, line in enumerate(lines, start=1):
        try:
            record = _whole_object(line)
        except (ValueError, RecursionError):
            text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
            rest, num_objects = text.strip(_BLANK), 0
        else:
            yield number, record
            continue
        while rest:
            try:
                record, end = _DECODER.raw_decode(rest)
            except (ValueError, RecursionError):
                problems.add("line that is not JSON, skipped", f"{where}:{number}: {rest[:40]!r}")
                break
            rest = rest[end:].strip(_BLANK)
            num_objects += 1
            if isinstance(record, dict):
                yield number, record
            else:
                problems.add("line that is not an object, skipped", f"{where}:{number}: {str(record)[:40]!r}")
        if num_objects > 1:
            problems.add("line with several objects, split", f"{where}:{number}")


def open_lines(path: str | os.PathLike[str]) -> IO[bytes]:
    """Opens a text file as lines of bytes; they end at "\\n" only, since model text may hold U+2028 and the like."""
    return open(path, "rb")
