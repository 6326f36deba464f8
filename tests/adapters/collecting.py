"""A process that collects steps with the real coordinator and mailbox, without Ray: made to be killed.

    python -m tests.adapters.collecting FOLDER STEPS

It says each thing that it has done in a line on its standard output, keeps a checkpoint a step in FOLDER and goes on
from the last one. Outcomes depend on prompt and slot only.
"""

import asyncio
import os
import pickle
import sys
from pathlib import Path

from tests.adapters.chance import draw
from verl_sara.adapters.coordinator import Coordinator
from verl_sara.adapters.mailbox import Mailbox
from verl_sara.adapters.open_step import RolloutResult
from verl_sara.core import SlotStatus

BATCH_SIZE, GROUP_SIZE = 4, 8


class Direct:
    """Calls methods of an object that lives here as if it were an actor's handle."""

    def __init__(self, target):
        self.target = target

    def __getattr__(self, name):
        method = getattr(self.target, name)
        return type("Method", (), {"remote": staticmethod(lambda *args: asyncio.ensure_future(method(*args)))})


def say(*words):
    """Tells the parent at once what is done."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Run:
    """One attempt: trainer, worker and coordinator on one event loop."""

    def __init__(self, folder):
        self.checkpoint = folder / "checkpoint.pickle"
        options = {
            "preset": "paper", "group_size": GROUP_SIZE, "batch_size": BATCH_SIZE, "mini_batch_size": BATCH_SIZE,
            "run_dir": str(folder / "sara"), "run_name": "killed", "prior_source": "history",
        }  # fmt: skip
        self.coordinator = Coordinator(options, {})
        self.mailbox = Mailbox(Direct(self.coordinator), "worker")
        self.saved = {"step": 0, "position": 0}
        if self.checkpoint.exists():
            self.saved = pickle.loads(self.checkpoint.read_bytes())
            self.coordinator.load_state(self.saved["state"])
        self.step, self.position, self.tasks = self.saved["step"], self.saved["position"], set()

    async def submit(self, count):
        prompts = range(self.position, self.position + count)
        self.position += count
        await self.coordinator.register(self.step, [(f"s{self.step}p{n}", f"p{n}") for n in prompts], None)
        say("register", self.step)
        self.tasks |= {asyncio.create_task(self.serve(f"s{self.step}p{number}", f"p{number}")) for number in prompts}

    async def serve(self, uid, prompt):
        self.mailbox.open(uid)
        while (slots := await self.mailbox.grant(uid)) is not None:
            for slot in slots:
                say("launch", self.step)
                self.tasks.add(asyncio.create_task(self.generate(uid, prompt, slot)))
        self.mailbox.close(uid)

    async def generate(self, uid, prompt, slot):
        await asyncio.sleep(0.002 * draw("delay", prompt, slot, os.getpid()))
        rate = (0.0, 1.0, 0.5)[int(draw("kind", prompt) * 3)]
        self.mailbox.post(uid, RolloutResult(slot, SlotStatus.OK, draw("roll", prompt, slot) < rate, 10))
        say("return", self.step)

    async def collect(self):
        self.step += 1
        await self.submit(BATCH_SIZE)
        while not (action := await self.coordinator.next_action(self.step)).is_done:
            if action.refill:
                await self.submit(action.refill)
        say("finish", self.step)
        await self.coordinator.finish_step(self.step)
        say("written", self.step)
        await asyncio.gather(*self.tasks)
        self.tasks = set()
        self.save()

    def save(self):
        say("save", self.step)
        new = self.checkpoint.with_suffix(".new")
        state = {"step": self.step, "position": self.position, "state": self.coordinator.state()}
        new.write_bytes(pickle.dumps(state))
        new.rename(self.checkpoint)
        say("saved", self.step)


async def main():
    run = Run(Path(sys.argv[1]))
    while run.step < int(sys.argv[2]):
        await run.collect()


if __name__ == "__main__":
    asyncio.run(main())
