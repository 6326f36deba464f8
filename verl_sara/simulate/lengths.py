"""Response lengths: lognormal, longer for fails and for hard prompts, cut at the response limit."""

from dataclasses import dataclass

import numpy as np

from verl_sara.core import ConfigError


@dataclass(frozen=True)
class Lengths:
    """Lengths that depend on the outcome and on the prompt's difficulty only.

    Attributes:
      median: Median tokens of a pass on a prompt with pass rate 1.
      fail_factor: How much longer fails are, at the same difficulty.
      hard_factor: How much longer responses are at pass rate 0 than at pass rate 1.
      sigma: Standard deviation of the logarithm, >= 0.
      cap: Response limit in tokens.
    """

    median: float = 1000.0
    fail_factor: float = 1.6
    hard_factor: float = 1.5
    sigma: float = 0.5
    cap: int = 8192

    def __post_init__(self) -> None:
        if self.sigma < 0 or min(self.median, self.fail_factor, self.hard_factor, self.cap) <= 0:
            raise ConfigError(f"lengths are {self}; allowed: sigma >= 0 and all else > 0")

    def draw(self, rng: np.random.Generator, outcomes: np.ndarray, pass_rate: float | np.ndarray) -> np.ndarray:
        """Returns tokens in [1, cap] for outcomes of any shape; pass rates are broadcast to it."""
        median = self.median * self.hard_factor ** (1.0 - pass_rate)
        tokens = median * np.where(outcomes, 1.0, self.fail_factor)
        tokens = tokens * np.exp(self.sigma * rng.standard_normal(outcomes.shape))
        return np.clip(tokens, 1, self.cap).astype(np.int64)
