"""Writing a split as parquet in verl's schema, and checking what was written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_sara.core import SaraError

from .identity import prompt_id
from .rows import Problem, faults

if TYPE_CHECKING:
    import pyarrow


class SchemaError(SaraError, ValueError):
    """Rows do not have verl's schema; the message lists the first ones."""


def schema(ground_truth: Any) -> pyarrow.Schema:
    """Returns the Arrow schema of rows whose gold answer is like this one: text, or a Countdown mapping.

    Types are stated and not inferred from the first row, and all files of mathematics have the same schema,
    so that verl can concatenate them.
    """
    import pyarrow as pa

    gold: pa.DataType = pa.string()
    if isinstance(ground_truth, dict):
        gold = pa.struct([("target", pa.int64()), ("numbers", pa.list_(pa.int64()))])
    extra_info = [
        ("split", pa.string()),
        ("index", pa.int64()),
        ("prompt_id", pa.string()),
        ("source_row", pa.int64()),
    ]
    return pa.schema(
        [
            ("data_source", pa.string()),
            ("prompt", pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))),
            ("ability", pa.string()),
            ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", gold)])),
            ("extra_info", pa.struct(extra_info)),
        ]
    )


def write_split(rows: Sequence[dict[str, Any]], path: str | os.PathLike[str]) -> int:
    """Writes rows to a parquet file, reads it back and checks it; returns the number of rows.

    The file appears under its name only when it is complete and right.

    Args:
      rows: Rows as `rows.make_row` makes them, at least one, all with the same kind of gold answer.
      path: The file; its folder is made if need be.

    Raises:
      SchemaError: If a row does not have verl's schema, or does not come back as it went in.
    """
    import pyarrow as pa
    import pyarrow.parquet

    path = Path(path)
    if not rows:
        raise SchemaError(f"no rows to write to {path}; allowed: at least 1")
    problems = row_problems(rows, str(path))
    if problems:
        shown = "\n  ".join(str(problem) for problem in problems[:5])
        raise SchemaError(f"{len(problems)} faults in the rows for {path}:\n  {shown}")
    expected = schema(rows[0]["reward_model"]["ground_truth"])
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    try:
        pa.parquet.write_table(pa.Table.from_pylist(list(rows), schema=expected), partial)
        written = pa.parquet.read_table(partial)
        if not written.schema.equals(expected) or written.to_pylist() != list(rows):
            raise SchemaError(f"{path} does not read back as it was written: schema {written.schema}")
        partial.replace(path)
    except pa.ArrowException as error:
        raise SchemaError(f"rows for {path} do not fit verl's schema: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return len(rows)


def row_problems(rows: Sequence[dict[str, Any]], name: str) -> list[Problem]:
    """Returns what is wrong with rows of ours: their shape, their `prompt_id`, and repeats of it."""
    problems: list[Problem] = []
    seen: dict[str, int] = {}
    for number, row in enumerate(rows, start=1):
        found = faults(row)
        problems += [Problem(name, number, *fault) for fault in found]
        if found:
            continue
        identity = prompt_id(row["prompt"], row["data_source"], row["reward_model"]["ground_truth"])
        stated = row["extra_info"].get("prompt_id")
        if stated != identity:
            problems.append(Problem(name, number, f"extra_info.prompt_id is {stated!r}", identity))
        if identity in seen:
            problems.append(
                Problem(name, number, f"same problem as row {seen[identity]}", "each problem once")
            )
        seen.setdefault(identity, number)
    return problems
