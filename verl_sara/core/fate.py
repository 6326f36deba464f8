"""What became of every group at the end of a step, and which groups the optimizer gets."""

from collections.abc import Iterable
from enum import Enum

from verl_sara.core.group import Group, Phase, Verdict
from verl_sara.core.settings import StepSettings


class Fate(str, Enum):
    """Where a group's rollouts went. Every launched rollout has exactly one fate."""

    TRAINED = "trained"
    SATURATED_TRAINED = "saturated_trained"
    ABANDONED = "abandoned"
    UNDECIDED = "undecided"
    SURPLUS = "surplus"
    FAILED = "failed"
    AUDIT = "audit"


TRAINED_FATES = frozenset({Fate.TRAINED, Fate.SATURATED_TRAINED})

_FATE_OF_PHASE = {
    Phase.COMPLETE: Fate.SURPLUS,
    Phase.UNFINISHED: Fate.SURPLUS,
    Phase.ABANDONED: Fate.ABANDONED,
    Phase.AUDITED: Fate.AUDIT,
    Phase.FAILED: Fate.FAILED,
    Phase.UNDECIDED: Fate.UNDECIDED,
    Phase.UNUSED: Fate.UNDECIDED,
}


def fates(groups: Iterable[Group], settings: StepSettings) -> dict[str, Fate]:
    """Returns the fate of every closed group, by uid, in dispatch order.

    The first B complete groups are trained, in dispatch order (fast groups are short groups: a
    choice by completion would tilt the batch). With `surplus="train"` further complete groups are
    trained as far as they make whole mini-batches; with `collect="budget"` all are, since together
    they have at most B k rollouts. If fewer than B are there and `on_exhausted="fill_saturated"`, or
    if there is none at all, abandoned one-sided groups, audited or not, take the free places: verl
    can neither skip an update nor take an empty batch.
    """
    groups = list(groups)
    complete = [group for group in groups if group.phase is Phase.COMPLETE]
    trained = complete[: _num_trained(len(complete), settings)]
    free = settings.batch_size - len(trained)
    if free > 0 and (settings.on_exhausted == "fill_saturated" or not trained):
        saturated = [g for g in groups if g.phase in (Phase.ABANDONED, Phase.AUDITED) and not g.is_mixed]
        trained = trained + saturated[:free]
    trained_uids = {group.uid for group in trained}
    result = {}
    for group in groups:
        if group.uid in trained_uids:
            result[group.uid] = Fate.TRAINED if group.is_mixed else Fate.SATURATED_TRAINED
        elif group.phase is Phase.COMPLETE and group.verdict is Verdict.ABANDON:
            result[group.uid] = Fate.AUDIT
        else:
            result[group.uid] = _FATE_OF_PHASE[group.phase]
    return result


def _num_trained(num_complete: int, settings: StepSettings) -> int:
    batch_size = settings.batch_size
    if settings.collect == "budget":
        return num_complete
    if settings.surplus == "train" and num_complete > batch_size:
        return batch_size + (num_complete - batch_size) // settings.mini_batch_size * settings.mini_batch_size
    return min(num_complete, batch_size)
