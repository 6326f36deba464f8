"""The record of what every rollout cost and what was decided: schema, writer, tolerant reader.

A run folder holds, per attempt n, `ledger.attempt-<n>.jsonl` (one line per group and one per step,
appended when the step ends, flushed) and `journal.attempt-<n>.jsonl` (the launches and results of
the step that is running, emptied when it ends). So a run that is killed loses no rollout: those in
the journal are read as lost ones. JSON lines, UTF-8, split on "\\n" only.

Invariant, in rollouts and in tokens, checked on write and on read:
launched = trained + saturated_trained + abandoned + undecided + surplus + failed + audit.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from verl_sara.core import Fate, Group, SaraError
from verl_sara.core.group import SlotStatus

SCHEMA_VERSION = 1
LEDGER_NAME = re.compile(r"ledger\.attempt-(\d+)\.jsonl")
Record = dict[str, Any]


class LedgerError(SaraError, ValueError):
    """A ledger that does not balance, or of a schema that this version cannot read."""


# ---- schema -----------------------------------------------------------------------------------


def group_record(group: Group, fate: Fate, *, step: int, prompt_tokens: int, times: Record) -> Record:
    """Returns the line of one closed group. `slots` are columns in launch order."""
    return {
        "kind": "group",
        "step": step,
        "index": group.index,
        "uid": group.uid,
        "prompt_id": group.prompt_id,
        "group_size": group.group_size,
        "prior": [group.prior.alpha, group.prior.beta],
        "n0": group.lengths.fail,
        "n1": group.lengths.passed,
        "slots": {
            "outcome": [None if slot.passed is None else int(slot.passed) for slot in group.slots],
            "tokens": [slot.num_tokens for slot in group.slots],
            "status": [slot.status.value for slot in group.slots],
            "round": [slot.round_index for slot in group.slots],
        },
        "prompt_tokens": prompt_tokens,
        "verdict": group.verdict.value,
        "reason": group.reason.value if group.reason else None,
        "verdict_length": group.verdict_length,
        "p_eff": group.p_eff_at_verdict,
        "fate": fate.value,
        "times": times,
    }


def balance(groups: Iterable[Record]) -> dict[str, dict[str, int]]:
    """Returns {fate: {"groups", "rollouts", "tokens"}} with every fate present, plus "launched".

    Groups without a rollout (registered, never started) count nowhere.
    """
    totals = {name: {"groups": 0, "rollouts": 0, "tokens": 0} for name in (*(f.value for f in Fate), "launched")}
    for record in groups:
        tokens = record["slots"]["tokens"]
        if not tokens:
            continue
        for name in (record["fate"], "launched"):
            totals[name]["groups"] += 1
            totals[name]["rollouts"] += len(tokens)
            totals[name]["tokens"] += sum(tokens)
    return totals


def check_balance(totals: dict[str, dict[str, int]], rollouts: int, where: str) -> None:
    """Raises LedgerError unless the fates add up to the `rollouts` that were launched."""
    for unit in ("groups", "rollouts", "tokens"):
        fates = sum(totals[fate.value][unit] for fate in Fate)
        if fates != totals["launched"][unit]:
            raise LedgerError(f"{where}: fates hold {fates} {unit}, launched {totals['launched'][unit]}")
    if totals["launched"]["rollouts"] != rollouts:
        raise LedgerError(f"{where}: groups hold {totals['launched']['rollouts']} rollouts, launched {rollouts}")


# ---- writer -----------------------------------------------------------------------------------


class LedgerWriter:
    """Appends to the ledger of one attempt. Not for use by two processes at once.

    Args:
      folder: Run folder, made if absent.
      run: Name of the run, in every line.
      header: Options of the run, written once as the line of kind "run".

    Raises:
      OSError: If the folder cannot be written; the message names the path.
    """

    def __init__(self, folder: str | os.PathLike[str], run: str, header: Record) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.run = run
        self.attempt, self._ledger = self._open_next_attempt()
        self.path = Path(self._ledger.name)
        self._journal = open(self.folder / f"journal.attempt-{self.attempt}.jsonl", "a+", encoding="utf-8")
        self._append([{"kind": "run", **header}])

    def _open_next_attempt(self) -> tuple[int, IO[str]]:
        attempt = max(list(attempts(self.folder)), default=0) + 1
        while True:
            try:
                path = self.folder / f"ledger.attempt-{attempt}.jsonl"
                return attempt, open(path, "x", encoding="utf-8")
            except FileExistsError:
                attempt += 1

    def launched(self, step: int, uid: str, slots: Sequence[int]) -> None:
        """Notes rollouts that are about to run."""
        self._note({"step": step, "uid": uid, "launched": list(slots)})

    def returned(self, step: int, uid: str, slot: int, tokens: int, status: SlotStatus) -> None:
        """Notes one rollout that came back."""
        self._note({"step": step, "uid": uid, "slot": slot, "tokens": tokens, "status": status.value})

    def write_step(self, groups: Sequence[Record], step: Record, num_launched: int) -> Record:
        """Writes the lines of a finished step and empties the journal.

        Args:
          groups: From `group_record`, in dispatch order.
          step: Numbers of the step, at least "step".
          num_launched: Rollouts the allocator granted, counted apart from the groups.

        Returns:
          The step's line, with its totals by fate under "fates".

        Raises:
          LedgerError: If the invariant does not hold; nothing is written then.
        """
        totals = balance(groups)
        check_balance(totals, num_launched, f"step {step['step']}")
        line = {"kind": "step", **step, "fates": totals}
        self._append([*groups, line])
        self._journal.seek(0)
        self._journal.truncate()
        return line

    def close(self) -> None:
        """Closes the files; what was written is safe without it."""
        self._ledger.close()
        self._journal.close()

    def _append(self, records: Iterable[Record]) -> None:
        common = {"schema": SCHEMA_VERSION, "run": self.run, "attempt": self.attempt}
        text = "".join(json.dumps({**common, **r}, separators=(",", ":")) + "\n" for r in records)
        self._ledger.write(text)
        self._ledger.flush()
        os.fsync(self._ledger.fileno())

    def _note(self, record: Record) -> None:
        self._journal.write(json.dumps(record, separators=(",", ":")) + "\n")
        self._journal.flush()


# ---- reader -----------------------------------------------------------------------------------


@dataclass
class Ledger:
    """Everything a run folder holds.

    Attributes:
      runs: The header line of every attempt.
      groups: Group lines of finished steps, all attempts.
      steps: Step lines, all attempts.
      lost_rollouts: Rollouts launched in steps that never finished (killed attempts).
      lost_tokens: Tokens of those that had returned.
      problems: What was skipped or looks wrong, one sentence each.
    """

    runs: list[Record] = field(default_factory=list)
    groups: list[Record] = field(default_factory=list)
    steps: list[Record] = field(default_factory=list)
    lost_rollouts: int = 0
    lost_tokens: int = 0
    problems: list[str] = field(default_factory=list)

    def history(self) -> list[Record]:
        """Returns one step line per step, of its last attempt, ordered: for curves, not for cost."""
        last: dict[int, Record] = {}
        for step in self.steps:
            if step["step"] not in last or step["attempt"] >= last[step["step"]]["attempt"]:
                last[step["step"]] = step
        return [last[number] for number in sorted(last)]


def attempts(folder: str | os.PathLike[str]) -> Iterator[int]:
    """Yields the attempt numbers that a run folder holds ledgers of."""
    for entry in Path(folder).iterdir():
        if match := LEDGER_NAME.fullmatch(entry.name):
            yield int(match.group(1))


def read_ledger(folder: str | os.PathLike[str]) -> Ledger:
    """Reads all attempts of a run folder, finished or not.

    Torn lines, foreign lines and unfinished steps are skipped and told in `problems`; the rollouts of
    unfinished steps are counted as lost.

    Raises:
      LedgerError: If there is no ledger, its schema is unknown, or a finished step does not balance.
    """
    ledger, numbers = Ledger(), sorted(attempts(folder)) if Path(folder).is_dir() else []
    if not numbers:
        raise LedgerError(f"no ledger in {folder}: expected files named ledger.attempt-<n>.jsonl")
    for attempt in numbers:
        path = Path(folder) / f"ledger.attempt-{attempt}.jsonl"
        _read_attempt(path, ledger)
        _read_journal(path.with_name(f"journal.attempt-{attempt}.jsonl"), attempt, ledger)
    history = ledger.history()
    if history and history[0]["step"] != 1:
        ledger.problems.append(f"the history begins at step {history[0]['step']}, not 1")
    return ledger


def parse_lines(text: str, where: str, problems: list[str]) -> Iterator[Record]:
    """Yields the JSON objects of a JSONL text; glued records are split, broken ones told."""
    decoder = json.JSONDecoder()
    for number, line in enumerate(text.split("\n"), start=1):
        rest = line.strip(" \t\r\x00")
        while rest:
            try:
                record, end = decoder.raw_decode(rest)
            except (json.JSONDecodeError, RecursionError):
                problems.append(f"{where}:{number}: not JSON, skipped: {rest[:40]!r}")
                break
            rest = rest[end:].strip(" \t\r\x00")
            if isinstance(record, dict):
                yield record
            else:
                problems.append(f"{where}:{number}: not an object, skipped: {str(record)[:40]!r}")


def _read_attempt(path: Path, ledger: Ledger) -> None:
    pending: list[Record] = []
    text = path.read_text(encoding="utf-8", errors="replace")
    for record in parse_lines(text, path.name, ledger.problems):
        if record.get("schema") != SCHEMA_VERSION:
            raise LedgerError(f"{path}: schema {record.get('schema')!r}; this version reads {SCHEMA_VERSION}")
        kind = record.get("kind")
        try:
            if kind == "run":
                ledger.runs.append(record)
            elif kind == "group":
                _check_group(record)
                pending.append(record)
            elif kind == "step":
                own = [g for g in pending if g["step"] == record["step"]]
                check_balance(balance(own), record["fates"]["launched"]["rollouts"], f"{path.name} step {record['step']}")
                ledger.groups += own
                ledger.steps.append(record)
                pending = []
            else:
                ledger.problems.append(f"{path.name}: line of unknown kind {kind!r} skipped")
        except (KeyError, TypeError) as error:
            ledger.problems.append(f"{path.name}: {kind} line skipped, lacks or misuses {error}")
    if pending:
        ledger.problems.append(f"{path.name}: step {pending[-1]['step']} was not finished")


def _check_group(record: Record) -> None:
    slots = record["slots"]
    lengths = {len(slots[name]) for name in ("outcome", "tokens", "status", "round")}
    if len(lengths) != 1:
        raise KeyError("slots of equal length")
    Fate(record["fate"])
    int(record["step"]) + sum(slots["tokens"])


def _read_journal(path: Path, attempt: int, ledger: Ledger) -> None:
    if not path.is_file():
        return
    finished = {step["step"] for step in ledger.steps if step["attempt"] == attempt}
    before = ledger.lost_rollouts
    text = path.read_text(encoding="utf-8", errors="replace")
    for note in parse_lines(text, path.name, ledger.problems):
        if note.get("step") not in finished:
            ledger.lost_rollouts += len(note.get("launched", ()))
            ledger.lost_tokens += note.get("tokens", 0)
    if ledger.lost_rollouts > before:
        ledger.problems.append(
            f"attempt {attempt} ended within a step: {ledger.lost_rollouts - before} rollouts are counted as lost"
        )
