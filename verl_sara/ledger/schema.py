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
