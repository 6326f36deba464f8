"""The record of what every rollout cost and what was decided: schema, writer, tolerant reader.

A run folder holds, per attempt n, `ledger.attempt-<n>.jsonl` (one line per group and one per step,
appended when the step ends, flushed) and `journal.attempt-<n>.jsonl` (the launches and results of
the step that is running, emptied when it ends). So a run that is killed loses no rollout: those in
the journal are read as lost ones. JSON lines, UTF-8, split on "\\n" only.

Invariant, in rollouts and in tokens, checked on write and on read:
launched = trained + saturated_trained + abandoned + undecided + surplus + failed + audit.

- schema: the lines and their invariant
- writer: what the coordinator appends to
- lines: JSON lines as they are found in practice
- reader: a run folder as one history
"""

from verl_sara.ledger.lines import Problems, open_lines, parse_lines
from verl_sara.ledger.reader import Ledger, ledger_folder, read_ledger
from verl_sara.ledger.schema import (
    SCHEMA_VERSION,
    LedgerError,
    Record,
    attempts,
    balance,
    check_balance,
    group_record,
)
from verl_sara.ledger.writer import LedgerWriter

__all__ = [
    "SCHEMA_VERSION",
    "Ledger",
    "LedgerError",
    "LedgerWriter",
    "Problems",
    "Record",
    "attempts",
    "balance",
    "check_balance",
    "group_record",
    "ledger_folder",
    "open_lines",
    "parse_lines",
    "read_ledger",
]
