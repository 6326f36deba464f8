"""What coordinator, workers and replay buffer tell each other."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from verl_sara.selection.evidence import GroupEvidence


@dataclass(frozen=True, slots=True)
class Action:
    """What the replay buffer is to do: fetch `refill` prompts, print `report`, raise `error`, or finish."""

    refill: int = 0
    is_done: bool = False
    report: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class StepResult:
    """A finished step.

    Attributes:
      trained: uids of the groups to train, in dispatch order.
      sessions: The session numbers that each of them has rows for.
      metrics: Numbers for verl's logger.
      state: State that crosses steps; of the priors, from the second result on, what the step changed
        (`verl_sara.core.merge_changes`).
      evidence: What every group says about its prompt, for prompt selection.
      weights: Weight of every trained group in the loss, 1 unless an option says otherwise.
      unused: Prompts that were registered and never launched.
      report: What the user has to be told, empty if nothing.
    """

    trained: list[str]
    sessions: dict[str, list[int]]
    metrics: dict[str, float]
    state: dict[str, Any]
    evidence: list[GroupEvidence]
    weights: dict[str, float]
    unused: list[str]
    report: str = ""


@dataclass(slots=True)
class Outbox:
    """What a worker has not fetched yet, by prompt, and what wakes its request."""

    messages: dict[str, list[int] | None] = field(default_factory=dict)
    event: asyncio.Event = field(default_factory=asyncio.Event)

    def tell(self, uid: str, slots: list[int] | None) -> None:
        """Adds slots to run, or closes the group with None."""
        earlier = self.messages.get(uid)
        self.messages[uid] = slots if earlier is None or slots is None else earlier + slots
        self.event.set()
