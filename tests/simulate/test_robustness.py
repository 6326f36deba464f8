"""The policy shift: what the table says on fewer steps and a smaller pool, and the pool that jumps."""

import json

import numpy as np
import pytest

from verl_sara.core import ConfigError
from verl_sara.simulate.baselines import Cost
from verl_sara.simulate.populations import POOLS, effective_share
from verl_sara.simulate.robustness import ShiftedPool, numbers_of, phases, robustness
from verl_sara.simulate.training import StepReport


@pytest.fixture(scope="module")
def table():
    return robustness(num_steps=40, batch_size=64, num_prompts=1875)


def test_early_verdicts_keep_the_batch_effective_where_prediction_alone_does_not(table):
    fraction = {
        arm: {phase: numbers["effective_fraction"] for phase, numbers in rows.items()}
        for arm, rows in table.numbers.items()
    }
    assert fraction["sara_dps"] == fraction["sara"] == {"before": 1.0, "right_after": 1.0, "later": 1.0}
    assert fraction["dps"]["right_after"] < 0.2 < 0.8 < min(fraction["dps"]["before"], fraction["dps"]["later"]) < 1.0


def test_the_ranked_stream_saves_most_and_costs_little_more_than_sara_alone_in_the_shift(table):
    cost = {
        arm: {phase: numbers["rollouts_per_effective_group"] for phase, numbers in rows.items()}
        for arm, rows in table.numbers.items()
    }
    assert 0.55 < table.numbers["sara_dps"]["before"]["saving"] < 0.75
    assert cost["dps"]["before"] < cost["sara_dps"]["before"] < 0.6 * cost["sara"]["before"]
    assert cost["sara"]["right_after"] < cost["sara_dps"]["right_after"] < 0.5 * cost["dps"]["right_after"]
    for rows in table.numbers.values():
        for numbers in rows.values():
            baseline = numbers["rollouts_per_effective_group"] / (1.0 - numbers["saving"])
            assert 20 < baseline < 45


def test_a_row_for_every_arm_and_phase(table):
    assert [row[0] for row in table.rows[:3]] == ["DS, before", "DS, right after", "DS, later"]
    assert len(table.rows) == 12 and all(len(row) == len(table.header) for row in table.rows)
    assert json.loads(json.dumps(table.numbers)) == table.numbers


def report(trained, saturated):
    numbers = dict.fromkeys(("tokens", "rounds", "abandoned", "predicted", "realised", "hard", "effective_share"), 0)
    return StepReport(rollouts=64, trained=trained, saturated=saturated, **numbers)


def test_numbers_of_a_phase():
    whole = Cost(rollouts=320, tokens=0, groups=10)
    assert numbers_of([report(3, 5), report(1, 7)], whole) == {
        "rollouts_per_effective_group": 32.0,
        "effective_fraction": 0.25,
        "saving": 0.0,
    }
    nothing = {"rollouts_per_effective_group": None, "effective_fraction": 0.0, "saving": None}
    assert numbers_of([report(0, 8)], whole) == nothing


def test_the_shift_renews_the_pool_without_changing_its_effective_share():
    base = POOLS["B"].build(3000)
    pool = ShiftedPool(base.logits, base.drift, at=0.5)
    assert np.array_equal(pool.pass_rates(0.49), base.pass_rates(0.49))
    before, after = pool.pass_rates(0.49), pool.pass_rates(0.5)
    assert effective_share(after, 8) == pytest.approx(effective_share(before, 8), abs=0.04)
    is_medium = (before > 0.2) & (before < 0.8)
    assert effective_share(after[is_medium], 8) < 0.1
    for progress in (0.3, 0.7):
        assert np.allclose(pool.still(progress).pass_rates(0.1), pool.pass_rates(progress))


def test_phases_lie_around_the_middle():
    assert phases(80) == {"before": range(30, 40), "right_after": range(40, 42), "later": range(70, 80)}
    assert phases(4) == {"before": range(1, 2), "right_after": range(2, 3), "later": range(3, 4)}
    with pytest.raises(ConfigError, match="steps of the robustness table are 3; allowed: >= 4"):
        phases(3)
