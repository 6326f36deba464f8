"""How busy a step keeps the server: groups in service over time, against the most at once."""

import math
from typing import Any

Record = dict[str, Any]


class Occupancy:
    """Per step: mean groups in service / most groups in service at once, in (0, 1].

    A group is in service from its first grant until it is settled. 1 - occupancy is the share of the
    collection in which places stood empty: barriers and the tail of long rollouts.
    """

    def __init__(self) -> None:
        self._spans: dict[tuple[int, int], list[tuple[float, float]]] = {}

    def add(self, group: Record) -> None:
        """Takes one group; those without both times are passed over."""
        times = group.get("times") or {}
        if "granted_s" in times and "closed_s" in times:
            key = (group.get("attempt", 1), group["step"])
            self._spans.setdefault(key, []).append((times["granted_s"], times["closed_s"]))

    def by_step(self) -> dict[tuple[int, int], float]:
        """Returns the occupancy by (attempt, step), NaN where no time passed."""
        return {key: _occupancy(spans) for key, spans in sorted(self._spans.items())}


def _occupancy(spans: list[tuple[float, float]]) -> float:
    start, end = min(first for first, _ in spans), max(last for _, last in spans)
    if end <= start:
        return math.nan
    events = sorted([(first, 1) for first, _ in spans] + [(last, -1) for _, last in spans])
    in_service = most = 0
    for _, change in events:
        in_service += change
        most = max(most, in_service)
    busy = sum(last - first for first, last in spans)
    return busy / (most * (end - start)) if most else math.nan
