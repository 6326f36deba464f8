"""What the core is compared with: dynamic sampling as verl does it, and its ideal."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from verl_sara.simulate.lengths import Lengths
from verl_sara.simulate.populations import Pool, effective_share
from verl_sara.simulate.server import Server
from verl_sara.simulate.training import StepReport


@dataclass(frozen=True)
class Cost:
    """Totals of a run.

    Attributes:
      rollouts: Rollouts generated; `tokens` likewise.
      groups: Effective groups trained.
    """

    rollouts: float
    tokens: float
    groups: float

    @classmethod
    def of(cls, reports: Sequence[StepReport]) -> "Cost":
        """Returns the totals of a simulated training."""
        return cls(*(sum(getattr(report, name) for report in reports) for name in ("rollouts", "tokens", "trained")))

    def saving(self, baseline: "Cost", unit: str = "rollouts") -> float:
        """Returns 1 - own cost per group / the baseline's, in "rollouts" or "tokens"."""
        return 1.0 - getattr(self, unit) / self.groups / (getattr(baseline, unit) / baseline.groups)


def progress_of(num_steps: int) -> np.ndarray:
    """Returns the share of the training that is done at each step, from 0 to 1."""
    return np.arange(num_steps) / max(1, num_steps - 1)


def whole_batches(
    pool: Pool,
    *,
    num_steps: int,
    batch_size: int,
    group_size: int,
    lengths: Lengths,
    seed: int,
    repeats: int = 1,
    server: Server | None = None,
) -> Cost:
    """Simulates dynamic sampling in whole generation batches of B prompts until B groups are effective.

    Args:
      pool: The prompts.
      num_steps: Steps over which the pool drifts; each is run `repeats` times.
      batch_size: B.
      group_size: k.
      lengths: Distribution of response lengths.
      seed: Seed of prompts, outcomes and lengths.
      repeats: Runs of every step, which lowers the noise.
      server: Runs every batch, with a barrier after it, if given.
    """
    rng = np.random.default_rng(seed)
    rollouts = tokens = groups = 0
    for progress in np.repeat(progress_of(num_steps), repeats):
        rates, effective = pool.pass_rates(float(progress)), 0
        while effective < batch_size:
            drawn = rates[rng.integers(0, len(rates), batch_size)]
            outcomes = rng.random((batch_size, group_size)) < drawn[:, None]
            passes = outcomes.sum(axis=1)
            effective += int(np.count_nonzero((passes > 0) & (passes < group_size)))
            rollouts += outcomes.size
            num_tokens = lengths.draw(rng, outcomes, drawn[:, None])
            tokens += int(num_tokens.sum())
            if server:
                for slot, length in enumerate(num_tokens.flat):
                    server.submit("", slot, int(length))
                server.drain()
        groups += batch_size
    return Cost(rollouts, tokens, groups)


def ideal(pool: Pool, *, num_steps: int, batch_size: int, group_size: int, lengths: Lengths, seed: int) -> Cost:
    """Returns dynamic sampling that stops exactly at the B-th effective full group.

    Its expected rollouts are B k / pbar a step; tokens per rollout are sampled.
    """
    rng = np.random.default_rng(seed)
    rollouts = tokens = 0.0
    for progress in progress_of(num_steps):
        rates = pool.pass_rates(float(progress))
        needed = batch_size * group_size / effective_share(rates, group_size)
        outcomes = rng.random(len(rates)) < rates
        rollouts += needed
        tokens += needed * float(lengths.draw(rng, outcomes, rates).mean())
    return Cost(rollouts, tokens, num_steps * batch_size)
