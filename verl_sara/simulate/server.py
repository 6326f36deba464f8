"""A continuous-batching server: rollouts wait for a slot, and all that run advance a token at a time.

Time is measured in decode steps of a nearly empty server. The core is asked after every result, as in
training, so barriers, stragglers and idle slots come out as they would there.
"""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from verl_sara.core import BetaPrior, Fate, StepAllocator

Fresh = Callable[[], tuple[str, str, BetaPrior]]
Rollout = Callable[[str, int], tuple[bool, int]]


@dataclass
class Server:
    """The clock and the slots.

    Attributes:
      num_slots: Rollouts that run at once.
      slowdown: By how much a decode step takes longer when all slots run: time 1 + slowdown x load.
      time: Time passed.
      busy: Time-weighted number of running rollouts; divided by time and slots it is the load.
    """

    num_slots: int
    slowdown: float = 0.0
    time: float = 0.0
    busy: float = 0.0
    _tokens: int = 0
    _queue: deque[tuple[str, int, int]] = field(default_factory=deque)
    _running: list[tuple[int, str, int]] = field(default_factory=list)

    @property
    def load(self) -> float:
        """Mean share of the slots that ran a rollout."""
        return self.busy / self.time / self.num_slots

    def submit(self, uid: str, slot: int, num_tokens: int) -> None:
        """Queues a rollout of `num_tokens` tokens."""
        self._queue.append((uid, slot, num_tokens))

    def next_result(self) -> tuple[str, int] | None:
        """Runs until a rollout ends and returns it; None if there is nothing to run."""
        while self._queue and len(self._running) < self.num_slots:
            uid, slot, num_tokens = self._queue.popleft()
            heapq.heappush(self._running, (self._tokens + num_tokens, uid, slot))
        if not self._running:
            return None
        load = len(self._running) / self.num_slots
        end, uid, slot = heapq.heappop(self._running)
        passed = (end - self._tokens) * (1.0 + self.slowdown * load)
        self.time += passed
        self.busy += passed * load * self.num_slots
        self._tokens = end
        return uid, slot

    def run_step(self, allocator: StepAllocator, fresh: Fresh, rollout: Rollout) -> dict[str, Fate]:
        """Runs one step of the core on the server and returns the fates."""
        results: dict[tuple[str, int], tuple[bool, int]] = {}
        while not (advice := allocator.advance()).is_done:
            for _ in range(advice.refill):
                allocator.register(*fresh())
            for grant in advice.grants:
                for slot in grant.slots:
                    results[grant.uid, slot] = rollout(grant.uid, slot)
                    self.submit(grant.uid, slot, results[grant.uid, slot][1])
            if advice.refill or advice.grants:
                continue
            if (done := self.next_result()) is not None:
                allocator.record(*done, *results.pop(done))
        return allocator.finish()

    def drain(self) -> None:
        """Runs until everything that was submitted has ended: a barrier."""
        while self.next_result() is not None:
            pass
