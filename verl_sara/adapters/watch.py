"""Notices rollout workers whose process died: their rollouts never return.

The manager, which has the workers' handles, and the replay buffer, which waits for their rollouts, are
built apart by verl in the trainer process; they meet here. The coordinator is not told the handles: Ray
would import the workers' class, and with it verl and torch, into its process.
"""

from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayError


class WorkerWatch:
    """Asks every worker, again and again, whether it is there; one question is open at a time.

    Attributes:
      workers: Handles of the rollout workers.
    """

    def __init__(self) -> None:
        self.workers: Sequence[Any] = ()
        self._asked: list[tuple[Any, Any]] = []

    def death(self) -> str:
        """Returns which worker died and of what, as Ray tells it; empty while all are there."""
        asked = [(worker, ref) for worker, ref in self._asked if any(worker is one for one in self.workers)]
        idle = [worker for worker in self.workers if not any(worker is one for one, _ in asked)]
        asked += [(worker, worker.__ray_ready__.remote()) for worker in idle]
        done = set(ray.wait([ref for _, ref in asked], num_returns=len(asked), timeout=0)[0]) if asked else set()
        self._asked = [(worker, ref) for worker, ref in asked if ref not in done]
        for ref in done:
            try:
                ray.get(ref)
            except ActorUnavailableError:
                continue  # a network fault, perhaps; if it was not, the next answer says so
            except RayError as error:
                return f"a rollout worker died: {' '.join(str(error).split())}"
        return ""


WATCH = WorkerWatch()
"""The one of this process."""
