"""Arms side by side: what each saved, measured, counterfactual and replayed, or why that cannot be said."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from verl_sara.ledger import LedgerError, Problems, Record, attempts, ledger_folder, open_lines, parse_lines
from verl_sara.metrics import cost_per_effective_group, effective_groups, saving
from verl_sara.summary.arm import Arm, read_arm
from verl_sara.summary.numbers import arm_summary

BASELINES = ("verl_ds", "ds")
"""Presets against which a measured saving is given."""

FULL_GROUPS = ("ds", "verl_ds", "uniform")
"""Presets whose groups are full, so that a rule can be replayed on them."""

SAME_OPTIONS = ("group_size", "batch_size", "verdict_key", "success_threshold")
"""Options that compared arms share."""


def summarise(
    arms: Mapping[str, str | os.PathLike[str]], *, baselines: Sequence[str] | None = None
) -> dict[str, Any]:
    """Returns the numbers of several runs, their savings, and the paper's rule replayed.

    Args:
      arms: Run folder by name of the arm.
      baselines: Names of the arms that savings are measured against; default those whose preset is
        in BASELINES.

    Returns:
      {"arms": {name: see `summarise_arm`},
       "savings": {name: {"measured": {baseline: {"rollouts": [value, low, high], "tokens": ...} or
         {"refused": reason}}, "counterfactual": {"ideal_ds": {"rollouts": {"bounds", "interval"}}}}},
       "replay": {"paper_vs_<arm>": ratio of rollouts per effective group, ..._interval, ..._tokens,
         ..._tokens_interval, ..._groups, "rule": its options}}.

    Raises:
      LedgerError: If an arm has neither a ledger nor a log of verl, or a baseline is not an arm.
    """
    rule_options = next((options for options in map(_options_of, arms.values()) if _is_paper(options)), {})
    read = {name: read_arm(name, run_dir, rule_options) for name, run_dir in arms.items()}
    if unknown := set(baselines or ()) - set(read):
        raise LedgerError(f"baseline {min(unknown)!r} is no arm; allowed: {', '.join(read)}")
    chosen = [
        arm for name, arm in read.items() if (name in baselines if baselines else arm.preset in BASELINES)
    ]
    return {
        "arms": {name: arm_summary(arm) for name, arm in read.items()},
        "savings": {
            name: {
                "measured": {base.name: measured(arm, base) for base in chosen if base is not arm},
                "counterfactual": {"ideal_ds": {"rollouts": counterfactual(arm)}},
            }
            for name, arm in read.items()
            if arm.ledger
        },
        "replay": _replays(read, rule_options),
    }


def _options_of(run_dir: str | os.PathLike[str]) -> Record:
    """Returns the options in the header of a run's ledger, empty if there is none."""
    try:
        folder = ledger_folder(run_dir)
    except LedgerError:
        return {}
    path = folder / f"ledger.attempt-{max(attempts(folder))}.jsonl"
    with open_lines(path) as lines:
        record: Record = next((record for _, record in parse_lines(lines, path.name, Problems())), {})
    options: Record = record.get("options", {})
    return options


def _is_paper(options: Record) -> bool:
    return options.get("preset") == "paper"


def why_not_comparable(one: Arm, other: Arm) -> str:
    """Returns what makes a saving of `one` against `other` unfair, empty if nothing does."""
    for arm in (one, other):
        if arm.ledger is None:
            return f"{arm.name} has no ledger"
        if arm.ledger.unbalanced:
            return f"the ledger of {arm.name} does not balance: {arm.ledger.unbalanced[0]}"
    for name in SAME_OPTIONS:
        if one.options.get(name) != other.options.get(name):
            values = (f"{arm.options.get(name)!r} ({arm.name})" for arm in (one, other))
            return f"{name} differs: {', '.join(values)}"
    steps = [[step["step"] for step in arm.history()] for arm in (one, other)]
    if steps[0] != steps[1]:
        return f"steps differ: {len(steps[0])} ({one.name}), {len(steps[1])} ({other.name})"
    if not one.prompts & other.prompts:
        return f"prompts differ: {one.name} and {other.name} have none in common"
    return ""


def measured(arm: Arm, baseline: Arm) -> dict[str, Any]:
    """Returns 1 - cost per effective group / the baseline's, as [value, low, high] per unit."""
    if reason := why_not_comparable(arm, baseline):
        return {"refused": reason}
    return {
        unit: saving(
            cost_per_effective_group(arm.costs(), unit), cost_per_effective_group(baseline.costs(), unit)
        ).as_list()
        for unit in ("rollouts", "tokens")
    }


def counterfactual(arm: Arm) -> dict[str, list[float | None]]:
    """Returns bounds on 1 - rollouts per effective group / ideal dynamic sampling's on the same prompts."""
    last = {step["step"]: step["attempt"] for step in arm.history()}
    costs: dict[tuple[int, int], tuple[float, float]] = {}
    for step in arm.ledger.steps if arm.ledger else ():
        is_kept = last[step["step"]] == step["attempt"]
        rollouts = step["fates"]["launched"]["rollouts"]
        costs[step["attempt"], step["step"]] = (rollouts, effective_groups(step) if is_kept else 0)
    for number, lost in arm.ledger.lost.items() if arm.ledger else ():
        costs[0, number] = (lost["rollouts"], 0)
    return arm.ideal.saving(costs).as_dict()


def _replays(arms: Mapping[str, Arm], rule_options: Record) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, arm in arms.items():
        if arm.replay is None or arm.preset not in FULL_GROUPS:
            continue
        replayed = arm.replay.result()
        key = f"paper_vs_{name}"
        for suffix, estimate in (("", replayed.rollouts), ("_tokens", replayed.tokens)):
            value, low, high = estimate.as_list()
            result |= {f"{key}{suffix}": value, f"{key}{suffix}_interval": [low, high]}
        result[f"{key}_groups"] = replayed.num_groups
    return result
