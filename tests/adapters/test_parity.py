"""What a run trains on beside what plain verl does: verl's own data loading, our coordinator, scripted outcomes."""

import asyncio
from collections import Counter

import pytest

from tests.adapters.test_dataset import files, prompts, trainer  # noqa: F401  (a fixture)

pytestmark = pytest.mark.verl


class Run:
    """verl's trainer and our coordinator in one process; a worker that answers at once.

    Attributes:
      visited: Texts of the prompts that were started, in order, a list a step.
      registered: Texts of all prompts that were fetched, a list a step.
    """

    def __init__(self, files, *overrides, options=None, ends_early=False):  # noqa: F811
        from verl_sara.adapters.carried import CARRIED
        from verl_sara.adapters.coordinator import Coordinator
        from verl_sara.config.schema import options_of

        CARRIED.prompts_consumed, CARRIED.coordinator, CARRIED.restored = 0, {}, None
        self.carried, self.ends_early = CARRIED, ends_early
        self.trainer = trainer(*files, "actor_rollout_ref.rollout.n=8", *overrides)
        folder = files[0].parent / "run"
        own = {"run_dir": str(folder), "mini_batch_size": 4, **(options or {})}
        self.coordinator = Coordinator({**options_of(self.trainer.config), **own}, {})
        self.texts, self.visited, self.registered, self.granted = {}, [], [], []

    async def submit(self, step, count):
        batch = self.trainer._next_train_batch(count)
        uids = list(batch["uid"])
        self.texts |= dict(zip(uids, prompts(batch), strict=True))
        self.registered[-1] += prompts(batch)
        await self.coordinator.register(step, list(zip(uids, batch["prompt_id"], strict=True)), None)
        await self.coordinator.report("worker", [(uid, None) for uid in uids])

    async def run_step(self, step):
        """Returns [(text, rollouts)] of the trained groups, in the order of training."""
        self.registered.append([])
        await self.submit(step, 4)
        while not ((action := self.coordinator._next(self.coordinator.step)) and action.is_done):
            if not action:
                await self.answer(1)
                continue
            allocator = self.coordinator.step.allocator
            if self.ends_early and allocator.num_decided()[0]:
                allocator.end_admission()  # the deadline passes while prompts are fetched
            free = min(action.refill, self.carried.num_free())
            if free:
                await self.submit(step, free)
            if free < action.refill:
                await self.coordinator.end_refills(step)
        groups = self.coordinator.step.allocator.groups
        self.visited.append([self.texts[uid] for uid, group in groups.items() if group.slots])
        result = await self.coordinator.finish_step(step)
        self.carried.end_step(result.state, result.evidence, result.unused)
        return [(self.texts[uid], len(result.sessions[uid])) for uid in result.trained]

    async def answer(self, count):
        """Reports up to `count` rollouts of those granted."""
        from tests.adapters.scripted import pool
        from verl_sara.adapters.open_step import RolloutResult
        from verl_sara.core import SlotStatus

        for _ in range(count):
            if self.coordinator._outboxes["worker"].messages:
                granted = await self.coordinator.collect("worker")
                self.granted += [(uid, slot) for uid, slots in granted.items() for slot in slots or []]
            if not self.granted:
                return
            uid, slot = self.granted.pop(0)
            result = RolloutResult(slot, SlotStatus.OK, pool(self.texts[uid], slot).passed, 3)
            await self.coordinator.report("worker", [(uid, result)])


@pytest.mark.parametrize(("size", "steps"), [(12, 7), (14, 3)])
def test_uniform_trains_the_prompts_and_group_sizes_of_plain_verl(files, size, steps):  # noqa: F811
    """Any number of passes if B divides the size, else to the end of the first (plain verl drops the rest)."""
    paths = files(size), files(2, "val")
    plain = trainer(*paths, "actor_rollout_ref.rollout.n=8")
    run = Run(paths, "+sara=uniform")
    for step in range(1, steps + 1):
        expected = prompts(plain._next_train_batch())
        trained = asyncio.run(run.run_step(step))
        assert trained == [(text, plain.config.actor_rollout_ref.rollout.n) for text in expected]


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
@pytest.mark.parametrize("arm", ["paper", "ds"])
def test_every_prompt_is_started_once_per_pass_in_verls_order(files, arm, schedule):  # noqa: F811
    paths = files(40), files(2, "val")
    order = prompts(trainer(*paths)._next_train_batch(40))
    run = Run(paths, f"+sara={arm}", options={"schedule": schedule}, ends_early=True)
    visits = Counter(dict.fromkeys(order, 0))
    for step in range(1, 19):
        asyncio.run(run.run_step(step))
        assert len(set(run.registered[-1])) == len(run.registered[-1]), "a prompt is twice in flight"
        visits.update(run.visited[-1])
        assert max(visits.values()) - min(visits.values()) <= 1
    started = [text for texts in run.visited for text in texts]
    assert len(started) > 60 and started[:40] == order
    assert run.carried.prompts_consumed == len(started)
    assert run.registered != run.visited, "no prompt was left unused: the test shows nothing"
