"""State that crosses steps, held in the trainer process.

The dataset, whose `state_dict` verl saves and restores with every checkpoint, and the replay
buffer, which learns what a step changed, live in the same process but are built by verl without
knowledge of each other; they meet here.
"""

from dataclasses import dataclass, field
from typing import Any

State = dict[str, Any]


@dataclass(slots=True)
class CarriedState:
    """The coordinator's state between steps.

    Attributes:
      coordinator: State after the last finished step; empty before the first.
      restored: A state just read from a checkpoint, until the coordinator has taken it.
      prompts_consumed: Prompts taken from the data set so far, all passes.
    """

    coordinator: State = field(default_factory=dict)
    restored: State | None = None
    prompts_consumed: int = 0

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

    def take_restored(self) -> State | None:
        """Returns the restored state once, then None."""
        restored, self.restored = self.restored, None
        return restored


CARRIED = CarriedState()
"""The one of this process."""
