"""What the coordinator adds to a step: real Ray actors, fake generation, measured beside its baseline.

    python tests/benchmarks/bench_coordinator.py [--prompts 4096] [--group-size 16] [--workers 4] [--step 180]
        [--scale 4096 16384 65536]

A step: the baseline's workers run all rollouts (a sleep each, the longest `--step` seconds, which is short for so
many real ones) without asking anybody; then the same workers run the same rollouts as the coordinator grants
them. `added_share` is what that takes longer, as a share of the baseline; what is added hardly depends on the
length of the step.

Scale: rollouts return at once, so the coordinator has more to do than it can. Its processor time a
rollout says how many one coordinator carries; `cpu_bound_s` is the shortest step that it can keep up
with, and `one_percent_s` the shortest one to which registering and closing, during which nothing is
generated, add 1 %.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
import uuid
from contextlib import contextmanager

import ray

from verl_sara.adapters.coordinator import Coordinator
from verl_sara.adapters.mailbox import Mailbox
from verl_sara.adapters.open_step import RolloutResult
from verl_sara.core import SlotStatus

RULES = {
    "uniform": {"rule": "full", "keep_saturated": True},
    "tuned": {
        "rule": "renewal", "tau_low": None, "prior_source": "history", "probe_size": 2, "schedule": "streaming",
        "audit_fraction": 0.02,
    },
}  # fmt: skip
PASS_RATES = (0.0, 1.0, 0.5, 0.05, 0.95)


@ray.remote(num_cpus=0)
class MeasuredCoordinator(Coordinator):
    """The coordinator, which also tells its processor time."""

    async def cpu_s(self) -> float:
        return time.process_time()


@ray.remote(num_cpus=0)
class Worker:
    """A rollout worker whose generation is a sleep, or nothing at all."""

    def __init__(self, coordinator, step_s: float) -> None:
        self.mailbox, self.step_s = Mailbox(coordinator, uuid.uuid4().hex), step_s
        self.tasks: set[asyncio.Task] = set()

    async def generate(self, uid: str, slot: int) -> RolloutResult:
        draw = random.Random(f"{uid}/{slot}")
        if self.step_s:
            await asyncio.sleep(self.step_s * (1.0 + 2.0 * draw.random()) / 3.0)
        return RolloutResult(slot, SlotStatus.OK, draw.random() < PASS_RATES[int(uid[1:]) % 5], 100)

    async def alone(self, uids: list[str], group_size: int) -> None:
        await asyncio.gather(*(self.generate(uid, slot) for uid in uids for slot in range(group_size)))

    async def take(self, uids: list[str]) -> None:
        """Starts prompts, as verl's worker does."""
        self.tasks |= {asyncio.create_task(self.serve(uid)) for uid in uids}

    async def serve(self, uid: str) -> None:
        async def run(slot: int) -> None:
            self.mailbox.post(uid, await self.generate(uid, slot))

        self.mailbox.open(uid)
        while (slots := await self.mailbox.grant(uid)) is not None:
            if self.step_s:
                self.tasks |= {asyncio.create_task(run(slot)) for slot in slots}
            else:
                for slot in slots:
                    await run(slot)
        self.mailbox.close(uid)

    async def end(self) -> None:
        await asyncio.gather(*self.tasks)
        self.tasks = set()


@contextmanager
def actors(rule: str, prompts: int, group_size: int, num_workers: int, step_s: float):
    """A coordinator and its workers, all of them started."""
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "preset": rule, "group_size": group_size, "batch_size": prompts, "mini_batch_size": prompts,
            "run_dir": folder, "run_name": "bench", **RULES[rule],
        }  # fmt: skip
        coordinator = MeasuredCoordinator.options(max_concurrency=10_000).remote(options, {})
        workers = [Worker.remote(coordinator, step_s) for _ in range(num_workers)]
        ray.get([coordinator.cpu_s.remote(), *(worker.alone.remote([], 1) for worker in workers)])
        yield coordinator, workers
        for actor in (*workers, coordinator):
            ray.kill(actor)


def run_step(coordinator, workers, prompts: int) -> dict[str, float]:
    """Runs a step as verl does and returns what it took."""
    num_prompts, cpu_s, started = 0, ray.get(coordinator.cpu_s.remote()), time.monotonic()

    def submit(count: int) -> None:
        nonlocal num_prompts
        uids = [f"u{number}" for number in range(num_prompts, num_prompts + count)]
        num_prompts += count
        ray.get(coordinator.register.remote(1, [(uid, uid) for uid in uids], None))
        ray.get([worker.take.remote(uids[i :: len(workers)]) for i, worker in enumerate(workers)])

    submit(prompts)
    registered = time.monotonic()
    while not (action := ray.get(coordinator.next_action.remote(1))).is_done:
        if action.error:
            raise SystemExit(action.error)
        if action.refill:
            submit(action.refill)
    done = time.monotonic()
    result = ray.get(coordinator.finish_step.remote(1))
    ended = time.monotonic()
    ray.get([worker.end.remote() for worker in workers])
    return {
        "prompts": num_prompts,
        "rollouts": int(result.metrics["sara/rollouts_launched_total"]),
        "seconds": ended - started,
        "register_s": registered - started,
        "close_s": ended - done,
        "cpu_s": ray.get(coordinator.cpu_s.remote()) - cpu_s,
    }


def measure_share(args: argparse.Namespace) -> dict[str, float]:
    """Returns the added share of a step of `args.step` seconds."""
    with actors("uniform", args.prompts, args.group_size, args.workers, args.step) as (coordinator, workers):
        uids = [f"u{number}" for number in range(args.prompts)]
        started = time.monotonic()
        ray.get(
            [worker.alone.remote(uids[i :: args.workers], args.group_size) for i, worker in enumerate(workers)]
        )
        alone_s = time.monotonic() - started
        took = run_step(coordinator, workers, args.prompts)
    return {
        "rollouts": took["rollouts"],
        "alone_s": alone_s,
        "coordinated_s": took["seconds"],
        "added_s": took["seconds"] - alone_s,
        "added_share": took["seconds"] / alone_s - 1,
        **{name: took[name] for name in ("register_s", "close_s", "cpu_s")},
    }


def measure_scale(args: argparse.Namespace, rule: str, prompts: int) -> dict[str, float | str]:
    """Returns what one coordinator carries with `prompts` groups to train in a step."""
    with actors(rule, prompts, args.group_size, args.workers, 0.0) as (coordinator, workers):
        took = run_step(coordinator, workers, prompts)
    return {
        "rule": rule,
        "groups": prompts,
        **took,
        "cpu_us_per_rollout": 1e6 * took["cpu_s"] / took["rollouts"],
        "rollouts_per_s": took["rollouts"] / took["cpu_s"],
        "cpu_bound_s": took["cpu_s"],
        "one_percent_s": 100 * (took["register_s"] + took["close_s"]),
    }


def main() -> None:
    """Prints a JSON line for the step and one for every size and rule."""
    parser = argparse.ArgumentParser()
    for name, default in (("prompts", 4096), ("group-size", 16), ("workers", 4), ("step", 180)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--scale", type=int, nargs="*", default=[4096, 16384, 65536])
    args = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    if args.step:
        show(measure_share(args))
    for prompts in args.scale:
        for rule in RULES:
            show(measure_scale(args, rule, prompts))
    ray.shutdown()


def show(numbers: dict[str, float | str]) -> None:
    """Prints a line."""
    rounded = {name: round(x, 4) if isinstance(x, float) else x for name, x in numbers.items()}
    print(json.dumps(rounded), flush=True)


if __name__ == "__main__":
    main()
