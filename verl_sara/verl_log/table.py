"""The numbers that verl logged, as rows per step, and what is one."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

_SCALAR = re.compile(r"(?:(?:np|numpy|torch)\.\w+|tensor|array)\((.*?)(?:, dtype=.*)?\)")
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
