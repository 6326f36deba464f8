"""Ledgers as pandas frames, for the notebooks: a million groups in seconds.

The fast path hands the files to pyarrow. It holds only for ledgers without a fault; at the first
one the tolerant reader does the same work line by line. Both give the same rows.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from verl_sara.core import Fate, Verdict
from verl_sara.ledger import SCHEMA_VERSION, Record, attempts, ledger_folder, read_ledger
from verl_sara.summary import Arm

_TIMES = ("granted_s", "closed_s")
_GROUP = pa.schema(
    [
        ("attempt", pa.int16()),
        ("step", pa.int32()),
        ("index", pa.int32()),
        ("prompt_id", pa.string()),
        ("group_size", pa.int16()),
        ("prior", pa.list_(pa.float64())),
        ("n0", pa.int16()),
        ("n1", pa.int16()),
        ("slots", pa.struct([("outcome", pa.list_(pa.int8())), ("tokens", pa.list_(pa.int32()))])),
        ("prompt_tokens", pa.int32()),
        ("verdict", pa.string()),
        ("reason", pa.string()),
        ("verdict_length", pa.int16()),
        ("p_eff", pa.float64()),
        ("fate", pa.string()),
        ("times", pa.struct([(name, pa.float32()) for name in _TIMES])),
    ]
)
_LINE = pa.schema([("schema", pa.int64()), ("kind", pa.string()), *_GROUP])
_FATES = pa.array([fate.value for fate in Fate])
_VERDICTS = pa.array([verdict.value for verdict in Verdict])
_BLOCK_BYTES = 1 << 22
_BATCH = 10_000


def group_frame(run_dir: str | os.PathLike[str]) -> pd.DataFrame:
    """Returns a row per group of the finished steps of all attempts, in the order of the ledger.

    Columns: attempt, step, index, prompt_id, group_size, prior_alpha, prior_beta, n0, n1, num_rollouts,
    num_passed, num_known (with an outcome), num_tokens, prompt_tokens, verdict, reason,
    verdict_length, p_eff, fate, granted_s, closed_s.

    Raises:
      LedgerError: If there is no ledger, or it is of another version.
    """
    folder = ledger_folder(run_dir)
    try:
        paths = {attempt: folder / f"ledger.attempt-{attempt}.jsonl" for attempt in sorted(attempts(folder))}
        batches = [_columns(batch) for attempt, path in paths.items() for batch in _fast(path, attempt)]
    except (pa.ArrowInvalid, _Faulty):
        batches = [_columns(batch) for batch in _tolerant(folder)]
    empty = _columns(pa.RecordBatch.from_pylist([], schema=_GROUP))
    table = pa.Table.from_batches(batches, schema=empty.schema)
    return table.to_pandas(types_mapper={pa.string(): pd.ArrowDtype(pa.string())}.get)


def step_frame(arm: Arm) -> pd.DataFrame:
    """Returns a row per step of an arm's history: rounds, groups and rollouts and tokens by fate."""
    rows = []
    for step in arm.history():
        row = {name: step.get(name) for name in ("step", "attempt", "rounds", "commit_rate", "collect_s")}
        for fate, counts in step["fates"].items():
            row |= {f"{unit}_{fate}": counts[unit] for unit in ("groups", "rollouts", "tokens")}
        rows.append(row)
    return pd.DataFrame(rows)


def log_frame(arm: Arm) -> pd.DataFrame:
    """Returns verl's own metrics, a row per step of the last attempt."""
    return pd.DataFrame([{"step": row.step, "attempt": row.attempt, **row.data} for row in arm.log.history()])


class _Faulty(ValueError):
    """A ledger that the fast path must not judge."""


def _fast(path: Path, attempt: int) -> Iterator[pa.RecordBatch]:
    """Yields the group lines of one file, if every line is sound and every group's step was finished."""
    reader = pyarrow.json.open_json(
        path,
        read_options=pyarrow.json.ReadOptions(block_size=_BLOCK_BYTES),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=_LINE, unexpected_field_behavior="ignore"),
    )
    open_steps: set[int] = set()
    finished: set[int] = set()
    for batch in reader:
        if not pc.all(pc.equal(batch["schema"], SCHEMA_VERSION)).as_py() or batch["schema"].null_count:
            raise _Faulty
        groups = batch.filter(pc.equal(batch["kind"], "group"))
        if groups.num_rows + pc.sum(pc.is_in(batch["kind"], pa.array(["run", "step"]))).as_py() < batch.num_rows:
            raise _Faulty
        open_steps |= set(pc.unique(groups["step"]).to_pylist())
        finished |= set(batch.filter(pc.equal(batch["kind"], "step"))["step"].to_pylist())
        if groups.num_rows:
            of_file = pa.array([attempt] * groups.num_rows, pa.int16())
            yield groups.select(_GROUP.names).set_column(0, _GROUP.field("attempt"), of_file)
    if open_steps - finished:
        raise _Faulty


def _tolerant(folder: Path) -> Iterator[pa.RecordBatch]:
    """Yields the groups that the tolerant reader accepts."""
    rows: list[Record] = []
    read_ledger(folder, on_group=rows.append, is_strict=False)
    for start in range(0, len(rows), _BATCH):
        part = rows[start : start + _BATCH]
        slots = [{name: row["slots"][name] for name in ("outcome", "tokens")} for row in part]
        times = [{name: row.get("times", {}).get(name) for name in _TIMES} for row in part]
        columns = {name: [row.get(name) for row in part] for name in _GROUP.names}
        yield pa.RecordBatch.from_pydict({**columns, "slots": slots, "times": times}, schema=_GROUP)


def _columns(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Returns a batch with the lists of a group reduced to counts."""
    outcome, tokens = (pc.struct_field(batch["slots"], name) for name in ("outcome", "tokens"))
    prior = batch["prior"]
    lengths = pc.list_value_length(tokens)
    is_sound = (
        pc.all(pc.equal(lengths, pc.list_value_length(outcome)), skip_nulls=False, min_count=0).as_py()
        and pc.all(pc.equal(pc.list_value_length(prior), 2), skip_nulls=False, min_count=0).as_py()
        and (pc.min(pc.list_flatten(tokens)).as_py() or 0) >= 0
        and pc.all(pc.is_in(pc.list_flatten(outcome), pa.array([0, 1, None], pa.int8())), min_count=0).as_py()
        and pc.all(pc.is_in(batch["verdict"], _VERDICTS), min_count=0).as_py()
        and pc.all(pc.is_in(batch["fate"], _FATES), min_count=0).as_py()
    )
    if not is_sound:
        raise _Faulty
    known = pc.is_valid(pc.list_flatten(outcome))
    return pa.RecordBatch.from_pydict(
        {
            **{name: batch[name] for name in ("attempt", "step", "index", "prompt_id", "group_size")},
            "prior_alpha": pc.list_element(prior, 0),
            "prior_beta": pc.list_element(prior, 1),
            "n0": batch["n0"],
            "n1": batch["n1"],
            "num_rollouts": lengths,
            "num_passed": _sums(lengths, pc.fill_null(pc.list_flatten(outcome), 0)),
            "num_known": _sums(lengths, pc.cast(known, pa.int8())),
            "num_tokens": _sums(lengths, pc.list_flatten(tokens)),
            **{name: batch[name] for name in ("prompt_tokens", "verdict", "reason", "verdict_length", "p_eff", "fate")},
            **{name: pc.struct_field(batch["times"], name) for name in _TIMES},
        }
    )


def _sums(lengths: pa.Array, values: pa.Array) -> pa.Array:
    """Returns the sums of consecutive runs of `values`, as long as `lengths` says."""
    running = np.concatenate([[0], np.cumsum(values.to_numpy(zero_copy_only=False), dtype=np.int64)])
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False))
    return pa.array(running[ends] - running[ends - lengths.to_numpy(zero_copy_only=False)])
