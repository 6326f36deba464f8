"""Presets replayed on full groups: against the replay of fixed rules, and what learning does."""

import json
import random
from pathlib import Path

import pytest

from verl_sara.core import UNIFORM, SaraThreshold
from verl_sara.metrics import FullGroups
from verl_sara.simulate.arms import DS, PAPER, TUNED, policy
from verl_sara.simulate.observed import Observed, ObservedGroup, read_observed
from verl_sara.simulate.paired import replay, replay_presets, replay_step

K = 8
EXAMPLE = Path(__file__).parents[2] / "analysis/example/ds"


def observe(seed, *, steps=6, per_step=30, prompts=60):
    """Groups of a U-shaped pool whose prompts come again."""
    chance = random.Random(seed)
    rates = [chance.choice((0.0, 0.05, 0.5, 0.95, 1.0)) for _ in range(prompts)]
    groups = []
    for step in range(steps):
        for prompt in chance.sample(range(prompts), per_step):
            outcomes = [chance.random() < rates[prompt] for _ in range(K)]
            groups.append(ObservedGroup(f"p{prompt}", outcomes, [chance.randint(1, 9) for _ in outcomes], step))
    return groups


@pytest.mark.parametrize("seed", range(5))
def test_a_rule_that_learns_nothing_costs_what_the_replay_of_fixed_rules_says(seed):
    groups, fixed = observe(seed), FullGroups()
    for group in groups:
        slots = {"outcome": [int(passed) for passed in group.outcomes], "tokens": group.lengths}
        fixed.add({"group_size": K, "slots": slots})
    expected = fixed.replay(SaraThreshold(0.4), prior=UNIFORM, probe_size=4, increment=1)
    found = replay(PAPER, groups, group_size=K, batch_size=8)
    assert found.value == pytest.approx(expected.rollouts.value)
    assert found.low < found.value < found.high
    assert replay(DS, groups, group_size=K, batch_size=8).value == pytest.approx(1.0)


def test_a_step_is_decided_on_what_earlier_ones_taught_and_on_nothing_later():
    groups = observe(0)
    by_step = [[group for group in groups if group.step == step] for step in range(6)]
    arm = policy(TUNED, group_size=K)
    counts = [replay_step(arm, step) for step in by_step]
    again = policy(TUNED, group_size=K)
    assert [replay_step(again, step) for step in by_step[:3]] == counts[:3]
    untaught = replay_step(policy(TUNED, group_size=K), by_step[5])
    assert untaught[0] != counts[5][0] and untaught[2:] == counts[5][2:]
    a, b, c, d = map(sum, zip(*counts, strict=True))
    assert replay(TUNED, groups, group_size=K, batch_size=8).value == pytest.approx((a / b) / (c / d))


def test_groups_of_other_sizes_are_passed_over():
    groups = observe(1)
    short = ObservedGroup("p0", [True, False], [1, 1], 0)
    both, full = (Observed(found, K, None, "", True, []) for found in ([short, *groups], groups))
    assert replay_presets(both, K, 8) == replay_presets(full, K, 8)
    assert replay_presets(Observed([short], K, None, "", True, []), K, 8) == {}


def test_groups_of_unknown_steps_are_learnt_from_batch_by_batch():
    numbered = observe(2, per_step=20)
    unknown = [ObservedGroup(group.prompt_id, group.outcomes, group.lengths) for group in numbered]
    assert replay(TUNED, unknown, group_size=K, batch_size=20) == replay(TUNED, numbered, group_size=K, batch_size=1)


def test_steps_come_from_a_ledger_and_from_a_dump(tmp_path):
    example = read_observed(EXAMPLE)
    assert [group.step for group in example.groups] == sorted(group.step for group in example.groups)
    assert set(replay_presets(example, K, 8)) == {"paper", "tuned"}
    for step in (1, 2):
        rows = [{"uid": f"u{i}_{j}_0", "step": step, "score": j, "input": f"p{i}"} for i in (0, 1) for j in (0, 1)]
        (tmp_path / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [group.step for group in read_observed(tmp_path).groups] == [1, 1, 2, 2]
