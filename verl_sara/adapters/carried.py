"""State that crosses steps, held in the trainer process.

The dataset, whose `state_dict` verl saves and restores with every checkpoint, and the replay
buffer, which learns what a step changed, live in the same process but are built by verl without
knowledge of each other; they meet here.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from verl_sara.selection.evidence import GroupEvidence

State = dict[str, Any]


@dataclass(slots=True)
class CarriedState:
    """The coordinator's state between steps.

    Attributes:
      coordinator: State after the last finished step; empty before the first.
      restored: A state just read from a checkpoint, until the coordinator has taken it.
      prompts_consumed: Prompts taken from the data set and not given back so far, all passes.
      num_prompts: Size of the training set.
      weights: Weight of every group of the present step, by uid, for the weighted estimators.
      observe: The selector's side of a finished step: takes evidence and unused prompts, returns its
        numbers.
      num_free: How many prompts are not in flight; None where that does not limit a step.
    """

    coordinator: State = field(default_factory=dict)
    restored: State | None = None
    prompts_consumed: int = 0
    num_prompts: int = 0
    weights: dict[str, float] = field(default_factory=dict)
    observe: Callable[[Sequence[GroupEvidence], Sequence[str]], dict[str, float]] | None = None
    num_free: Callable[[], int] | None = None

    SCHEMA = 1

    def state_dict(self) -> State:
        """Returns what a checkpoint keeps."""
        return {
            "schema": self.SCHEMA,
            "coordinator": self.coordinator,
            "prompts_consumed": self.prompts_consumed,
        }

    def load_state_dict(self, state: State) -> None:
        """Takes a checkpoint's state.

        Raises:
          ValueError: If it was written by another schema.
        """
        if state.get("schema") != self.SCHEMA:
            raise ValueError(
                f"checkpoint holds SARA state of schema {state.get('schema')!r}; this version reads {self.SCHEMA}"
            )
        self.coordinator = self.restored = state["coordinator"]
        self.prompts_consumed = state["prompts_consumed"]

    def end_step(self, state: State, evidence: Sequence[GroupEvidence], unused: Sequence[str]) -> dict[str, float]:
        """Takes what a finished step changed and returns the numbers of the data set's side."""
        self.coordinator = state
        self.prompts_consumed -= len(unused) if self.observe else 0
        numbers: dict[str, float] = {"sara/prompts_drawn": self.prompts_consumed}
        if self.num_prompts:
            numbers["sara/passes"] = self.prompts_consumed / self.num_prompts
        return numbers | (self.observe(evidence, unused) if self.observe else {})

    def take_restored(self) -> State | None:
        """Returns the restored state once, then None."""
        restored, self.restored = self.restored, None
        return restored


CARRIED = CarriedState()
"""The one of this process."""
