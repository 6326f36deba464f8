"""Reads a run folder as one history: all attempts, finished or killed."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from operator import itemgetter
from pathlib import Path

from verl_sara.core import Fate, Verdict
from verl_sara.ledger.lines import Problems, open_lines, parse_lines
from verl_sara.ledger.schema import SCHEMA_VERSION, LedgerError, Record, attempts, balance, check_balance

_COLUMNS = ("outcome", "tokens", "status", "round")
_COUNTS = ("step", "index", "group_size", "n0", "n1")
_FATES = frozenset(fate.value for fate in Fate)
_VERDICTS = frozenset(verdict.value for verdict in Verdict)
_UNSOUND = (KeyError, TypeError, ValueError)


@dataclass
class Ledger:
    """Everything a run folder holds.

    Attributes:
      runs: The header line of every attempt.
      groups: Group lines of finished steps, all attempts; empty if they were handed to `on_group`.
      steps: Step lines, all attempts.
      lost: Rollouts and tokens per step that were launched in steps that never finished.
      problems: What was skipped or looks wrong, one sentence per kind.
      unbalanced: Finished steps whose lines break the invariant, one sentence each.
    """

    runs: list[Record] = field(default_factory=list)
    groups: list[Record] = field(default_factory=list)
    steps: list[Record] = field(default_factory=list)
    lost: dict[int, dict[str, int]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    unbalanced: list[str] = field(default_factory=list)

    @property
    def lost_rollouts(self) -> int:
        """Rollouts launched in steps that never finished (killed attempts, or a run in progress)."""
        return sum(counts["rollouts"] for counts in self.lost.values())

    @property
    def lost_tokens(self) -> int:
        """Tokens of the lost rollouts that had returned."""
        return sum(counts["tokens"] for counts in self.lost.values())

    def history(self) -> list[Record]:
        """Returns one step line per step, ordered: for curves, not for cost.

        A later attempt undoes what earlier ones did from its own first step on.
        """
        kept: dict[int, Record] = {}
        for attempt in sorted({step["attempt"] for step in self.steps}):
            own = {step["step"]: step for step in self.steps if step["attempt"] == attempt}
            kept = {number: step for number, step in kept.items() if number < min(own)} | own
        return [kept[number] for number in sorted(kept)]


def ledger_folder(run_dir: str | os.PathLike[str]) -> Path:
    """Returns the folder of the ledger: `run_dir` itself or its subfolder `sara`.

    Raises:
      LedgerError: If neither holds one.
    """
    for folder in (Path(run_dir), Path(run_dir) / "sara"):
        if folder.is_dir() and any(attempts(folder)):
            return folder
    raise LedgerError(
        f"no ledger in {run_dir} or {Path(run_dir) / 'sara'}: expected files named ledger.attempt-<n>.jsonl"
    )


def read_ledger(
    folder: str | os.PathLike[str],
    *,
    on_group: Callable[[Record], None] | None = None,
    is_strict: bool = True,
) -> Ledger:
    """Reads all attempts of a run folder, finished or not.

    Torn, foreign and incomplete lines are skipped and counted in `problems`; the rollouts of
    unfinished steps are counted as lost.

    Args:
      folder: Run folder, or the folder of the ledger within it.
      on_group: Takes the group lines of finished steps, one by one, instead of `Ledger.groups`, so
        that memory does not grow with the ledger.
      is_strict: Whether a finished step that does not balance raises; else it is told in `unbalanced`.

    Raises:
      LedgerError: If there is no ledger, nothing in it is one, its schema is of another version, or a
        finished step does not balance.
    """
    folder = ledger_folder(folder)
    ledger, problems = Ledger(), Problems()
    for attempt in sorted(attempts(folder)):
        path = folder / f"ledger.attempt-{attempt}.jsonl"
        reader = _AttemptReader(path, attempt, ledger, problems, on_group or ledger.groups.append, is_strict)
        reader.read()
        reader.read_journal(folder / f"journal.attempt-{attempt}.jsonl")
    if not (ledger.runs or ledger.steps or ledger.lost):
        found = "; ".join(problems.sentences()) or "the files are empty"
        raise LedgerError(f"no line of a ledger in {folder}: {found}")
    history = ledger.history()
    if history and history[0]["step"] != 1:
        problems.add(f"the history begins at step {history[0]['step']}, not 1", str(folder))
    ledger.problems = problems.sentences()
    return ledger


class _AttemptReader:
    """Reads one attempt into a Ledger."""

    def __init__(
        self,
        path: Path,
        attempt: int,
        ledger: Ledger,
        problems: Problems,
        on_group: Callable[[Record], None],
        is_strict: bool,
    ) -> None:
        self.path, self.attempt, self.ledger, self.problems = path, attempt, ledger, problems
        self.on_group, self.is_strict = on_group, is_strict
        self.pending: list[tuple[int, Record]] = []
        self.finished: set[int] = set()
        self.unfinished: dict[int, dict[str, int]] = {}

    def read(self) -> None:
        """Reads the ledger of the attempt. Groups wait for their step's line and are checked together."""
        with open_lines(self.path) as lines:
            for number, record in parse_lines(lines, self.path.name, self.problems):
                if record.get("kind") == "group" and record.get("schema") == SCHEMA_VERSION:
                    self.pending.append((number, record))
                else:
                    self._take(record, number)
        self._drop_pending(self._sound_groups())

    def _take(self, record: Record, number: int) -> None:
        where = f"{self.path.name}:{number}"
        if "schema" not in record or "kind" not in record:
            self.problems.add("line of something else, skipped", where)
            return
        if record["schema"] != SCHEMA_VERSION:
            found = record["schema"]
            raise LedgerError(f"{self.path}:{number}: schema {found!r}; this version reads {SCHEMA_VERSION}")
        kind = record["kind"]
        record["attempt"] = self.attempt
        try:
            if kind == "run":
                if not all(isinstance(record.get(name, {}), dict) for name in ("options", "task", "setup")):
                    raise ValueError("options, task or setup")
                self.ledger.runs.append(record)
            elif kind == "step":
                self._end_step(record)
            else:
                self.problems.add(f"line of unknown kind {kind!r}, skipped", where)
        except _UNSOUND as error:
            if isinstance(error, LedgerError):
                raise
            self.problems.add(f"{kind} line that lacks or misuses {error}, skipped", where)

    def _sound_groups(self) -> list[Record]:
        """Empties `pending` and returns its groups whose columns can be relied on."""
        pending, self.pending = self.pending, []
        groups = [record for _, record in pending]
        try:
            check_groups(groups)
        except _UNSOUND:
            groups = [record for number, record in pending if self._is_sound(record, number)]
        for group in groups:
            group["attempt"] = self.attempt
        return groups

    def _is_sound(self, record: Record, number: int) -> bool:
        try:
            check_groups([record])
        except _UNSOUND as error:
            self.problems.add(f"group line that lacks or misuses {error}, skipped", f"{self.path.name}:{number}")
            return False
        return True

    def _end_step(self, record: Record) -> None:
        number = record["step"]
        if type(number) is not int:
            raise ValueError("step")
        launched = record["fates"]["launched"]["rollouts"]
        groups = self._sound_groups()
        own = [group for group in groups if group["step"] == number]
        try:
            check_balance(balance(own), launched, f"{self.path.name} step {number}")
            check_balance(record["fates"], launched, f"{self.path.name} line of step {number}")
        except LedgerError as error:
            if self.is_strict:
                raise
            self.ledger.unbalanced.append(str(error))
        if number in self.finished:
            self.problems.add("step written twice in one attempt", f"{self.path.name} step {number}")
        if len(own) < len(groups):
            self._drop_pending([group for group in groups if group["step"] != number])
        for group in own:
            self.on_group(group)
        self.ledger.steps.append(record)
        self.finished.add(number)

    def _drop_pending(self, groups: list[Record]) -> None:
        """Groups without a step line: their step was cut off while it was written."""
        for group in groups:
            _count(self.unfinished, group["step"], len(group["slots"]["tokens"]), sum(group["slots"]["tokens"]))

    def read_journal(self, path: Path) -> None:
        """Counts what was launched in steps that never finished, from the journal or the cut-off lines."""
        launched: dict[int, dict[str, int]] = {}
        if path.is_file():
            with open_lines(path) as lines:
                for _, note in parse_lines(lines, path.name, self.problems):
                    try:
                        _count(launched, int(note["step"]), len(note.get("launched", ())), note.get("tokens", 0))
                    except _UNSOUND as error:
                        self.problems.add(f"note that lacks or misuses {error}, skipped", path.name)
        for step in sorted((self.unfinished.keys() | launched.keys()) - self.finished):
            counts = max(
                (source.get(step, {"rollouts": 0, "tokens": 0}) for source in (self.unfinished, launched)),
                key=lambda counts: counts["rollouts"],
            )
            if counts["rollouts"]:
                _count(self.ledger.lost, step, counts["rollouts"], counts["tokens"])
                self.problems.add(
                    "step that was not finished (cut off or still running): its rollouts are counted as lost",
                    f"{self.path.name} step {step}, {counts['rollouts']} rollouts",
                )


def _count(totals: dict[int, dict[str, int]], step: int, rollouts: int, tokens: int) -> None:
    counts = totals.setdefault(step, {"rollouts": 0, "tokens": 0})
    counts["rollouts"] += rollouts
    counts["tokens"] += tokens


def check_groups(groups: Sequence[Record]) -> None:
    """Raises KeyError, TypeError or ValueError unless the columns of every group can be relied on.

    All groups are looked at together, column by column, which is several times as fast as one by one.
    """
    slots = list(map(itemgetter("slots"), groups))
    outcomes, tokens, *others = (list(map(itemgetter(name), slots)) for name in _COLUMNS)
    lengths = list(map(len, tokens))
    if any(list(map(len, column)) != lengths for column in (outcomes, *others)):
        raise ValueError("slots of equal length")
    counts = list(chain.from_iterable(tokens))
    if not set(map(type, counts)) <= {int} or min(counts, default=0) < 0:
        raise ValueError("slots.tokens, counts >= 0")
    if not set(chain.from_iterable(outcomes)) <= {0, 1, None}:
        raise ValueError("slots.outcome of 0, 1, null")
    for name, allowed in (("verdict", _VERDICTS), ("fate", _FATES)):
        if not set(map(itemgetter(name), groups)) <= allowed:
            raise ValueError("verdict or fate")
    for name in _COUNTS:
        if not set(map(type, map(itemgetter(name), groups))) <= {int}:
            raise ValueError(name)
    priors = list(map(itemgetter("prior"), groups))
    if not set(map(len, priors)) <= {2} or not min(chain.from_iterable(priors), default=1) > 0:
        raise ValueError("prior, two numbers > 0")
    set(map(itemgetter("prompt_id"), groups))
