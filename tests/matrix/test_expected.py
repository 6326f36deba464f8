"""The definitions of `expected.py` against verl's estimators, on made-up batches."""

import random

import pytest

from tests.matrix.expected import EXPECTED, dr_grpo

pytestmark = pytest.mark.verl


def made_up(seed, *, groups=4, group_size=4, max_tokens=6):
    """Rows of a batch with a reward at every token, and the tensors that verl takes."""
    import numpy as np
    import torch

    draw = random.Random(seed)
    rows = [
        {"uid": f"u{number}", "rewards": [draw.random() for _ in range(draw.randint(1, max_tokens))]}
        for number in range(groups) for _ in range(group_size)
    ]  # fmt: skip
    rewards, values, mask = (torch.zeros(len(rows), max_tokens) for _ in range(3))
    for number, row in enumerate(rows):
        row["values"] = [draw.random() for _ in row["rewards"]]
        for tensor, line in ((rewards, row["rewards"]), (values, row["values"]), (mask, [1.0] * len(row["values"]))):
            tensor[number, : len(line)] = torch.tensor(line)
    index = np.array([row["uid"] for row in rows], dtype=object)
    return rows, {"token_level_rewards": rewards, "response_mask": mask}, values, index


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*EXPECTED, "dr_grpo"])
def test_a_definition_is_what_verl_computes(name, seed):
    from omegaconf import OmegaConf
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn

    from verl_sara.adapters import estimators  # noqa: F401  (registers them)
    from verl_sara.adapters.carried import CARRIED

    rows, tensors, values, index = made_up(seed)
    CARRIED.weights = dict.fromkeys(index, 1.0)
    if name == "gae":
        advantages, _ = get_adv_estimator_fn("gae")(**tensors, values=values, gamma=1.0, lam=1.0)
    else:
        options = {"norm_adv_by_std_in_grpo": False} if name == "dr_grpo" else {}
        config = OmegaConf.create({"gamma": 1.0, "norm_adv_by_std_in_grpo": True})
        estimate = get_adv_estimator_fn(name.replace("dr_grpo", "grpo"))
        advantages, _ = estimate(**tensors, index=index, config=config, **options)
    define = dr_grpo if name == "dr_grpo" else EXPECTED[name]
    for row, found, expected in zip(rows, advantages.tolist(), define(rows), strict=True):
        assert found[: len(row["rewards"])] == pytest.approx(expected, abs=1e-5)
