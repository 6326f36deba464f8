"""What is said of a step that ended: weights, rows, alarms."""

from collections.abc import Iterator, Mapping
from typing import Any

from verl_sara.adapters.open_step import OpenStep
from verl_sara.config.schema import SaraConfig
from verl_sara.core import Group, SlotStatus, prob_keep


def is_selective(config: SaraConfig) -> bool:
    """Whether a step without an effective group is a failure."""
    return config.mode == "collect" and not config.keep_saturated


def weight(config: SaraConfig, group: Group, num_trained: int) -> float:
    """Returns the weight of a trained group in the loss."""
    result = 1.0
    if config.importance_correction == "horvitz_thompson" and group.is_mixed:
        result /= prob_keep(
            group.num_successes,
            group_size=group.group_size,
            fail_length=group.lengths.fail,
            pass_length=group.lengths.passed,
            recovered=config.audit_fraction if config.train_audited else 0.0,
        )
    if config.short_steps == "scale":
        result *= min(1.0, num_trained / config.batch_size)
    return result


def sessions(group: Group) -> list[int]:
    """Returns the session numbers that a group has rows for."""
    return [number for number, slot in enumerate(group.slots) if slot.status is SlotStatus.OK]


def split(step: OpenStep) -> str:
    """Returns how the step's prompts fell out."""
    groups = [group for group in step.allocator.groups.values() if group.slots]
    mixed = sum(group.is_mixed for group in groups)
    unsolved = sum(not group.num_successes and group.num_failures > 0 for group in groups)
    solved = sum(not group.num_failures and group.num_successes > 0 for group in groups)
    return f"of {len(groups)} prompts {unsolved} all-fail, {solved} all-pass, {mixed} mixed so far"


def alarms(config: SaraConfig, step: OpenStep, line: Mapping[str, Any], effective: int) -> Iterator[str]:
    """Yields what a user has to know of a finished step."""
    total, allocator = step.statuses.total(), step.allocator
    if step.failures() > 0.01 * total:
        yield f"{step.failures()} of {total} rollouts failed; the last one: {step.last_error}"
    if total and line["accuracy_launched"] == 0.0:
        yield f"not one of {total} rollouts passed in step {step.number}: is the reward right?"
    is_short = effective < config.batch_size and config.collect == "effective_groups"
    if is_selective(config) and is_short and allocator.is_exhausted:
        why = "no prompt was left" if step.ran_dry else f"{allocator.num_launched} rollouts, {step.age:.0f} s"
        yield (
            f"{effective} of {config.batch_size} effective groups when the step had to end ({why}; "
            f"{split(step)}); with token-mean aggregation it still gets a full optimizer step"
        )
