"""Reading raw rows: a local parquet, JSON or JSONL file, a folder of them, or a data set on the hub."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_sara.core import SaraError

from .rows import Problem

SUFFIXES = (".parquet", ".jsonl", ".json")


class SourceError(SaraError, OSError):
    """A source cannot be read: no such file, no network, or an unknown format."""


@dataclass
class RawRows:
    """Rows as they stand in a source.

    Attributes:
      name: What was read: the path, or hub id and split.
      rows: Row number (from 1) and content.
      problems: Rows that are not even a record.
      provenance: Source, revision and checksums, for the sidecar file.
    """

    name: str
    rows: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    provenance: dict[str, Any] = field(default_factory=dict)


def read(source: str, split: str | None, *, revision: str | None = None) -> RawRows:
    """Returns the rows of one split of a source.

    Args:
      source: An existing file, a folder that holds `<split>.parquet`, `<split>.jsonl` or `<split>-*.parquet`,
        or else the id of a hub data set.
      split: `train` or `test`; `None` for all. A single file is read whole, whatever the split.
      revision: Revision of a hub data set.

    Raises:
      SourceError: If there is no such source, or it cannot be read.
    """
    path = Path(source).expanduser()
    if path.exists():
        return _read_files(files_of(path, split), source)
    if path.suffix in SUFFIXES or source.startswith((".", "/", "~")) or source.count("/") > 1:
        raise SourceError(f"no such file or folder: {source}; allowed: {_allowed()}")
    return _read_hub(source, split, revision)


def _allowed() -> str:
    return (
        f"a local file ({', '.join(SUFFIXES)}), a folder with <split> files, or a hub id such as owner/name"
    )


def files_of(path: Path, split: str | None) -> list[Path]:
    """Returns the files of a split: the file itself, or those of a folder; `[]` if the folder has none."""
    if path.is_file():
        return [path]
    return sorted(
        file
        for folder in (path, path / "data")
        for pattern in ((f"{split}.*", f"{split}-*") if split else ("*",))
        for file in folder.glob(pattern)
        if file.suffix in SUFFIXES
    )


def _read_files(files: list[Path], source: str) -> RawRows:
    if not files:
        raise SourceError(f"folder {source} holds no file of this split; allowed: {_allowed()}")
    raw = RawRows(source, provenance={"source": source, "revision": None, "sha256": {}})
    for file in files:
        raw.provenance["sha256"][file.name] = sha256(file)
        first = len(raw.rows) + len(raw.problems)
        for number, row in numbered_rows(file):
            if isinstance(row, dict):
                raw.rows.append((first + number, row))
            else:
                raw.problems.append(Problem(str(file), number, str(row), "one JSON object a line"))
    return raw


def numbered_rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yields row number (from 1) and row of a file; in place of a row that is no record, what is wrong.

    Raises:
      SourceError: If the file as a whole cannot be read.
    """
    if file.suffix == ".parquet":
        yield from enumerate(_parquet_rows(file), start=1)
        return
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".json" and text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except ValueError as error:
            raise SourceError(f"{file} is not valid JSON: {error}") from error
        for number, row in enumerate(rows, start=1):
            yield number, row if isinstance(row, dict) else f"not an object: {str(row)[:60]!r}"
        return
    # "\n" alone ends a line: JSON text may hold U+2028 and other characters that `splitlines` breaks at.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            yield number, f"not JSON ({error})"
            continue
        yield number, row if isinstance(row, dict) else f"not an object: {line[:60]!r}"


def _parquet_rows(file: Path) -> Iterator[dict[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=1024):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise SourceError(f"{file} cannot be read as parquet: {error}") from error


def _read_hub(source: str, split: str | None, revision: str | None) -> RawRows:
    try:
        import datasets
    except ImportError as error:
        raise SourceError(
            f"reading the hub data set {source!r} needs the datasets library (pip install datasets); "
            "or pass --source with a local parquet or JSONL file"
        ) from error
    try:
        loaded = datasets.load_dataset(source, split=split, revision=revision)
    except Exception as error:  # the library raises a dozen kinds: connection, missing split, gated, offline
        reason = f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'no detail')}"
        raise SourceError(
            f"cannot read split {split or 'all'!r} of the hub data set {source!r} ({reason}). "
            "Without network, pass --source with a local parquet or JSONL file"
        ) from error
    parts = list(loaded.values()) if split is None else [loaded]
    checksums: dict[str, Any] = {}
    for part in parts:
        for url, info in (part.info.download_checksums or {}).items():
            checksums[url] = info.get("checksum")
    # The library resolves a revision to a commit and has it in the address: hf://datasets/owner/name@commit/file
    commit = next((url.partition("@")[2].partition("/")[0] for url in checksums if "@" in url), None)
    provenance = {"source": source, "split": split, "revision": commit or revision, "sha256": checksums}
    rows = [row for part in parts for row in part.to_list()]
    return RawRows(f"{source}:{split or 'all'}", list(enumerate(rows, start=1)), [], provenance)


def sha256(file: Path) -> str:
    """Returns the SHA-256 checksum of a file, as hex digits."""
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
