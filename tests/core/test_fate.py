"""Fates are covered step by step in the traces; here the corners of who is trained."""

import pytest

from verl_sara.core import Fate, Group, Phase, StepSettings, StopLengths, Verdict, fates
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
    """`text` has a letter a group: m = complete and mixed, s = abandoned, u = undecided, r = recovered by an audit,
    A = audited and saturated, B = audited and mixed.
    """
    phases = {"m": Phase.COMPLETE, "r": Phase.COMPLETE, "u": Phase.UNDECIDED, "s": Phase.ABANDONED}
    groups = [ended(i, phases.get(c, Phase.AUDITED), "PF" if c in "mrB" else "FF") for i, c in enumerate(text)]
    for group, letter in zip(groups, text, strict=True):
        group.verdict = Verdict.COMMIT if letter == "m" else Verdict.ABANDON
    short = {
        Fate.TRAINED: "T", Fate.SATURATED_TRAINED: "S", Fate.ABANDONED: "a", Fate.SURPLUS: "x", Fate.AUDIT: "A",
    }  # fmt: skip
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
        ("mmm", {"collect": "budget", "group_completion": "prefix"}, "TTT"),
        ("rrm", {"train_audited": True}, "TTx"),
        ("mmr", {"train_audited": True}, "TTA"),
        ("mAs", {"on_exhausted": "fill_saturated"}, "TSa"),
        ("AAA", {}, "SSA"),
        ("BsB", {}, "ASA"),
    ],
)
def test_who_is_trained(text, changes, expected):
    assert run(text, **changes) == expected
