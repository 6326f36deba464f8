"""Fates are covered step by step in the traces; here the corners of who is trained."""

import pytest

from verl_sara.core import Fate, Group, Phase, StepSettings, StopLengths, fates
from verl_sara.core.posterior import UNIFORM

SETTINGS = {"group_size": 2, "batch_size": 2}


def ended(index, phase, outcomes):
    group = Group(str(index), str(index), index, 2, UNIFORM, StopLengths(2, 2), (2,))
    group.launch(2, 0)
    for slot, outcome in enumerate(outcomes):
        group.record(slot, outcome == "P", 1)
    group.phase = phase
    return group


def run(text, **changes):
    """`text` has a letter a group: m = complete and mixed, s = abandoned, u = undecided."""
    phases = {"m": Phase.COMPLETE, "s": Phase.ABANDONED, "u": Phase.UNDECIDED}
    groups = [ended(i, phases[c], "PF" if c == "m" else "FF") for i, c in enumerate(text)]
    short = {Fate.TRAINED: "T", Fate.SATURATED_TRAINED: "S", Fate.ABANDONED: "a", Fate.SURPLUS: "x"}
    return "".join(short.get(f, "-") for f in fates(groups, StepSettings(**(SETTINGS | changes))).values())


@pytest.mark.parametrize(
    "text, changes, expected",
    [
        ("msmm", {}, "TaTx"),
        ("ssm", {}, "aaT"),
        ("ssm", {"on_exhausted": "fill_saturated"}, "SaT"),
        ("sssu", {}, "SSa-"),
        ("uu", {}, "--"),
        ("mmmmm", {"surplus": "train"}, "TTTTT"),
        ("mmmmm", {"surplus": "train", "mini_batch_size": 2}, "TTTTx"),
        ("mmm", {"surplus": "train", "mini_batch_size": 2}, "TTx"),
        ("m", {"surplus": "train", "mini_batch_size": 2}, "T"),
    ],
)
def test_who_is_trained(text, changes, expected):
    assert run(text, **changes) == expected
