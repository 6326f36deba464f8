"""Finds and reads the logs of a run: file logger, console, tensorboard."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from verl_sara.ledger import Problems, attempts, open_lines, parse_lines
from verl_sara.verl_log.table import LogRow, VerlLog, number

FILE_LOG = re.compile(r"verl\.attempt-(\d+)\.jsonl")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RAY = re.compile(r"^\s*\([\w.:\- ]+ pid=\d+[^)]*\)\s?")
_REPEATED = re.compile(r"\s*\[repeated \d+x across cluster\].*$")
_STEP = re.compile(r"(?:^|\s)step:(\d+) - (.+)$")
_NOT_A_LOG = re.compile(r"(?:ledger|journal)\..*|\d+\.jsonl")


def read_verl_log(run_dir: str | os.PathLike[str]) -> VerlLog:
    """Reads the logs of a run folder, or one log file.

    Several backends write the same numbers, so the first kind that holds any counts: the file logs
    `verl.attempt-<n>.jsonl`, any other file log (`*.jsonl`), a console log (`*.log`, `*.out`, `*.txt`
    or `log`), tensorboard events. Of other file logs and console logs only one is read, since nothing
    tells attempts from copies; the others are named in `problems`.
    """
    folder = Path(run_dir)
    if folder.is_file():
        return read_files([folder])
    candidates = [files for files in _candidates(folder) if files]
    for position, files in enumerate(candidates, start=1):
        log = read_files(files)
        if log.rows:
            others = [path.name for later in candidates[position:] for path in later if path.suffix == files[0].suffix]
            if others:
                log.problems.append(f"not read, one log counts: {', '.join(others)}")
            return log
    return VerlLog(problems=[f"no log of verl in {folder}"])


def _candidates(folder: Path) -> Iterator[list[Path]]:
    """Yields lists of files that may be the log, the best first."""
    if not folder.is_dir():
        return
    files = [path for glob in ("*", "*/*") for path in sorted(folder.glob(glob)) if path.is_file()]
    beside = folder.resolve().parent.glob("verl.attempt-*.jsonl") if any(attempts(folder)) else ()
    named = {path: int(match[1]) for path in (*files, *beside) if (match := FILE_LOG.fullmatch(path.name))}
    yield sorted(named, key=lambda path: named[path])
    other = [p for p in files if p not in named and p.suffix == ".jsonl" and not _NOT_A_LOG.fullmatch(p.name)]
    yield from ([path] for path in other)
    yield from ([path] for path in files if path.suffix in (".log", ".out", ".txt") or path.name == "log")
    yield sorted(folder.rglob("events.out.tfevents.*"))


def read_files(paths: Iterable[str | os.PathLike[str]]) -> VerlLog:
    """Reads files as the attempts of one run, in the given order."""
    log, problems = VerlLog(), Problems()
    for position, path in enumerate(map(Path, paths), start=1):
        named = FILE_LOG.fullmatch(path.name)
        attempt = int(named[1]) if named else position
        if path.name.startswith("events.out.tfevents."):
            from verl_sara.verl_log.events import read_events

            rows, log.source = read_events(path, attempt, problems), "tensorboard"
        elif path.suffix == ".jsonl":
            rows, log.source = _file_rows(path, attempt, problems), "file"
        else:
            rows, log.source = _console_rows(path, attempt, problems), "console"
        log.rows += rows
    seen: dict[tuple[int, int], set[str]] = {}
    for row in log.rows:
        known = seen.setdefault((row.attempt, row.step), set())
        if known & row.data.keys():
            problems.add("step logged twice in one attempt", f"step {row.step}")
        known.update(row.data)
    first = min((row.step for row in log.rows), default=1)
    if first > 1:
        problems.add(f"the log begins at step {first}, not 1")
    log.problems = problems.sentences()
    return log


def _file_rows(path: Path, attempt: int, problems: Problems) -> list[LogRow]:
    rows = []
    with open_lines(path) as lines:
        for line_number, record in parse_lines(lines, path.name, problems):
            step, data = number(record.get("step", "")), record.get("data")
            if step is None or not step.is_integer() or not isinstance(data, dict):
                problems.add("line that is not of verl's file logger, skipped", f"{path.name}:{line_number}")
            else:
                rows.append(LogRow(attempt, int(step), _numbers(data.items(), f"{path.name}:{line_number}", problems)))
    return rows


def _console_rows(path: Path, attempt: int, problems: Problems) -> list[LogRow]:
    rows = []
    for line_number, step, text in _step_lines(path, problems):
        pairs = (part.partition(":")[::2] for part in text.split(" - "))
        rows.append(LogRow(attempt, step, _numbers(pairs, f"{path.name}:{line_number}", problems)))
    return rows


def _step_lines(path: Path, problems: Problems) -> Iterator[tuple[int, int, str]]:
    """Yields (line number, step, pairs); a line that was wrapped when it was copied is put together."""
    found: tuple[int, int, str] | None = None
    with open_lines(path) as lines:
        for line_number, raw in enumerate(lines, start=1):
            text = _COLOUR.sub("", raw.decode("utf-8", "replace")).rstrip()
            line = _REPEATED.sub("", _RAY.sub("", text)).rstrip()
            match = _STEP.search(line)
            line = line if match else line.lstrip()
            if found and not match and line and _continues(found[2], line):
                gap = " " if line.startswith("- ") or found[2].endswith(" -") else ""
                found = (*found[:2], found[2] + gap + line)
                problems.add("step line that was wrapped, put together", f"{path.name}:{line_number}")
                continue
            if found:
                yield found
            found = (line_number, int(match[1]), match[2]) if match else None
    if found:
        yield found


def _continues(text: str, line: str) -> bool:
    """Whether `line` goes on with the pairs of `text`, cut anywhere, even within a key or number."""
    first, *others = line.removeprefix("- ").removesuffix(" -").split(" - ")
    is_cut = text.endswith(" -") or line.startswith("- ") or not _is_pair(text.rsplit(" - ", 1)[-1])
    return " " not in first and all(map(_is_pair, others)) and (is_cut or bool(others))


def _is_pair(text: str) -> bool:
    key, colon, value = text.partition(":")
    return bool(key and colon) and number(value) is not None


def _numbers(pairs: Iterable[tuple[str, Any]], where: str, problems: Problems) -> dict[str, float]:
    values = {}
    for key, raw in pairs:
        value = number(raw)
        if value is None:
            problems.add("value that is no number, skipped", f"{where} {key}")
        else:
            values[key.strip()] = value
    return values
