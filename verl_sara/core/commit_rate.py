"""The running commit rate: which share of the prompts that were decided was committed.

It sizes the waves of fresh prompts. Its state crosses steps and checkpoints.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class CommitRate:
    """Decayed counts of committed and decided prompts.

    Attributes:
      committed: Decayed number of committed prompts, >= 0.
      decided: Decayed number of committed or abandoned prompts, >= `committed`.
      decay: Factor applied once a step, in (0, 1].
    """

    committed: float = 0.0
    decided: float = 0.0
    decay: float = 0.8

    PRIOR_WEIGHT = 2.0
    """Weight, in prompts, of the initial guess: small, so that one wave corrects it."""

    def estimate(self, initial: float, committed: int = 0, decided: int = 0) -> float:
        """Returns the rate in (0, 1], the present step's counts included.

        Args:
          initial: Guess before anything was seen, in (0, 1].
          committed: Prompts committed in the present step.
          decided: Prompts decided in the present step.
        """
        weight = self.PRIOR_WEIGHT
        return (self.committed + committed + weight * initial) / (self.decided + decided + weight)

    def end_step(self, committed: int, decided: int) -> None:
        """Folds a finished step into the running counts."""
        self.committed = self.decay * self.committed + committed
        self.decided = self.decay * self.decided + decided

    def state_dict(self) -> dict[str, float]:
        """Returns the state, restored exactly by `load_state_dict`."""
        return {"committed": self.committed, "decided": self.decided, "decay": self.decay}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restores a state; a missing or unknown name raises KeyError."""
        if set(state) != {"committed", "decided", "decay"}:
            raise KeyError(f"commit rate state has {sorted(state)}; allowed: committed, decided, decay")
        self.committed, self.decided, self.decay = state["committed"], state["decided"], state["decay"]
