"""verl's group estimators with a weight per group: importance correction and short steps.

verl hands an advantage estimator rewards, mask and the rows' uids only, so the weights come from a
table in the trainer process, filled by the replay buffer when the step's groups are chosen. The
estimators register when the buffer's module loads and are named by `algorithm.adv_estimator`.
"""

from typing import Any

import torch
from verl.trainer.ppo.core_algos import get_adv_estimator_fn, register_adv_est

from verl_sara.adapters.carried import CARRIED
from verl_sara.config.schema import WEIGHTED_ESTIMATORS

PADDING_UID = "pad"
"""Start of the uid of the rows with which verl fills a batch (verl/trainer/ppo/v1/trainer_base.py)."""


def weights_of(index: Any) -> torch.Tensor:
    """Returns the weight of every row, [B, 1], from its uid; padding rows weigh 1.

    Raises:
      KeyError: If a row's group is not one of the step.
    """
    weights = [1.0 if str(uid).startswith(PADDING_UID) else CARRIED.weights[str(uid)] for uid in index]
    return torch.tensor(weights, dtype=torch.float32).unsqueeze(-1)


def weighted(name: str) -> Any:
    """Returns verl's estimator `name` with its advantages and returns times the group's weight.

    Reinforce++ whitens over the batch first and is weighted after; that is not claimed unbiased.
    """
    estimate = get_adv_estimator_fn(name)

    def estimator(
        token_level_rewards: torch.Tensor, response_mask: torch.Tensor, index: Any, config: Any = None, **rest: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Takes rewards and mask, [B, T], and uids, [B]; returns advantages and returns, [B, T]."""
        if name == "grpo" and config is not None:
            rest = {**rest, "norm_adv_by_std_in_grpo": config.get("norm_adv_by_std_in_grpo", True)}
        advantages, returns = estimate(
            token_level_rewards=token_level_rewards, response_mask=response_mask, index=index, config=config, **rest
        )
        weight = weights_of(index).to(advantages.device)
        return advantages * weight, returns * weight

    return estimator


for _ours, _verls in WEIGHTED_ESTIMATORS.items():
    register_adv_est(_ours)(weighted(_verls))
