"""What the coordinator adds to a step: real Ray actors, fake generation, measured beside its baseline.

    python tests/benchmarks/bench_coordinator.py [--prompts 4096] [--group-size 16] [--workers 4] [--generation 60]

Baseline: the same workers run the same rollouts (a sleep each) without asking anybody. The added time is
given as a share of the baseline's, and the coordinator's processor time per rollout beside it; the
latter, times the rollouts of a step, is what one coordinator can bear.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
import uuid

import ray

from verl_sara.adapters.coordinator import Coordinator
from verl_sara.adapters.mailbox import Mailbox
from verl_sara.adapters.open_step import RolloutResult
from verl_sara.core import SlotStatus


@ray.remote(num_cpus=0)
class MeasuredCoordinator(Coordinator):
    """The coordinator, which also tells its processor time."""

    async def cpu_s(self) -> float:
        return time.process_time()


@ray.remote(num_cpus=0)
class Worker:
    """A rollout worker whose generation is a sleep."""

    def __init__(self, coordinator, generation_s: float) -> None:
        self.mailbox, self.generation_s = Mailbox(coordinator, uuid.uuid4().hex), generation_s

    async def generate(self, uid: str, slot: int) -> RolloutResult:
        draw = random.Random(f"{uid}/{slot}")
        await asyncio.sleep(self.generation_s * (0.5 + draw.random()))
        return RolloutResult(slot, SlotStatus.OK, draw.random() < 0.5, 100)

    async def alone(self, uids: list[str], group_size: int) -> None:
        await asyncio.gather(*(self.generate(uid, slot) for uid in uids for slot in range(group_size)))

    async def coordinated(self, uids: list[str]) -> None:
        await asyncio.gather(*(self.serve(uid) for uid in uids))

    async def serve(self, uid: str) -> None:
        async def run(slot: int) -> None:
            self.mailbox.post(uid, await self.generate(uid, slot))

        tasks = []
        self.mailbox.open(uid)
        while (slots := await self.mailbox.grant(uid)) is not None:
            tasks += [asyncio.create_task(run(slot)) for slot in slots]
        await asyncio.gather(*tasks)
        self.mailbox.close(uid)


def main() -> None:
    """Runs both and prints one JSON line."""
    parser = argparse.ArgumentParser()
    for name, default in (("prompts", 4096), ("group-size", 16), ("workers", 4), ("generation", 60)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "preset": "uniform", "group_size": args.group_size, "batch_size": args.prompts, "rule": "full",
            "mini_batch_size": args.prompts, "run_dir": folder, "run_name": "bench", "keep_saturated": True,
        }  # fmt: skip
        coordinator = MeasuredCoordinator.options(max_concurrency=10_000).remote(options, {})
        workers = [Worker.remote(coordinator, args.generation) for _ in range(args.workers)]
        uids = [f"u{number}" for number in range(args.prompts)]
        shares = [uids[start :: args.workers] for start in range(args.workers)]
        ray.get([worker.alone.remote([], 1) for worker in workers])
        started = time.monotonic()
        pairs = zip(workers, shares, strict=True)
        ray.get([worker.alone.remote(share, args.group_size) for worker, share in pairs])
        alone_s = time.monotonic() - started
        before, started = ray.get(coordinator.cpu_s.remote()), time.monotonic()
        ray.get(coordinator.register.remote(1, [(uid, uid) for uid in uids], None))
        running = [worker.coordinated.remote(share) for worker, share in zip(workers, shares, strict=True)]
        while not ray.get(coordinator.next_action.remote(1)).is_done:
            pass
        ray.get(coordinator.finish_step.remote(1))
        ray.get(running)
        with_s = time.monotonic() - started
        rollouts = args.prompts * args.group_size
        cpu_s = ray.get(coordinator.cpu_s.remote()) - before
    print(
        json.dumps(
            {
                "rollouts": rollouts,
                "alone_s": round(alone_s, 2),
                "coordinated_s": round(with_s, 2),
                "added_share": round(with_s / alone_s - 1, 4),
                "coordinator_cpu_us_per_rollout": round(1e6 * cpu_s / rollouts, 1),
            }
        )
    )
    ray.shutdown()


if __name__ == "__main__":
    main()
