"""The weighted estimators against verl's own, through the registry that the trainer asks."""

from types import SimpleNamespace

import numpy as np
import pytest

pytestmark = pytest.mark.verl


@pytest.mark.parametrize("name", ["grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_every_group_is_weighted_and_padding_is_not(name):
    import torch
    from verl.trainer.config.algorithm import AlgoConfig
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from verl_sara.adapters import estimators
    from verl_sara.adapters.carried import CARRIED

    torch.manual_seed(0)
    index = np.array(["u1", "u1", "u1", "u2", "u2", "u2", "pad00"], dtype=object)
    mask = (torch.arange(5) < torch.tensor([[5], [3], [4], [2], [5], [1], [0]])).float()
    rewards = torch.zeros(7, 5)
    for row, reward in enumerate([1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]):
        rewards[row, max(0, int(mask[row].sum()) - 1)] = reward
    inputs = {"token_level_rewards": rewards, "response_mask": mask, "index": index, "config": AlgoConfig()}
    expected, _ = get_adv_estimator_fn(name)(**inputs)
    CARRIED.weights = {"u1": 1.6, "u2": 0.5}
    actual, returns = get_adv_estimator_fn(f"sara_{name}")(**inputs)
    weight = torch.tensor([1.6] * 3 + [0.5] * 3 + [1.0]).unsqueeze(-1)
    assert torch.equal(actual, expected * weight) and returns.shape == expected.shape
    assert actual[:6].abs().sum() > 0
    with pytest.raises(KeyError):
        estimators.weights_of(["stranger"])


def test_a_corrected_step_weights_groups_by_their_keep_probability(host):
    from verl_sara.adapters.carried import CARRIED
    from verl_sara.core import prob_keep

    h = host("+sara=paper", options={"importance_correction": "horvitz_thompson", "short_steps": "scale"})
    h.run_step()
    trained = {g["uid"]: sum(g["slots"]["outcome"]) for g in h.ledger().groups if g["fate"] == "trained"}
    expected = {uid: 1 / prob_keep(s, group_size=8, fail_length=5, pass_length=5) for uid, s in trained.items()}
    assert CARRIED.weights == pytest.approx(expected) and len(expected) == 4


def test_a_short_step_is_scaled(host):
    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.carried import CARRIED

    options = {"max_rollouts_per_step": 64, "short_steps": "scale"}
    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(passed=prompt == "p1" and slot == 0), options=options)
    h.run_step()
    assert list(CARRIED.weights.values()) == [0.25]


def test_rollouts_with_several_outputs_are_refused_where_groups_are_weighted():
    from verl_sara.adapters.replay_buffer import SaraReplayBuffer, StalledError

    buffer = SimpleNamespace(
        sara=SimpleNamespace(needs_weights=lambda: True),
        partitions={"train": {"a_0_0": {}, "a_0_1": {}}},
        _sync_metadata_from_transfer_queue=lambda: None,
    )
    result = SimpleNamespace(sessions={"a": [0]}, trained=["a"])
    with pytest.raises(StalledError, match="prompt a has several outputs"):
        SaraReplayBuffer._take(buffer, "train", result)
