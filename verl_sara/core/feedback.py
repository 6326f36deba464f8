"""What a finished step teaches: its groups go to the prior source and to the running yield.

The one place that says which counts are evidence, so that training and simulation learn alike.
"""

from collections.abc import Iterable

from verl_sara.core.group import Group, Phase, SlotStatus, Verdict
from verl_sara.core.priors import PriorSource
from verl_sara.core.renewal import RunningYield


def learn(groups: Iterable[Group], priors: PriorSource, running_yield: RunningYield | None = None) -> None:
    """Hands the closed groups of a step on and ends the step of both receivers.

    A group that failed teaches nothing: what made it fail may depend on the outcome. Groups without a
    verdict are valid evidence for the prior, since what ended the step did not look at their outcomes.
    The yield is that of decided groups; probes of surplus groups are no part of the renewal process.
    """
    for group in groups:
        if group.phase is Phase.FAILED or not group.num_successes + group.num_failures:
            continue
        length = group.verdict_length or group.num_launched
        prefix = [slot for slot in group.slots[:length] if slot.status is SlotStatus.OK]
        passes = sum(slot.passed is True for slot in prefix)
        priors.observe(
            group.prompt_id,
            group.num_successes + group.num_failures,
            group.num_successes,
            (len(prefix), passes),
        )
        if running_yield is not None and group.phase in (Phase.COMPLETE, Phase.ABANDONED, Phase.AUDITED):
            paid = prefix if group.verdict is Verdict.ABANDON else group.slots
            tokens = {True: 0, False: 0}
            for slot in paid:
                tokens[slot.passed is True] += slot.num_tokens
            passes = sum(slot.passed is True for slot in paid)
            is_committed = group.verdict is Verdict.COMMIT and group.is_mixed
            running_yield.observe(is_committed, passes, len(paid) - passes, tokens[True], tokens[False])
    priors.end_step()
    if running_yield is not None:
        running_yield.end_step()
