"""The cells of the matrix: every estimator with every preset, other options spread over them.

A start of verl costs minutes, so a cell tries several things at once that do not touch one another.
"""

from dataclasses import dataclass

REFERENCE = ("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=64",)
KL_LOSS = ("actor_rollout_ref.actor.use_kl_loss=true", "actor_rollout_ref.actor.kl_loss_coef=0.01", *REFERENCE)
KL_REWARD = ("algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.kl_coef=0.01", *REFERENCE)
CRITIC = ("critic.model.path=${actor_rollout_ref.model.path}", "critic.ppo_micro_batch_size_per_gpu=64",
          "critic.ppo_mini_batch_size=${actor_rollout_ref.actor.ppo_mini_batch_size}")  # fmt: skip
TWO_RANKS = ("ray_kwargs.ray_init.num_gpus=2", "trainer.n_gpus_per_node=2")
TWO_WORKERS = ("actor_rollout_ref.rollout.agent.num_workers=2",)
LORA = ("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16",
        "actor_rollout_ref.model.target_modules=all-linear")  # fmt: skip
DR_GRPO = ("algorithm.norm_adv_by_std_in_grpo=false", "actor_rollout_ref.actor.loss_agg_mode=seq-mean-token-sum-norm",
           "actor_rollout_ref.actor.loss_scale_factor=32")  # fmt: skip
OPTIONS = "trainer.v1.sampler.sampler_kwargs"
LARGE_BUDGET = (f"{OPTIONS}.max_rollouts_per_step=1000",)  # small groups are seldom mixed
SHORT = (f"{OPTIONS}.max_rollouts_per_step=96", f"{OPTIONS}.short_steps=scale")


@dataclass(frozen=True)
class Cell:
    """One real run of two steps.

    Attributes:
      estimator: `algorithm.adv_estimator`; its advantages are known.
      preset: Preset of ours.
      note: What else the cell tries.
      group_size: k.
      batch_size: B, one mini-batch.
      options: Further overrides.
      is_short: Whether the budget ends its steps before B groups are committed.
    """

    estimator: str
    preset: str
    note: str = ""
    group_size: int = 8
    batch_size: int = 8
    options: tuple[str, ...] = ()
    is_short: bool = False

    @property
    def name(self) -> str:
        """Id of the test."""
        return "-".join(part for part in (self.estimator, self.preset, self.note) if part)

    @property
    def overrides(self) -> list[str]:
        """What a user adds to the command; a micro batch is at most the rows of a rank."""
        ranks = 2 if set(TWO_RANKS) <= set(self.options) else 1
        micro = min(64, self.batch_size * self.group_size // ranks)
        return [
            f"actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu={micro}",
            f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={micro}",
            f"algorithm.adv_estimator={self.estimator}", f"actor_rollout_ref.rollout.n={self.group_size}",
            f"data.train_batch_size={self.batch_size}",
            f"actor_rollout_ref.actor.ppo_mini_batch_size={self.batch_size}", *self.options,
        ]  # fmt: skip


CELLS = (
    Cell("gae", "paper", "critic", options=CRITIC),
    Cell("gae", "tuned", "kl-reward", options=CRITIC + KL_REWARD),
    Cell("grpo", "paper", "kl-loss", options=KL_LOSS),
    Cell("grpo", "tuned", "k16", group_size=16, batch_size=4),
    Cell("rloo", "paper", "two-workers", options=TWO_WORKERS),
    Cell("rloo", "tuned", "k2", group_size=2, batch_size=4, options=LARGE_BUDGET),
    Cell("reinforce_plus_plus", "paper", "k4", group_size=4, options=LARGE_BUDGET),
    Cell("reinforce_plus_plus", "tuned", "two-ranks", options=TWO_RANKS),
    Cell("reinforce_plus_plus_baseline", "paper"),
    Cell("reinforce_plus_plus_baseline", "tuned", "k32", group_size=32, batch_size=2),
    Cell("grpo", "paper", "dr", options=DR_GRPO),
    Cell("grpo", "tuned", "dr-lora", options=DR_GRPO + LORA),
    Cell("sara_grpo", "paper", "short", options=SHORT, is_short=True),
)
