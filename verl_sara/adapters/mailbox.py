"""A rollout worker's side of the talk with the coordinator: few messages, whatever the number of prompts.

Results of all prompts of a worker that come within a moment travel in one message; grants for all of
them come back through one standing request.
"""

import asyncio
from typing import Any

from verl_sara.adapters.open_step import RolloutResult

BATCH_S = 0.02
"""Seconds for which results are gathered before they are sent; small against any generation."""

Slots = list[int] | None
"""Slots to run, or None once the group is closed."""


class Mailbox:
    """Posts results and hands out grants, by prompt. Lives on the worker's event loop.

    Args:
      coordinator: Handle of the coordinator actor.
      worker: Name of this worker, unique within the run.
    """

    def __init__(self, coordinator: Any, worker: str) -> None:
        self.coordinator, self.worker = coordinator, worker
        self._boxes: dict[str, asyncio.Queue[Slots | Exception]] = {}
        self._outgoing: list[tuple[str, RolloutResult | None]] = []
        self._has_outgoing = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def open(self, uid: str) -> None:
        """Announces that this worker serves a prompt."""
        if not self._tasks or any(task.done() for task in self._tasks):
            self._tasks = [asyncio.create_task(self._send()), asyncio.create_task(self._receive())]
        self._boxes[uid] = asyncio.Queue()
        self._post(uid, None)

    def post(self, uid: str, result: RolloutResult) -> None:
        """Sends one result."""
        self._post(uid, result)

    async def grant(self, uid: str) -> Slots:
        """Waits for the next slots of a prompt; None once its group is closed.

        Raises:
          Exception: What broke the connection to the coordinator.
        """
        slots = await self._boxes[uid].get()
        if isinstance(slots, Exception):
            raise slots
        return slots

    def close(self, uid: str) -> None:
        """Forgets a prompt."""
        self._boxes.pop(uid, None)

    def _post(self, uid: str, result: RolloutResult | None) -> None:
        self._outgoing.append((uid, result))
        self._has_outgoing.set()

    async def _send(self) -> None:
        try:
            while True:
                await self._has_outgoing.wait()
                await asyncio.sleep(BATCH_S)
                outgoing, self._outgoing = self._outgoing, []
                self._has_outgoing.clear()
                await self.coordinator.report.remote(self.worker, outgoing)
        except Exception as error:
            self._fail(error)

    async def _receive(self) -> None:
        try:
            while True:
                for uid, slots in (await self.coordinator.collect.remote(self.worker)).items():
                    if uid in self._boxes:
                        self._boxes[uid].put_nowait(slots)
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        for box in self._boxes.values():
            box.put_nowait(error)
