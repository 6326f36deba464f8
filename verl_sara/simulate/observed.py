"""A user's own rollouts, read from a ledger, from verl's rollout dump or from plain JSON lines."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_sara.core import ConfigError
from verl_sara.ledger import LedgerError, Problems, ledger_folder, open_lines, parse_lines, read_ledger

VERL_KEY = re.compile(r"(.+)_\d+_\d+")
"""uid of a dumped row: group, session, index."""

PROMPT_FIELDS = ("prompt_id", "input", "prompt")
OUTCOME_FIELDS = ("correct", "is_correct", "acc", "score", "reward")
LENGTH_FIELDS = ("num_tokens", "response_length", "tokens", "length")
TEXT_FIELDS = ("output", "response")


@dataclass
class ObservedGroup:
    """The rollouts of one prompt in one step.

    Attributes:
      prompt_id: Identity of the prompt across steps.
      outcomes: Passes and fails; of a group that was abandoned, those of its prefix.
      lengths: Length of each rollout, 0 where unknown.
      step: Step in which they were generated, None where unknown.
    """

    prompt_id: str
    outcomes: list[bool] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    step: int | str | None = None


@dataclass
class Observed:
    """What a file or folder holds.

    Attributes:
      groups: Groups of at least two rollouts, in the order of the steps.
      group_size: k of the run: the largest group, or what the ledger says.
      batch_size: B of the run: what the ledger says, else the median number of groups per step; None if unknown.
      length_unit: "tokens", "characters", or "" where lengths are unknown.
      is_censored: Whether some groups were abandoned before they were full.
      problems: What was skipped, one sentence per kind.
    """

    groups: list[ObservedGroup]
    group_size: int
    batch_size: int | None
    length_unit: str
    is_censored: bool
    problems: list[str]


def read_observed(path: str | os.PathLike[str], *, success_threshold: float | None = None) -> Observed:
    """Reads a run folder with a ledger, a folder or file of dumped rollouts, or JSON lines.

    Plain lines need a prompt (`prompt_id`, `input` or `prompt`, or the `uid` of the group), an outcome (`correct`,
    `is_correct`, `acc`, `score` or `reward`) and, for tokens and wall-clock, a length (`num_tokens`,
    `response_length`, `tokens`, `length`, else the text in `output` or `response`).

    Args:
      path: File or folder.
      success_threshold: An outcome of at least this passes; None = outcomes have to be binary.

    Raises:
      ConfigError: If there is nothing to read, outcomes are not binary, or no group has two rollouts.
    """
    source = Path(path)
    if not source.exists():
        raise ConfigError(f"{path} does not exist; allowed: a run folder, a folder of dumped rollouts, or a file")
    problems = Problems()
    if source.is_dir():
        try:
            folder = ledger_folder(source)
        except LedgerError:
            rows = _rows(sorted(source.glob("*.jsonl"), key=_step_of), problems)
            observed = _from_rows(rows, problems, success_threshold)
        else:
            ledger = read_ledger(folder, is_strict=False)
            observed = _from_ledger([*ledger.runs, *ledger.groups], problems)
    else:
        rows = list(_rows([source], problems))
        is_ledger = any("slots" in row for _, row in rows)
        records = (row for _, row in rows)
        observed = _from_ledger(records, problems) if is_ledger else _from_rows(rows, problems, success_threshold)
    if not observed.groups:
        told = "; ".join(observed.problems) or "no lines were found"
        raise ConfigError(f"no group of two rollouts in {path}: {told}")
    return observed


def _step_of(path: Path) -> tuple[int, str]:
    return (int(path.stem), "") if path.stem.isdigit() else (-1, path.stem)


def _rows(paths: Iterable[Path], problems: Problems) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for path in paths:
        with open_lines(path) as lines:
            for number, row in parse_lines(lines, path.name, problems):
                yield f"{path.name}:{number}", row


def _from_ledger(records: Iterable[Mapping[str, Any]], problems: Problems) -> Observed:
    groups, group_size, batch_size, is_censored = [], 0, None, False
    for record in records:
        if record.get("kind") == "run":
            batch_size = record.get("options", {}).get("batch_size", batch_size)
        if record.get("kind") != "group":
            continue
        slots, group_size = record["slots"], max(group_size, record["group_size"])
        outcomes = slots["outcome"]
        if None in outcomes:
            problems.add("group with a failed rollout, left out", str(record["uid"]))
        elif len(outcomes) >= 2:
            is_censored |= len(outcomes) < record["group_size"]
            passes, lengths = [bool(outcome) for outcome in outcomes], list(slots["tokens"])
            groups.append(ObservedGroup(record["prompt_id"], passes, lengths, record["step"]))
    return Observed(groups, group_size, batch_size, "tokens", is_censored, problems.sentences())


def _from_rows(
    rows: Iterable[tuple[str, Mapping[str, Any]]], problems: Problems, success_threshold: float | None
) -> Observed:
    groups: dict[tuple[Any, str], ObservedGroup] = {}
    units = set()
    for where, row in rows:
        uid, outcome = str(row.get("uid", "")), _first(row, OUTCOME_FIELDS)
        if uid.startswith("pad"):
            problems.add("padding row, left out", where)
            continue
        match = VERL_KEY.fullmatch(uid)
        group_uid = match[1] if match else uid
        prompt = _first(row, PROMPT_FIELDS) or group_uid
        if not prompt or outcome is None:
            problems.add("row without prompt or outcome, skipped", where)
            continue
        passed = _passed(outcome, success_threshold, where)
        length, unit = _length(row)
        units.add(unit)
        step = row.get("step")
        group = groups.setdefault((step, group_uid or str(prompt)), ObservedGroup(str(prompt), step=step))
        group.outcomes.append(passed)
        group.lengths.append(length)
    full = [group for group in groups.values() if len(group.outcomes) >= 2]
    if len(full) < len(groups):
        problems.add("group of a single rollout, left out", count=len(groups) - len(full))
    per_step: dict[Any, int] = {}
    for step, _ in groups:
        per_step[step] = per_step.get(step, 0) + (step is not None)
    unit = units.pop() if len(units) == 1 else ""
    size = max((len(group.outcomes) for group in full), default=0)
    return Observed(full, size, _median(per_step.values()) or None, unit, False, problems.sentences())


def _first(row: Mapping[str, Any], names: Iterable[str]) -> Any:
    return next((row[name] for name in names if row.get(name) is not None), None)


def _passed(outcome: Any, success_threshold: float | None, where: str) -> bool:
    if isinstance(outcome, (bool, int, float)):
        if success_threshold is not None:
            return float(outcome) >= success_threshold
        if outcome in (0, 1, -1):
            return outcome == 1
    raise ConfigError(
        f"{where}: outcome {outcome!r} is not binary; allowed: true and false, 0 and 1, -1 and 1, or set a threshold"
    )


def _length(row: Mapping[str, Any]) -> tuple[int, str]:
    number = _first(row, LENGTH_FIELDS)
    if isinstance(number, (int, float)) and number >= 0:
        return int(number), "tokens"
    text = _first(row, TEXT_FIELDS)
    return (len(text), "characters") if isinstance(text, str) else (0, "")


def _median(counts: Iterable[int]) -> int | None:
    ordered = sorted(counts)
    return ordered[len(ordered) // 2] if ordered else None
