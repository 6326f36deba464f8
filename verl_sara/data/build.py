"""The three data sets: source to train and test parquet, with a sidecar file that records both."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from verl_sara import __version__
from verl_sara.core import SaraError
from verl_sara.rewards import grader_for

from .countdown import generate_splits, solve
from .identity import normalise_prompt
from .parquet import write_split
from .prepare import (
    INSTRUCTION,
    Prepared,
    countdown_parts,
    countdown_row_parts,
    math_parts,
    prepare,
)
from .rows import Problem, make_row
from .sources import RawRows, files_of, read, sha256

MATH_SOURCE = "DigitalLearningGmbH/MATH-lighteval"
AIME24_SOURCE = "HuggingFaceH4/aime_2024"
AIME24_SIZE = 30
SIDECAR = "source.json"

Convert = Callable[[Mapping[str, Any]], dict[str, Any]]


class DataError(SaraError, ValueError):
    """A data set cannot be built as asked; nothing was written."""


@dataclass
class Built:
    """A data set that is ready to be written.

    Attributes:
      name: `math`, `aime24` or `countdown`.
      splits: Prepared rows by split.
      provenance: Sources by split.
      settings: What else determines the rows.
      faults: What is wrong with a split as a whole, one sentence each.
      notes: What was done beside that, one sentence each.
    """

    name: str
    splits: dict[str, Prepared] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[Problem]:
        """Every row that was left out because something is wrong with it."""
        return [problem for split in self.splits.values() for problem in split.problems]


def build_math(
    source: str = MATH_SOURCE,
    *,
    test_source: str | None = None,
    test_size: int | None = None,
    seed: int = 0,
    revision: str | None = None,
    data_source: str = MATH_SOURCE,
    instruction: str = INSTRUCTION,
) -> Built:
    """Returns MATH or any data set like it.

    Args:
      source: Local file or folder, or hub id. Of a single file without `test_source`, rows are held out as
        test set: those whose column `split` says so, else `test_size` rows drawn by `seed`.
      test_source: Where the test rows come from instead.
      test_size: Rows held out of a single file; a tenth by default, at most 500.
      seed: Seed of the draw.
      revision: Revision of a hub data set.
      data_source: Written into the rows; selects the grader.
      instruction: Added to the problem text.
    """
    grader_for(data_source)
    convert = partial(math_parts, data_source=data_source, instruction=instruction)
    built = Built("math", settings={"data_source": data_source, "instruction": instruction, "seed": seed})
    _read_splits(built, convert, source, test_source, test_size, seed, revision)
    return built


def build_aime24(
    source: str = AIME24_SOURCE,
    *,
    revision: str | None = None,
    data_source: str = "aime24",
    instruction: str = INSTRUCTION,
) -> Built:
    """Returns AIME 2024, a test set of 30 problems; copies that hold every problem many times are reduced."""
    grader_for(data_source)
    built = Built("aime24", settings={"data_source": data_source, "instruction": instruction})
    raw = read(source, None, revision=revision)  # the copies on the hub name their one split either way
    convert = partial(math_parts, data_source=data_source, instruction=instruction)
    built.provenance["test"] = raw.provenance
    built.splits["test"] = prepare(raw, "test", convert)
    num_rows = len(built.splits["test"].rows)
    if num_rows != AIME24_SIZE:
        built.faults.append(
            f"AIME 2024 has {AIME24_SIZE} problems, this source has {num_rows} different ones"
        )
    return built


def build_countdown(
    source: str | None = None,
    *,
    train_size: int = 2000,
    test_size: int = 512,
    seed: int = 0,
    template: str = "prose",
    revision: str | None = None,
    ops: str = "+-*/",
    data_source: str = "countdown",
    **settings: Any,
) -> Built:
    """Returns Countdown problems, generated or drawn from a source; by default in the published sizes.

    Args:
      source: Local file or folder, or hub id; generated if `None`.
      train_size: Number of training problems.
      test_size: Number of test problems.
      seed: Seed of the generator, or of the draw from the source.
      template: A key of `countdown.TEMPLATES`.
      revision: Revision of a hub data set.
      ops: Operators a solution may use.
      data_source: Name in the rows; verl logs accuracy by it, and it selects the grader.
      **settings: Further arguments of `countdown.generate`.
    """
    stated = {
        "train_size": train_size,
        "test_size": test_size,
        "seed": seed,
        "template": template,
        "ops": ops,
        "data_source": data_source,
    }
    if source is None:
        built = Built("countdown", settings=stated | settings)
        splits = generate_splits(train_size, test_size, seed=seed, ops=ops, **settings)
        for split, problems in zip(("train", "test"), splits, strict=True):
            options = {"template": template, "ops": ops, "data_source": data_source}
            parts = [countdown_row_parts(problem, **options) for problem in problems]
            rows = [make_row(**part, split=split, index=index) for index, part in enumerate(parts)]
            built.splits[split] = Prepared(rows, num_read=len(rows))
            built.provenance[split] = {"source": "generated", "revision": __version__}
        return built
    built = Built("countdown", settings=stated)
    convert = partial(countdown_parts, template=template, ops=ops, data_source=data_source)
    raw = read(source, "train", revision=revision)
    rng = random.Random(seed)
    rng.shuffle(raw.rows)
    del raw.rows[4 * (train_size + test_size) :]  # enough to find unique, solvable ones; proving takes time
    whole = prepare(raw, "train", convert)
    built.provenance["train"] = built.provenance["test"] = raw.provenance
    if len(whole.rows) < train_size + test_size:
        asked = f"{train_size} + {test_size} were asked for"
        built.faults.append(f"the source has {len(whole.rows)} usable problems, {asked}")
        test_size = min(test_size, len(whole.rows) // 5)
    test_rows, train_rows = whole.rows[:test_size], whole.rows[test_size : test_size + train_size]
    whole.rows = _renumbered(train_rows, "train")
    built.splits = {"train": whole, "test": Prepared(_renumbered(test_rows, "test"), num_read=test_size)}
    return built


def _read_splits(
    built: Built,
    convert: Convert,
    source: str,
    test_source: str | None,
    test_size: int | None,
    seed: int,
    revision: str | None,
) -> None:
    """Fills in train and test, and takes test prompts out of the training rows."""
    raw = read(source, "train", revision=revision)
    train = prepare(raw, "train", convert)
    path = Path(source)
    built.provenance["train"] = built.provenance["test"] = raw.provenance
    if test_source is None and (path.is_file() or (path.is_dir() and not files_of(path, "test"))):
        test = _hold_out(train, raw, test_size, seed)
        built.notes.append(f"one file for both splits: {len(test.rows)} rows held out as test set")
    else:
        raw = read(test_source or source, "test", revision=None if test_source else revision)
        test = prepare(raw, "test", convert)
        built.provenance["test"] = raw.provenance
    built.splits = {"train": train} | ({"test": test} if test.num_read else {})
    kept = [row for row in train.rows if normalise_prompt(row["prompt"]) not in test.prompts]
    if len(kept) < len(train.rows):
        built.notes.append(
            f"{len(train.rows) - len(kept)} training prompts left out: they are in the test set"
        )
        train.rows = _renumbered(kept, "train")


def _hold_out(train: Prepared, raw: RawRows, test_size: int | None, seed: int) -> Prepared:
    """Moves rows of one file to a test split: by the column `split` if it says so, else drawn by seed."""
    chosen = {
        number for number, row in raw.rows if str(row.get("split", "")).lower().startswith(("test", "val"))
    }
    if not chosen:
        num_test = test_size if test_size is not None else min(500, -(-len(train.rows) // 10))
        numbers = [row["extra_info"]["source_row"] for row in train.rows]
        chosen = set(random.Random(seed).sample(numbers, min(num_test, len(numbers))))
    rows = [row for row in train.rows if row["extra_info"]["source_row"] in chosen]
    train.rows = _renumbered([row for row in train.rows if row not in rows], "train")
    return Prepared(_renumbered(rows, "test"), num_read=len(rows))


def _renumbered(rows: list[dict[str, Any]], split: str) -> list[dict[str, Any]]:
    return [
        {**row, "extra_info": {**row["extra_info"], "split": split, "index": index}}
        for index, row in enumerate(rows)
    ]


def write(built: Built, out: str | Path, *, is_strict: bool = False) -> list[Path]:
    """Writes the splits and the sidecar file; returns their paths.

    Raises:
      DataError: If a split has no rows, if a gold answer is not graded right against itself, or if
        `is_strict` and a row or a split is faulty.
    """
    if is_strict and (built.problems or built.faults):
        what = "; ".join([*built.faults, *([f"{len(built.problems)} faulty rows"] if built.problems else [])])
        raise DataError(f"--strict: {what}; nothing was written")
    empty = [split for split, prepared in built.splits.items() if not prepared.rows]
    if empty or not built.splits:
        raise DataError(f"no usable rows for {', '.join(empty) or built.name}; nothing was written")
    for prepared in built.splits.values():
        num_equal = gold_against_gold(prepared.rows)
        if num_equal < len(prepared.rows):
            raise DataError(f"gold against gold is {num_equal} of {len(prepared.rows)}; nothing was written")
    out = Path(out)
    paths, files = [], {}
    for split, prepared in built.splits.items():
        path = out / f"{split}.parquet"
        write_split(prepared.rows, path)
        paths.append(path)
        files[path.name] = {
            "rows": len(prepared.rows),
            "sha256": sha256(path),
            "source": built.provenance[split],
            "num_read": prepared.num_read,
            "num_repeats": prepared.num_repeats,
            "faulty": [str(problem) for problem in prepared.problems],
            "corrected": [str(note) for note in prepared.notes],
        }
    sidecar = out / SIDECAR
    facts = {"dataset": built.name, "verl_sara": __version__, "settings": built.settings, "files": files}
    sidecar.write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return [*paths, sidecar]


def gold_against_gold(rows: Sequence[dict[str, Any]]) -> int:
    """Returns how many rows grade their own gold answer as right; a Countdown gold is solved for that."""
    num_equal = 0
    for row in rows:
        gold = row["reward_model"]["ground_truth"]
        answer = solve(gold["numbers"], gold["target"]) if isinstance(gold, dict) else f"\\boxed{{{gold}}}"
        num_equal += grader_for(row["data_source"])(answer or "", gold).acc
    return num_equal
