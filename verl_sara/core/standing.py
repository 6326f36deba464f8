"""Where the groups of a step stand in dispatch order: running counts, so that advice stays cheap.

Theory of operation. `update` is called after every event of a group and moves counters, two sorted
structures and two pointers, so that a question costs about a logarithm of the number of groups.

- The window is the shortest stretch of the dispatch order that is expected to hold B accepted groups,
  an undecided one counting with the commit rate. Committed groups in it are completed: to wait until
  they are certain to be trained would cost a generation at the end of every step.
- The front is the stretch before which nothing is open. It only grows.
"""

import heapq
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from verl_sara.core.group import Group, Phase, Verdict

UNDECIDED = frozenset({Phase.WAITING, Phase.PROBING})
OPEN = UNDECIDED | {Phase.COMMITTED}
ACCEPTED = frozenset({Phase.COMMITTED, Phase.COMPLETE})


@dataclass(slots=True)
class Standing:
    """The groups of one step in dispatch order.

    Attributes:
      batch_size: B.
      group_size: k.
      order: The groups.
      phases: How many groups are in each phase.
      charged: Rollouts spent or reserved: k for a probing or committed group, and what was launched
        for any other, audits apart.
      accepted: Indices of the committed and complete groups, ascending.
      idle: Probing groups without a rollout in flight, by index.
      audits: Groups whose audit is not granted yet.
      num_abandoned: Groups with the verdict to abandon.
      num_recovered: Those of them that an audit made complete; accepted, but not committed.
    """

    batch_size: int
    group_size: int
    order: list[Group] = field(default_factory=list)
    phases: Counter[Phase] = field(default_factory=Counter)
    charged: int = 0
    accepted: list[int] = field(default_factory=list)
    idle: dict[int, Group] = field(default_factory=dict)
    audits: list[Group] = field(default_factory=list)
    num_abandoned: int = 0
    num_recovered: int = 0
    _known: list[tuple[Phase, int]] = field(default_factory=list)
    _ready: list[int] = field(default_factory=list)
    _unfilled: list[int] = field(default_factory=list)
    _next_waiting: int = 0
    _window: int = 0
    _accepted_in_window: int = 0
    _undecided_in_window: int = 0
    _front: int = 0
    _num_complete_in_front: int = 0

    def add(self, group: Group) -> None:
        """Puts a new group at the end."""
        self.order.append(group)
        self.phases[group.phase] += 1
        self._known.append((group.phase, 0))

    def update(self, group: Group) -> None:
        """Takes note of whatever happened to a group."""
        index, phase = group.index, group.phase
        old, charge = self._known[index]
        self._known[index] = phase, self._charge(group)
        self.charged += self._known[index][1] - charge
        if phase is Phase.PROBING and not group.num_in_flight:
            if index not in self.idle:
                self.idle[index] = group
                heapq.heappush(self._ready, index)
        else:
            self.idle.pop(index, None)
        if phase is old:
            return
        self.phases[old] -= 1
        self.phases[phase] += 1
        if phase in ACCEPTED and old not in ACCEPTED:
            insort(self.accepted, index)
            if group.next_grant():
                heapq.heappush(self._unfilled, index)
        elif old in ACCEPTED and phase not in ACCEPTED:
            del self.accepted[bisect_left(self.accepted, index)]
        if index < self._window:
            self._accepted_in_window += (phase in ACCEPTED) - (old in ACCEPTED)
            self._undecided_in_window += (phase in UNDECIDED) - (old in UNDECIDED)
        if phase is Phase.ABANDONED:
            self.num_abandoned += 1
            if group.audited:
                self.audits.append(group)
        self.num_recovered += phase is Phase.COMPLETE and old is Phase.AUDITING

    # ---- questions ----------------------------------------------------------------------------

    @property
    def num_busy(self) -> int:
        """Probing groups with a rollout in flight."""
        return self.phases[Phase.PROBING] - len(self.idle)

    def last_needed(self) -> int:
        """Returns the index of the B-th accepted group; what comes after it cannot be trained."""
        is_short = len(self.accepted) < self.batch_size
        return len(self.order) if is_short else self.accepted[self.batch_size - 1]

    def window(self, commit_rate: float) -> int:
        """Returns the end of the window."""

        def is_short() -> bool:
            return self._accepted_in_window + commit_rate * self._undecided_in_window < self.batch_size

        def move(index: int, step: int) -> None:
            self._accepted_in_window += step * (self.order[index].phase in ACCEPTED)
            self._undecided_in_window += step * (self.order[index].phase in UNDECIDED)
            self._window += step

        while self._window and not is_short():
            move(self._window - 1, -1)
        while self._window < len(self.order) and is_short():
            move(self._window, 1)
        return self._window

    def has_batch(self) -> bool:
        """Whether B groups are complete with nothing open before the last of them."""
        while self._num_complete_in_front < self.batch_size and self._front < len(self.order):
            group = self.order[self._front]
            if group.phase in OPEN or group.may_recover:
                return False
            self._num_complete_in_front += group.phase is Phase.COMPLETE
            self._front += 1
        return self._num_complete_in_front >= self.batch_size

    def take_ready(self, limit: int) -> Iterator[Group]:
        """Yields, once, the probing groups before `limit` whose results are all there."""
        while self._ready and self._ready[0] < limit:
            index = heapq.heappop(self._ready)
            if index in self.idle:
                yield self.order[index]

    def take_unfilled(self, limit: int) -> Iterator[Group]:
        """Yields, once, the committed groups before `limit` that are not granted in full."""
        while self._unfilled and self._unfilled[0] < limit:
            group = self.order[heapq.heappop(self._unfilled)]
            if group.phase is Phase.COMMITTED:
                yield group

    def next_waiting(self) -> Group | None:
        """Returns the first group that was not started."""
        while self._next_waiting < len(self.order):
            group = self.order[self._next_waiting]
            if group.phase is Phase.WAITING:
                return group
            self._next_waiting += 1
        return None

    def _charge(self, group: Group) -> int:
        if group.phase in (Phase.PROBING, Phase.COMMITTED):
            return self.group_size
        # An audit runs outside the budget: of an abandoned group only the prefix counts.
        if group.verdict is Verdict.ABANDON and group.verdict_length is not None:
            return group.verdict_length
        return group.num_launched
