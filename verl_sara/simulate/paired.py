"""Presets run over full groups that are there already, in their order: paired, on the same outcomes.

`metrics.replay` does this for a rule that stays the same; here what a preset has learnt from earlier steps
counts, since the real allocator, priors and running yield go through the run step by step.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any

from verl_sara.core import CommitRate, Phase, StepAllocator, learn
from verl_sara.metrics.estimates import Estimate, RatioOfRatios
from verl_sara.simulate.arms import PAPER, TUNED, policy
from verl_sara.simulate.observed import Observed, ObservedGroup
from verl_sara.simulate.training import Policy

PRESETS: Mapping[str, Mapping[str, Any]] = {"paper": PAPER, "tuned": TUNED}


def replay_presets(observed: Observed, group_size: int, batch_size: int) -> dict[str, Estimate]:
    """Returns `replay` of every preset; empty without full groups of `group_size`."""
    full = [group for group in observed.groups if len(group.outcomes) == group_size]
    sizes = {"group_size": group_size, "batch_size": batch_size}
    return {name: replay(options, full, **sizes) for name, options in PRESETS.items()} if full else {}


def replay(
    options: Mapping[str, Any], groups: Iterable[ObservedGroup], *, group_size: int, batch_size: int
) -> Estimate:
    """Returns rollouts per effective group relative to full groups; below 1 it saves.

    Waves, surplus and budget play no part: every prompt of a step is decided. The interval treats steps as
    independent.

    Args:
      options: Options of `SaraConfig`.
      groups: Full groups in the order of their steps.
      group_size: k.
      batch_size: Groups to a step where steps are unknown.
    """
    arm, ratio = policy(options, group_size=group_size), RatioOfRatios()
    for number, same_step in groupby(groups, attrgetter("step")):
        step = list(same_step)
        size = batch_size if number is None else len(step)
        for first in range(0, len(step), size):
            ratio.add(*replay_step(arm, step[first : first + size]))
    return ratio.estimate()


def replay_step(arm: Policy, groups: Sequence[ObservedGroup]) -> tuple[int, int, int, int]:
    """Decides the prompts of a step, lets the arm learn from them, and returns four counts.

    They are rollouts and effective groups of the arm, then those of the full groups.
    """
    k = arm.settings.group_size
    settings = replace(arm.settings, batch_size=len(groups) + 1, max_rollouts=0)
    allocator = StepAllocator(settings, arm.rule, CommitRate())
    for number, group in enumerate(groups):
        allocator.register(str(number), group.prompt_id, arm.priors.prior_for(group.prompt_id))
    allocator.end_refills()
    while grants := allocator.advance().grants:
        for grant in grants:
            group = groups[int(grant.uid)]
            for slot in grant.slots:
                allocator.record(grant.uid, slot, group.outcomes[slot], group.lengths[slot])
    decided = list(allocator.groups.values())
    learn(decided, arm.priors, arm.running_yield)
    return (
        sum(group.num_launched for group in decided),
        sum(group.phase is Phase.COMPLETE for group in decided),
        k * len(groups),
        sum(0 < sum(group.outcomes) < k for group in groups),
    )
