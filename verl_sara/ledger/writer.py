"""Appends to the ledger of one attempt."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO

try:  # verl brings it; several times as fast
    from orjson import dumps as _dumps
except ImportError:
    _dumps = None

from verl_sara.core.group import SlotStatus
from verl_sara.ledger.schema import SCHEMA_VERSION, Record, attempts, balance, check_balance

_encode_any = json.JSONEncoder(separators=(",", ":")).encode


def _encode(record: Record) -> str:
    """Returns a record as one line of JSON."""
    if _dumps is not None:
        try:
            return str(_dumps(record), "utf-8")
        except TypeError:  # what orjson refuses: lone surrogates, integers beyond 64 bits
            pass
    return _encode_any(record)


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
        self._journal = open(self.folder / f"journal.attempt-{self.attempt}.jsonl", "a+", encoding="utf-8")  # noqa: SIM115
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
        """Notes rollouts that are about to run; safe after the next `flush`."""
        self._note({"step": step, "uid": uid, "launched": list(slots)})

    def returned(self, step: int, uid: str, slot: int, tokens: int, status: SlotStatus) -> None:
        """Notes one rollout that came back; safe after the next `flush`."""
        self._note({"step": step, "uid": uid, "slot": slot, "tokens": tokens, "status": status.value})

    def flush(self) -> None:
        """Hands what was noted to the operating system: it survives the end of this process."""
        self._journal.flush()

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
        text = "".join(_encode({**common, **r}) + "\n" for r in records)
        self._ledger.write(text)
        self._ledger.flush()
        os.fsync(self._ledger.fileno())

    def _note(self, record: Record) -> None:
        self._journal.write(_encode(record) + "\n")
