"""Reads tensorboard event files. Needs the package tensorboard; tensorflow is not needed."""

from pathlib import Path

from verl_sara.ledger import Problems
from verl_sara.verl_log.table import LogRow, number


def read_events(path: Path, attempt: int, problems: Problems) -> list[LogRow]:
    """Returns the scalars of one event file by step; a torn file is read as far as it goes."""
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
        from tensorboard.util.tensor_util import make_ndarray
    except ImportError as error:
        problems.add(f"event file that needs the package tensorboard ({error}), skipped", path.name)
        return []
    rows: dict[int, dict[str, float]] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            scalar = make_ndarray(value.tensor) if value.HasField("tensor") else value.simple_value
            found = number(scalar.item()) if getattr(scalar, "size", 1) == 1 else None
            if found is None:
                problems.add("event that is no number, skipped", f"{path.name} {value.tag}")
                continue
            data = rows.setdefault(event.step, {})
            if value.tag in data:
                problems.add("step logged twice in one event file", f"{path.name} step {event.step}")
            data[value.tag] = found
    return [LogRow(attempt, step, data) for step, data in rows.items()]
