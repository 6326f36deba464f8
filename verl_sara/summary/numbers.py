"""The numbers of one arm, as they stand in summary.json."""

import math
import os
from typing import Any

from verl_sara.metrics import (
    cost_per_effective_group,
    effective_groups,
    groups_trained,
    ratio,
)
from verl_sara.summary.arm import Arm, read_arm
from verl_sara.verl_log import VerlLog

UPDATE_PHASES = ("reward", "old_log_prob", "ref", "values", "adv", "update_critic", "update_actor")


def summarise_arm(run_dir: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the numbers of one run; None where its files do not tell.

    Cost counts everything launched in all attempts; effective groups are those of the history that
    was kept. `intervals` are 95 %, steps taken as independent.

    Raises:
      LedgerError: If there is neither a ledger nor a log of verl.
    """
    return arm_summary(read_arm(os.path.basename(os.path.normpath(run_dir)), run_dir))


def arm_summary(arm: Arm) -> dict[str, Any]:
    """Returns the numbers of an arm that was read, see `summarise_arm`."""
    costs = arm.costs()
    has_ledger = arm.ledger is not None
    trained = _trained(arm)
    estimates = {
        "effective_fraction": ratio([mixed for mixed, _ in trained], [total for _, total in trained]),
        "rollouts_per_effective_group": cost_per_effective_group(costs, "rollouts"),
        "tokens_per_effective_group": cost_per_effective_group(costs, "tokens"),
        "rounds_per_step": ratio(rounds := [*arm.rounds().values()], [1.0] * len(rounds)),
    }
    values = {name: _plain(estimate.value) for name, estimate in estimates.items()}
    before, after = _validation(arm)

    def launched(unit: str) -> int | None:
        return sum(line["fates"]["launched"][unit] for line in costs) if has_ledger else None

    return {
        "preset": arm.preset,
        "steps": arm.num_steps,
        "prompts_visited": launched("groups"),
        "groups_trained": sum(total for _, total in trained) if trained else 0 if has_ledger else None,
        "effective_fraction": values["effective_fraction"],
        "rollouts": launched("rollouts"),
        "generated_tokens": launched("tokens"),
        "rollouts_per_effective_group": values["rollouts_per_effective_group"],
        "tokens_per_effective_group": values["tokens_per_effective_group"],
        "rounds_per_step": values["rounds_per_step"],
        "val_before": before,
        "val_after": after,
        "wall_s": wall_split(arm.log),
        "intervals": {name: estimate.as_list()[1:] for name, estimate in estimates.items()},
        "effective_groups": sum(mixed for mixed, _ in trained) if trained else 0 if has_ledger else None,
        "lost": {
            "rollouts": arm.ledger.lost_rollouts if arm.ledger else None,
            "tokens": arm.ledger.lost_tokens if arm.ledger else None,
        },
        "problems": arm.problems,
    }


def _trained(arm: Arm) -> list[tuple[int, int]]:
    """Returns (effective groups, groups trained) per step; without a ledger from verl's dump, if it can tell."""
    if arm.ledger is None:
        return list(arm.dump.mixed_groups().values()) if arm.dump.is_binary() else []
    return [(effective_groups(step), groups_trained(step)) for step in arm.history()]


def step_seconds(log: VerlLog) -> list[float]:
    """Returns the seconds of every step that verl timed, of all attempts, without those of its checkpoint."""
    rows = (row.data for row in log.rows if "timing_s/step" in row.data)
    seconds = (data["timing_s/step"] - data.get("timing_s/save_checkpoint", 0.0) for data in rows)
    return [value for value in seconds if not math.isnan(value)]


def wall_split(log: VerlLog) -> dict[str, float | None]:
    """Returns the seconds of all steps, checkpoints and validation apart, and their parts by phase.

    total = generate + update + weights + wait, wait being what is in no other phase. verl times the
    phases within the step, one after the other; where its asynchronous modes overlap them, the parts
    may add up to more and wait is 0.
    """
    seconds = step_seconds(log)
    if not seconds:
        return dict.fromkeys(("total", "generate", "update", "weights", "wait"))
    total, generate = sum(seconds), log.total("timing_s/gen")
    update = sum(log.total(f"timing_s/{phase}") for phase in UPDATE_PHASES)
    weights = log.total("timing_s/update_weights")
    wait = max(0.0, total - generate - update - weights)
    return {"total": total, "generate": generate, "update": update, "weights": weights, "wait": wait}


def _validation(arm: Arm) -> tuple[float | None, float | None]:
    """Returns the accuracy before training and the last one after some."""
    curve = arm.log.validation()
    before = next((value for step, value in curve if step == 0), None)
    trained = [(step, value) for step, value in curve if step > 0]
    if trained and trained[-1][0] < arm.num_steps:
        sentence = f"the last validation was at step {trained[-1][0]} of {arm.num_steps}"
        arm.problems += [sentence] if sentence not in arm.problems else []
    return before, trained[-1][1] if trained else None


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
