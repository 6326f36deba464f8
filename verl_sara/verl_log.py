"""Reads verl's own logs, whatever backend wrote them, into one table of numbers per step.

- file logger: one JSON object per line, `{"step": N, "data": {...}}`; NaN is written as null
- console: `step:N - key:value - ...`, with Ray's prefix and colours, and `np.float64(0.5)` for numbers
- tensorboard: event files (needs the package tensorboard)

verl's token and throughput numbers count trained rows and padding, never what was generated and
thrown away: savings come from our ledger only.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_sara.ledger import Problems, open_lines, parse_lines

FILE_LOG = re.compile(r"verl\.attempt-(\d+)\.jsonl")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_STEP = re.compile(r"(?:^|\s)step:(\d+) - (.+)$")
_SCALAR = re.compile(r"(?:np|numpy|torch)\.\w+\((.*?)(?:, dtype=.*)?\)")
_VALIDATION = re.compile(r"val-core/(.+)/(acc|reward)/mean@(\d+)")


@dataclass(frozen=True, slots=True)
class LogRow:
    """The numbers that verl logged for one step.

    Attributes:
      attempt: Number of the attempt, from 1.
      step: verl's global step; 0 = before training.
      data: Values by verl's metric name; NaN where verl logged null.
    """

    attempt: int
    step: int
    data: dict[str, float]


@dataclass
class VerlLog:
    """All rows of a run, in the order in which they were found.

    Attributes:
      rows: Attempts and repeated steps included.
      source: What was read: "file", "console", "tensorboard" or "none".
      problems: What was skipped or looks wrong, one sentence per kind.
    """

    rows: list[LogRow] = field(default_factory=list)
    source: str = "none"
    problems: list[str] = field(default_factory=list)

    def history(self) -> list[LogRow]:
        """Returns one row per step, of its last attempt, ordered: for curves, not for cost."""
        last: dict[int, LogRow] = {}
        for row in self.rows:
            if row.step not in last or row.attempt > last[row.step].attempt:
                last[row.step] = row
            elif row.attempt == last[row.step].attempt:
                last[row.step] = LogRow(row.attempt, row.step, {**last[row.step].data, **row.data})
        return [last[step] for step in sorted(last)]

    def total(self, key: str) -> float:
        """Returns the sum of a metric over all rows, repeated steps included; 0 if it is never there."""
        values = (row.data.get(key, 0.0) for row in self.rows)
        return sum(value for value in values if not math.isnan(value))

    def validation(self) -> list[tuple[int, float]]:
        """Returns (step, accuracy) of every validation, the mean over its data sources."""
        curve = []
        for row in self.history():
            by_source = _by_source(row.data)
            if by_source:
                curve.append((row.step, sum(by_source.values()) / len(by_source)))
        return curve

    def validation_by_source(self) -> dict[str, list[tuple[int, float]]]:
        """Returns (step, accuracy) of every validation by data source."""
        curves: dict[str, list[tuple[int, float]]] = {}
        for row in self.history():
            for source, value in _by_source(row.data).items():
                curves.setdefault(source, []).append((row.step, value))
        return curves


def _by_source(data: dict[str, float]) -> dict[str, float]:
    """Returns the core accuracy by data source; `acc` counts before `reward`, more samples before fewer."""
    best: dict[str, tuple[bool, int, float]] = {}
    for key, value in data.items():
        if (match := _VALIDATION.fullmatch(key)) and not math.isnan(value):
            source, name, num_samples = match[1], match[2], int(match[3])
            best[source] = max(best.get(source, (False, 0, 0.0)), (name == "acc", num_samples, value))
    return {source: value for source, (_, _, value) in best.items()}


def number(value: Any) -> float | None:
    """Returns a logged value as a float, None if it is no number.

    null is NaN; "0.5" and "np.float64(0.5)" are numbers.
    """
    if value is None:
        return math.nan
    if isinstance(value, (bool, int, float)):
        return float(value)
    if isinstance(value, str):
        text = value.strip()
        if match := _SCALAR.fullmatch(text):
            text = match[1]
        try:
            return float(text)
        except ValueError:
            return {"None": math.nan, "True": 1.0, "False": 0.0}.get(text)
    return None


def read_verl_log(run_dir: str | os.PathLike[str]) -> VerlLog:
    """Reads the logs of a run folder; a file is read as what it holds.

    The first kind that is found counts, since several backends write the same numbers: the file logs
    `verl.attempt-<n>.jsonl`, any other file log (`*.jsonl`), a console log (`*.log`, `*.out`, `*.txt`
    or `log`), tensorboard events.
    """
    folder, problems = Path(run_dir), Problems()
    if folder.is_file():
        return read_files([folder])
    log = VerlLog()
    for files in _candidates(folder):
        log = read_files(files)
        for sentence in log.problems:
            problems.add(sentence)
        if log.rows:
            return log
    return VerlLog(problems=[f"no log of verl in {folder}"])


def _candidates(folder: Path) -> Iterator[list[Path]]:
    """Yields lists of files that may be the log, the best first."""
    if not folder.is_dir():
        return
    files = [path for path in sorted(folder.glob("*")) if path.is_file()]
    files += [path for path in sorted(folder.glob("*/*")) if path.is_file()]
    named = [path for path in files if FILE_LOG.fullmatch(path.name)]
    yield sorted(named, key=lambda path: int(FILE_LOG.fullmatch(path.name)[1]))  # type: ignore[index]
    other = [p for p in files if p.suffix == ".jsonl" and not p.name.startswith(("ledger.", "journal."))]
    yield from ([path] for path in other if path not in named)
    yield from ([path] for path in files if path.suffix in (".log", ".out", ".txt") or path.name == "log")
    yield sorted(folder.rglob("events.out.tfevents.*"))


def read_files(paths: Iterable[str | os.PathLike[str]]) -> VerlLog:
    """Reads files as the attempts of one run, in the given order."""
    log, problems = VerlLog(), Problems()
    for position, path in enumerate(map(Path, paths), start=1):
        named = FILE_LOG.fullmatch(path.name)
        attempt = int(named[1]) if named else position
        if path.name.startswith("events.out.tfevents."):
            from verl_sara.verl_events import read_events

            rows, log.source = read_events(path, attempt, problems), "tensorboard"
        elif path.suffix == ".jsonl":
            rows, log.source = _file_rows(path, attempt, problems), "file"
        else:
            rows, log.source = _console_rows(path, attempt, problems), "console"
        log.rows += rows
    seen: set[tuple[int, int]] = set()
    for row in log.rows:
        if (row.attempt, row.step) in seen and log.source == "file":
            problems.add("step logged twice in one attempt", f"step {row.step}")
        seen.add((row.attempt, row.step))
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
                rows.append(
                    LogRow(attempt, int(step), _numbers(data.items(), f"{path.name}:{line_number}", problems))
                )
    return rows


def _console_rows(path: Path, attempt: int, problems: Problems) -> list[LogRow]:
    rows = []
    with open_lines(path) as lines:
        for line_number, line in enumerate(lines, start=1):
            match = _STEP.search(_COLOUR.sub("", line).rstrip())
            if match:
                pairs = (part.partition(":")[::2] for part in match[2].split(" - "))
                data = _numbers(pairs, f"{path.name}:{line_number}", problems)
                rows.append(LogRow(attempt, int(match[1]), data))
    return rows


def _numbers(pairs: Iterable[tuple[str, Any]], where: str, problems: Problems) -> dict[str, float]:
    values = {}
    for key, raw in pairs:
        value = number(raw)
        if value is None:
            problems.add("value that is no number, skipped", f"{where} {key}")
        else:
            values[key.strip()] = value
    return values
