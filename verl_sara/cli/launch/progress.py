"""How far a run folder is: the attempts, the step, and what the ledger says of the savings."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_sara.ledger import LedgerError, attempts, ledger_folder, read_ledger


def next_attempt(run: Path) -> int:
    """Returns the number that the ledger of the next start gets, from 1; logs share it."""
    folder = run / "sara"
    return 1 + (max(attempts(folder), default=0) if folder.is_dir() else 0)


def last_step(run: Path) -> int:
    """Returns the last finished step in the ledger of a run, 0 if there is none."""
    try:
        history = read_ledger(run, on_group=lambda group: None, is_strict=False).history()
    except LedgerError:
        return 0
    return int(history[-1]["step"]) if history else 0


def checkpoint_step(run: Path) -> int:
    """Returns the step of the last checkpoint of verl in a run folder, 0 if there is none."""
    try:
        return int((run / "latest_checkpointed_iteration.txt").read_text())
    except (OSError, ValueError):
        return 0


def check_finished(run: Path, attempt: int, steps: int | None) -> str:
    """Returns one sentence on an attempt that ended without an error.

    Args:
      run: Run folder.
      attempt: Number of the attempt.
      steps: The step that had to be reached; None = any.

    Raises:
      LedgerError: If the attempt has no step, ends before `steps`, or does not balance.
    """
    ledger = read_ledger(run, on_group=lambda group: None)
    own = [step for step in ledger.steps if step["attempt"] == attempt]
    if not own:
        raise LedgerError(f"{run}: attempt {attempt} ended without an error, but its ledger has no step")
    reached = own[-1]["step"]
    if steps is not None and reached < steps:
        raise LedgerError(f"{run}: attempt {attempt} ended without an error at step {reached} of {steps}")
    rollouts = sum(step["fates"]["launched"]["rollouts"] for step in own)
    return f"attempt {attempt}: steps {own[0]['step']} to {reached}, {rollouts} rollouts, the ledger balances"


@dataclass(frozen=True, slots=True)
class Progress:
    """A run folder at a glance.

    Attributes:
      run: The folder.
      step: Last finished step; 0 = none.
      steps: The step that ends the run; None = not known.
      checkpoint: Step of the last checkpoint; 0 = none.
      attempt: Last attempt; 0 = none.
      rollouts: Rollouts launched so far, those of unfinished steps included.
      lost: Those of them that belong to steps that never finished.
      saved: Rollouts saved against ideal dynamic sampling on the same prompts, estimated bounds as
        (low, high) shares; None = not known.
      note: What is wrong, empty if nothing is.
    """

    run: Path
    step: int = 0
    steps: int | None = None
    checkpoint: int = 0
    attempt: int = 0
    rollouts: int = 0
    lost: int = 0
    saved: tuple[float, float] | None = None
    note: str = ""


def progress(run: Path, *, steps: int | None = None) -> Progress:
    """Returns the progress of a run folder, finished or not."""
    from verl_sara.summary import summarise

    try:
        ledger = read_ledger(run, on_group=lambda group: None, is_strict=False)
    except LedgerError as error:
        return Progress(run, steps=steps, checkpoint=checkpoint_step(run), note=str(error))
    history = ledger.history()
    launched = sum(step["fates"]["launched"]["rollouts"] for step in ledger.steps)
    return Progress(
        run,
        step=history[-1]["step"] if history else 0,
        steps=steps,
        checkpoint=checkpoint_step(run),
        attempt=max(attempts(ledger_folder(run))),
        rollouts=launched + ledger.lost_rollouts,
        lost=ledger.lost_rollouts,
        saved=_saved(summarise({"run": run})) if history else None,
        note="; ".join(ledger.unbalanced),
    )


def _saved(summary: Mapping[str, Any]) -> tuple[float, float] | None:
    found = (
        summary["savings"].get("run", {}).get("counterfactual", {}).get("ideal_ds", {}).get("rollouts", {})
    )
    low, high = found.get("bounds") or (None, None)
    return None if low is None or high is None else (float(low), float(high))


def runs_below(folder: str | os.PathLike[str]) -> list[Path]:
    """Returns the run folders in a folder: itself, or those below it, in order of their names."""
    ledgers = sorted({path.parent for path in Path(folder).rglob("ledger.attempt-*.jsonl")})
    return [path.parent if path.name == "sara" else path for path in ledgers]
