"""Every wrong option is refused with its name, its value and what is allowed."""

import math

import pytest

from verl_sara.core import ConfigError, StepSettings

GOOD = {"group_size": 8, "batch_size": 4}


@pytest.mark.parametrize(
    "change, message",
    [
        ({"group_size": 1}, "group_size is 1; allowed: >= 2"),
        ({"group_size": 0, "keep_saturated": True}, "group_size is 0; allowed: >= 2"),
        ({"group_size": 8.0}, r"group_size is 8.0 \(float\); allowed: int"),
        ({"group_size": True}, r"group_size is True \(bool\); allowed: int"),
        ({"batch_size": 0}, "batch_size is 0; allowed: >= 1"),
        ({"probe_size": 0}, "probe_size is 0; allowed: >= 1"),
        ({"increment": -1}, "increment is -1; allowed: >= 1"),
        ({"mini_batch_size": 0}, "mini_batch_size is 0; allowed: >= 1"),
        ({"max_rollouts": 31}, "max_rollouts is 31; allowed: >= 32"),
        ({"refill_margin": -0.5}, "refill_margin is -0.5; allowed: >= 0"),
        ({"refill_margin": math.nan}, "refill_margin is nan; allowed: >= 0"),
        ({"refill_margin": math.inf}, "refill_margin is inf; allowed: >= 0"),
        ({"keep_saturated": 1}, r"keep_saturated is 1 \(int\); allowed: bool"),
        ({"collect": "groups"}, "collect is 'groups'; allowed: effective_groups, budget"),
        ({"schedule": "wave"}, "schedule is 'wave'; allowed: rounds, streaming"),
        ({"group_completion": "half"}, "group_completion is 'half'; allowed: full, prefix"),
        ({"surplus": "keep"}, "surplus is 'keep'; allowed: discard, train"),
        ({"train_audited": True, "collect": "budget"}, "train_audited is True with collect 'budget'"),
        ({"train_audited": True, "group_completion": "prefix"}, "group_completion 'prefix'; allowed: only with"),
        ({"on_exhausted": "stop"}, "on_exhausted is 'stop'; allowed: train_committed, fill_saturated"),
    ],
)
def test_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        StepSettings(**(GOOD | change))


def test_defaults():
    assert StepSettings(**GOOD).max_rollouts == 10 * 4 * 8
    assert StepSettings(**GOOD, max_rollouts=32).max_rollouts == 32
    # the fixed-budget mode has no other budget than B k
    assert StepSettings(**GOOD, collect="budget", max_rollouts=9999).max_rollouts == 32
    assert StepSettings(**GOOD, refill_margin=1).refill_margin == 1
    assert StepSettings(group_size=1, batch_size=1, keep_saturated=True).max_rollouts == 10


def test_settings_are_frozen():
    with pytest.raises(AttributeError):
        StepSettings(**GOOD).group_size = 4
