"""The lines of a ledger: how a group becomes one, and the invariant that they keep."""

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from verl_sara.core import Fate, Group, SaraError

SCHEMA_VERSION = 1
LEDGER_NAME = re.compile(r"ledger\.attempt-(\d+)\.jsonl")
Record = dict[str, Any]
_FATES = tuple(fate.value for fate in Fate)
_UNITS = ("groups", "rollouts", "tokens")


class LedgerError(SaraError, ValueError):
    """A ledger that does not balance, or of a schema that this version cannot read."""


def attempts(folder: str | os.PathLike[str]) -> Iterator[int]:
    """Yields the attempt numbers that a run folder holds ledgers of."""
    for entry in Path(folder).iterdir():
        if match := LEDGER_NAME.fullmatch(entry.name):
            yield int(match.group(1))


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
    cells = {fate: [0, 0, 0] for fate in _FATES}
    for record in groups:
        if tokens := record["slots"]["tokens"]:
            cell = cells[record["fate"]]
            cell[0] += 1
            cell[1] += len(tokens)
            cell[2] += sum(tokens)
    cells["launched"] = [sum(column) for column in zip(*cells.values(), strict=True)]
    return {name: dict(zip(_UNITS, cell, strict=True)) for name, cell in cells.items()}


def check_balance(totals: dict[str, dict[str, int]], rollouts: int, where: str) -> None:
    """Raises LedgerError unless the fates add up to the `rollouts` that were launched."""
    for unit in _UNITS:
        fates = sum(totals[fate][unit] for fate in _FATES)
        if fates != totals["launched"][unit]:
            raise LedgerError(f"{where}: fates hold {fates} {unit}, launched {totals['launched'][unit]}")
    if totals["launched"]["rollouts"] != rollouts:
        raise LedgerError(f"{where}: groups hold {totals['launched']['rollouts']} rollouts, launched {rollouts}")
