"""The step that is being collected: its allocator, clock and notes, without transport."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_sara.core import TRAINED_FATES, Fate, Group, Phase, SlotStatus, StepAllocator, Verdict
from verl_sara.ledger import Record, group_record


@dataclass(frozen=True, slots=True)
class RolloutResult:
    """What a worker tells of one rollout.

    Attributes:
      slot: Number of the slot within its group, from 0.
      status: How it ended.
      passed: Outcome, None unless status is OK.
      num_tokens: Tokens generated, those of lost attempts included.
      prompt_tokens: Tokens of the prompt.
      error: What went wrong, empty if nothing did.
    """

    slot: int
    status: SlotStatus
    passed: bool | None
    num_tokens: int
    prompt_tokens: int = 0
    error: str = ""


@dataclass(slots=True)
class OpenStep:
    """One step from its first registered prompt to its last result.

    Attributes:
      number: verl's global step.
      allocator: The decisions.
      started: Monotonic time at which it was opened.
      last_progress: Monotonic time of the last grant or result.
      refill: Fresh prompts the allocator asked for and the buffer has not fetched yet.
      is_done: True once the allocator says so.
      statuses: Rollouts by how they ended.
      last_error: Text of the last failure.
      ran_dry: Whether the data set had no further prompt that was not in flight.
    """

    number: int
    allocator: StepAllocator
    started: float = field(default_factory=time.monotonic)
    last_progress: float = field(default_factory=time.monotonic)
    refill: int = 0
    is_done: bool = False
    statuses: Counter[SlotStatus] = field(default_factory=Counter)
    last_error: str = ""
    ran_dry: bool = False
    prompt_tokens: dict[str, int] = field(default_factory=dict)
    times: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def age(self) -> float:
        """Seconds since the step was opened."""
        return time.monotonic() - self.started

    @property
    def idle(self) -> float:
        """Seconds since the last progress."""
        return time.monotonic() - self.last_progress

    def mark(self, uid: str, event: str) -> None:
        """Notes when something first happened to a group, in seconds from the step's start."""
        now = self.last_progress = time.monotonic()
        times = self.times.setdefault(uid, {})
        if event not in times:
            times[event] = round(now - self.started, 3)

    def take(self, uid: str, result: RolloutResult) -> None:
        """Hands one result to the allocator."""
        if result.status is SlotStatus.OK:
            self.allocator.record(uid, result.slot, bool(result.passed), result.num_tokens)
        else:
            self.allocator.fail(uid, result.slot, result.status, result.num_tokens)
            self.last_error = result.error
        self.statuses[result.status] += 1
        self.prompt_tokens[uid] = max(result.prompt_tokens, self.prompt_tokens.get(uid, 0))
        self.mark(uid, "first_result_s")
        group = self.allocator.groups[uid]
        if group.verdict is not Verdict.NONE:
            self.mark(uid, "verdict_s")
        if group.is_settled:
            self.mark(uid, "closed_s")

    def failures(self) -> int:
        """Rollouts that ended without an outcome."""
        return self.statuses.total() - self.statuses[SlotStatus.OK]

    def records(self, fates: dict[str, Fate]) -> list[Record]:
        """Returns the ledger lines of all groups, in dispatch order."""
        return [
            group_record(
                group,
                fates[uid],
                step=self.number,
                prompt_tokens=self.prompt_tokens.get(uid, 0),
                times=self.times.get(uid, {}),
            )
            for uid, group in self.allocator.groups.items()
        ]

    def summary(self, fates: Mapping[str, Fate]) -> Record:
        """Returns the step's own numbers for its ledger line."""
        groups = self.allocator.groups
        trained = [groups[uid] for uid, fate in fates.items() if fate in TRAINED_FATES]
        settings = self.allocator.settings
        rows = sum(group.num_launched for group in trained)
        committed, decided = self.allocator.num_decided()
        has_rounds = settings.schedule == "rounds" and self.allocator.round_index > 0
        return {
            "step": self.number,
            **({"rounds": self.allocator.round_index} if has_rounds else {}),
            "committed": committed,
            "decided": decided,
            "commit_rate": committed / decided if decided else 0.0,
            "is_exhausted": self.allocator.is_exhausted,
            "collect_s": round(self.age, 3),
            "accuracy_launched": accuracy(groups.values()),
            "accuracy_trained": accuracy(trained),
            "padding_rows": -rows % (settings.mini_batch_size * settings.group_size),
            "statuses": {status.value: count for status, count in self.statuses.items()},
        }

    def describe(self) -> str:
        """Returns one line on where the step stands, for stall reports."""
        groups = list(self.allocator.groups.values())
        phases = Counter(group.phase.value for group in groups)
        waiting: list[Group] = [group for group in groups if group.num_in_flight][:5]
        oldest = ", ".join(f"{g.uid} ({g.num_in_flight} in flight)" for g in waiting) or "none"
        counts: dict[str, Any] = dict(sorted(phases.items()))
        return (
            f"step {self.number}: {self.allocator.num_in_flight} rollouts in flight, groups {counts}, "
            f"no progress for {self.idle:.0f} s; waiting for: {oldest}"
        )


def accuracy(groups: Iterable[Group]) -> float | None:
    """Returns passes / graded rollouts, None without any."""
    groups = list(groups)
    passed, failed = sum(g.num_successes for g in groups), sum(g.num_failures for g in groups)
    return passed / (passed + failed) if passed + failed else None


def observed_fate(group: Group, fate: str | None) -> Fate:
    """Returns the fate of a group that verl's buffer decided, None = it never came to it.

    verl's filter lets groups with a failed rollout through whatever their outcomes are; trained but
    one-sided, they count as saturated.
    """
    if fate is None:
        return Fate.FAILED if group.phase is Phase.FAILED else Fate.UNDECIDED
    if fate == Fate.TRAINED.value and not group.is_mixed:
        return Fate.SATURATED_TRAINED
    return Fate(fate)
