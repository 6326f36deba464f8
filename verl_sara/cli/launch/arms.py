"""Arms: what is compared within a recipe. An arm is a name for Hydra overrides, here and nowhere else."""

import difflib
from collections.abc import Iterable

from verl_sara.core import ConfigError

OPTIONS = "trainer.v1.sampler.sampler_kwargs"
PAPER = ("+sara=paper",)

ARMS: dict[str, tuple[str, ...]] = {
    "uniform": ("+sara=uniform",),
    "verl_ds": ("+sara=verl_ds",),
    "ds": ("+sara=ds",),
    "dps": ("+sara=uniform", "+sara/selection=dps"),
    "paper": PAPER,
    "paper+dps": (*PAPER, "+sara/selection=dps"),
    "tuned": ("+sara=tuned",),
}
"""Arms of every recipe: presets, and presets with prompt selection."""

ABLATIONS: dict[str, tuple[str, ...]] = {
    # group size k; tau_low null = 0.3 up to k = 8, else 0.4
    "k4": (*PAPER, "actor_rollout_ref.rollout.n=4", f"{OPTIONS}.probe_size=2"),
    "k16": (*PAPER, "actor_rollout_ref.rollout.n=16"),
    "ds_k4": ("+sara=ds", "actor_rollout_ref.rollout.n=4"),
    "ds_k16": ("+sara=ds", "actor_rollout_ref.rollout.n=16"),
    # threshold; at k = 8 with the uniform prior a prefix of 3, 4, 5, 6 is abandoned below .556, .444, .333, .222
    "tau_0.25": (*PAPER, f"{OPTIONS}.tau_low=0.25"),
    "tau_0.35": (*PAPER, f"{OPTIONS}.tau_low=0.35"),
    "tau_0.45": (*PAPER, f"{OPTIONS}.tau_low=0.45"),
    "tau_0.6": (*PAPER, f"{OPTIONS}.tau_low=0.6"),
    "probe_1": (*PAPER, f"{OPTIONS}.probe_size=1"),
    "probe_2": (*PAPER, f"{OPTIONS}.probe_size=2"),
    "probe_6": (*PAPER, f"{OPTIONS}.probe_size=6"),
    # prior of the pass rate
    "prior_jeffreys": (*PAPER, f"{OPTIONS}.prior=[0.5,0.5]"),
    "prior_empirical_bayes": (*PAPER, f"{OPTIONS}.prior_source=empirical_bayes"),
    "prior_history": (*PAPER, f"{OPTIONS}.prior_source=history"),
    "streaming": (*PAPER, f"{OPTIONS}.schedule=streaming"),
    "prefix": (*PAPER, f"{OPTIONS}.group_completion=prefix"),
    "budget": (*PAPER, f"{OPTIONS}.collect=budget"),
}
"""One option of `paper` changed an arm: the arms of the recipe `ablations`, allowed in all others."""

DPS_DECAY = dict.fromkeys(("countdown_qwen2.5_3b", "algorithms", "ablations", "countdown_tiny"), 0.5)
"""Forgetting of DPS by recipe, as its authors set it for Countdown; elsewhere the group's default, theirs for MATH."""


def check_arm(name: str) -> str:
    """Returns the name of an arm.

    Raises:
      ConfigError: If there is no such arm; the message has the nearest names and all of them.
    """
    every = [*ARMS, *ABLATIONS]
    if name in every:
        return name
    near = difflib.get_close_matches(name, every, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise ConfigError(f"arm {name!r} is unknown{hint} (allowed: {', '.join(every)})")


def arm_overrides(name: str, seed: int, recipe: str) -> list[str]:
    """Returns the Hydra overrides of an arm of a recipe with a seed >= 0 for everything that is random.

    The seed orders the prompts, seeds the sampling of the rollouts, and our own draws.
    """
    chosen = {**ARMS, **ABLATIONS}[check_arm(name)]
    seeds = [f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}", f"{OPTIONS}.seed={seed}"]
    if "+sara/selection=dps" in chosen:
        seeds.append(f"data.custom_cls.sara.selection.seed={seed}")
        if decay := DPS_DECAY.get(recipe.partition("/")[0]):
            seeds.append(f"data.custom_cls.sara.selection.decay={decay}")
    return [*chosen, *seeds]


def check_seeds(texts: Iterable[str]) -> list[int]:
    """Returns seeds; ConfigError unless each is a whole number >= 0 and none comes twice."""
    texts = list(texts)
    if (
        not texts
        or not all(text.isascii() and text.isdigit() for text in texts)
        or len(set(texts)) < len(texts)
    ):
        raise ConfigError(
            f"seeds are {','.join(texts)!r}; allowed: different whole numbers >= 0 such as 0,1,2"
        )
    return [int(text) for text in texts]
