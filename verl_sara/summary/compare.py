"""Arms side by side: what each saved, measured, counterfactual and replayed, or why that cannot be said."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_sara.ledger import LedgerError
from verl_sara.metrics import cost_per_effective_group, effective_groups, saving
from verl_sara.summary.arm import Arm, options_of, read_arm, rule_options
from verl_sara.summary.numbers import arm_summary

BASELINES = ("verl_ds", "ds")
"""Presets against which a measured saving is given."""

FULL_GROUPS = ("ds", "verl_ds", "uniform")
"""Presets whose groups are full, so that a rule can be replayed on them."""

SAME_OPTIONS = ("group_size", "batch_size", "verdict_key", "success_threshold")
"""Options that compared arms share."""

PAPER = "paper"
"""Preset whose rule is replayed."""


def summarise(
    arms: Mapping[str, str | os.PathLike[str]],
    *,
    baselines: Sequence[str] = (),
    last_step: int | None = None,
) -> dict[str, Any]:
    """Returns the numbers of several runs, their savings, and the paper's rule replayed.

    Args:
      arms: Run folder by name; "arm/1", "arm/2" name several runs of an arm.
      baselines: Arms that savings are measured against; by default those of the presets BASELINES.
      last_step: Steps after this one are left out; None = all.

    Returns:
      {"arms": {name: see `summarise_arm`},
       "savings": {arm: {"measured": {baseline: {"rollouts": [value, low, high], "tokens": ...} or
         {"refused": reason}}, "counterfactual": {"ideal_ds": {"rollouts": {"bounds", "interval"}}}}},
       "replay": {"paper_vs_<name>": ratio of rollouts per effective group, ..._interval, ..._tokens,
         ..._tokens_interval, ..._groups},
       "rule": options of the replayed rule}.

    Raises:
      LedgerError: If a run has neither a ledger nor a log of verl, or a baseline is no arm.
    """
    read = {name: read_arm(name, path, last_step=last_step) for name, path in arms.items()}
    return summary_of(read, baselines=baselines, rule=paper_rule(arms))


def paper_rule(arms: Mapping[str, str | os.PathLike[str]]) -> dict[str, Any]:
    """Returns the options of the first arm of the preset `paper`, or that preset's own."""
    every = map(options_of, arms.values())
    return rule_options(next((options for options in every if options.get("preset") == PAPER), {}))


def summary_of(arms: Mapping[str, Arm], *, baselines: Sequence[str], rule: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the summary of runs that were read, see `summarise`."""
    by_label: dict[str, list[Arm]] = {}
    for arm in arms.values():
        by_label.setdefault(arm.label, []).append(arm)
    if unknown := set(baselines) - set(by_label):
        raise LedgerError(f"baseline {min(unknown)!r} is no arm; allowed: {', '.join(by_label)}")
    chosen = baselines or [label for label, runs in by_label.items() if runs[0].preset in BASELINES]
    return {
        "arms": {name: arm_summary(arm) for name, arm in arms.items()},
        "savings": {
            label: {
                "measured": {base: measured(runs, by_label[base]) for base in chosen if base != label},
                "counterfactual": {"ideal_ds": {"rollouts": counterfactual(runs)}},
            }
            for label, runs in by_label.items()
            if any(arm.ledger for arm in runs)
        },
        "replay": _replays(arms, rule),
        "rule": dict(rule),
    }


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
    for name in sorted(one.task.keys() | other.task.keys()):
        if one.task.get(name) != other.task.get(name):
            return f"{name} differs: {one.task.get(name)!r} ({one.name}), {other.task.get(name)!r} ({other.name})"
    steps = [[step["step"] for step in arm.history()] for arm in (one, other)]
    if steps[0] != steps[1]:
        shared = min(map(len, steps))
        is_prefix = shared and steps[0][:shared] == steps[1][:shared]
        hint = f"; --steps {steps[0][shared - 1]} compares what both have" if is_prefix else ""
        return f"steps differ: {_span(steps[0])} ({one.name}), {_span(steps[1])} ({other.name}){hint}"
    if not one.prompts & other.prompts:
        return f"prompts differ: {one.name} and {other.name} have none in common"
    return ""


def _span(steps: Sequence[int]) -> str:
    return f"{len(steps)} steps, {steps[0]} to {steps[-1]}" if steps else "none"


def measured(runs: Iterable[Arm], baseline: Iterable[Arm]) -> dict[str, Any]:
    """Returns 1 - cost per effective group / the baseline's, as [value, low, high] per unit.

    Seeds are pooled. {"refused": reason} if any two runs cannot be compared.
    """
    runs, baseline = list(runs), list(baseline)
    for one in runs:
        for other in baseline:
            if reason := why_not_comparable(one, other):
                return {"refused": reason}
    costs, base = ([line for arm in side for line in arm.costs()] for side in (runs, baseline))
    return {
        unit: saving(cost_per_effective_group(costs, unit), cost_per_effective_group(base, unit)).as_list()
        for unit in ("rollouts", "tokens")
    }


def counterfactual(runs: Iterable[Arm]) -> dict[str, list[float | None]]:
    """Returns bounds on 1 - rollouts per effective group / ideal dynamic sampling's on the same prompts."""
    pairs = []
    for arm in runs:
        if arm.ledger is None:
            continue
        last = {step["step"]: step["attempt"] for step in arm.history()}
        costs: dict[tuple[int, int], tuple[float, float]] = {}
        for step in arm.ledger.steps:
            is_kept = last[step["step"]] == step["attempt"]
            effective = effective_groups(step) if is_kept else 0
            costs[step["attempt"], step["step"]] = (step["fates"]["launched"]["rollouts"], effective)
        costs |= {(0, number): (lost["rollouts"], 0) for number, lost in arm.ledger.lost.items()}
        pairs.append((arm.ideal, costs))
    (ideal, own), *others = pairs
    return ideal.saving(own, others).as_dict()


def _replays(arms: Mapping[str, Arm], rule: Mapping[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for name, arm in arms.items():
        replayed = arm.replay(**rule)
        if arm.preset not in FULL_GROUPS or not replayed.num_groups:
            continue
        key = f"paper_vs_{name}"
        for suffix, estimate in (("", replayed.rollouts), ("_tokens", replayed.tokens)):
            value, low, high = estimate.as_list()
            result |= {f"{key}{suffix}": value, f"{key}{suffix}_interval": [low, high]}
        result[f"{key}_groups"] = replayed.num_groups
    return result
