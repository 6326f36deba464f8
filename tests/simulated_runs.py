"""Run folders as training leaves them: the real allocator and ledger over a simulated pool of prompts.

`python -m tests.simulated_runs FOLDER` writes the arms of the demo there.
"""

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path

from verl_sara.core import (
    UNIFORM,
    CommitRate,
    Fate,
    FullGroup,
    SaraThreshold,
    StepAllocator,
    StepSettings,
)
from verl_sara.ledger import LedgerWriter, group_record

PRESETS = {
    "paper": {},
    "ds": {"rule": "full"},
    "verl_ds": {"rule": "full", "mode": "observe"},
    "uniform": {"rule": "full", "keep_saturated": True},
}


class World:
    """Prompts whose pass rate rises with the steps; a rollout depends on step, prompt and slot only."""

    def __init__(self, seed: int, num_prompts: int = 400, audits: float = 0.0) -> None:
        draw = random.Random(seed)
        self.seed, self.step, self.audits = seed, 0, audits
        hard = [draw.betavariate(0.4, 12) for _ in range(num_prompts * 35 // 100)]
        easy = [draw.betavariate(14, 0.4) for _ in range(num_prompts * 30 // 100)]
        middle = [draw.betavariate(2, 2) for _ in range(num_prompts - len(hard) - len(easy))]
        self.rates = hard + easy + middle
        self.order = self._passes()
        self.dispatched: dict[str, int] = {}

    def _passes(self) -> Iterator[int]:
        epoch = 0
        while True:
            prompts = list(range(len(self.rates)))
            random.Random(f"{self.seed}/{epoch}").shuffle(prompts)
            yield from prompts
            epoch += 1

    def fresh(self) -> tuple[str, str]:
        """Returns (uid, prompt_id) of the next prompt."""
        prompt = next(self.order)
        uid = f"u{self.step}x{len(self.dispatched)}"
        self.dispatched[uid] = prompt
        return uid, f"{prompt:016x}"

    def rollout(self, uid: str, slot: int) -> tuple[bool, int]:
        """Returns (passed, tokens); fails are about twice as long."""
        draw = random.Random(f"{self.seed}/{self.step}/{self.dispatched[uid]}/{slot}")
        passed = draw.random() < min(1.0, self.rates[self.dispatched[uid]] * (1 + 0.01 * self.step))
        return passed, 1 + int(draw.lognormvariate(3.0 if passed else 3.7, 0.4))

    def is_audited(self) -> bool:
        """Whether the prompt that was drawn last is to be audited."""
        return random.Random(f"{self.seed}/{len(self.dispatched)}/audit").random() < self.audits

    def accuracy(self) -> float:
        """Returns the mean pass rate of the pool at the present step."""
        return sum(min(1.0, rate * (1 + 0.01 * self.step)) for rate in self.rates) / len(self.rates)


def options(preset: str, folder: Path, **changes) -> dict:
    """Returns the options of a run of a preset."""
    sizes = {"group_size": 8, "batch_size": 8, "mini_batch_size": 8}
    names = {"run_dir": str(folder), "run_name": preset, "preset": preset, "mode": "collect"}
    rule = {"rule": "threshold", "tau_low": 0.4, "prior": [1.0, 1.0], "probe_size": 4, "increment": 1}
    return {**sizes, **names, **rule, "keep_saturated": False, **PRESETS[preset], **changes}


def write_run(folder: Path, preset: str, *, steps: int = 12, seed: int = 0, first: int = 1, **changes) -> Path:
    """Writes ledger and verl log of one attempt, steps `first`.. `steps`, and returns the run folder.

    `changes` are options of the run, and `audits`, the share of the abandoned groups that are completed.
    """
    audits = changes.pop("audits", 0.0)
    settings = options(preset, folder, **changes)
    world, rate = World(seed, audits=audits), CommitRate()
    writer = LedgerWriter(folder / "sara", preset, {"options": settings, "versions": {}, "started_unix_s": 0})
    rows = [{"step": 0, "data": {"val-core/countdown/acc/mean@4": world.accuracy()}}] if first == 1 else []
    for number in range(1, steps + 1):
        world.step = number
        allocator = new_step(settings, rate)
        fates = (observe if settings["mode"] == "observe" else collect)(allocator, world)
        rate.end_step(*allocator.num_decided())
        if number >= first:
            close_step(writer, allocator, fates, number)
            rows.append({"step": number, "data": timings(allocator)})
            if number % 4 == 0 or number == steps:
                rows[-1]["data"]["val-core/countdown/acc/mean@4"] = world.accuracy()
    writer.close()
    log = folder / f"verl.attempt-{writer.attempt}.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def new_step(settings: dict, rate: CommitRate) -> StepAllocator:
    """Returns the allocator of a step with a run's options."""
    is_full = settings["rule"] == "full"
    sizes = StepSettings(
        group_size=settings["group_size"],
        batch_size=settings["batch_size"],
        probe_size=settings["group_size"] if is_full else settings["probe_size"],
        increment=settings["increment"],
        keep_saturated=settings["keep_saturated"],
    )
    return StepAllocator(sizes, FullGroup() if is_full else SaraThreshold(settings["tau_low"]), rate)


def collect(allocator: StepAllocator, world: World) -> dict[str, Fate]:
    """Runs a step that the allocator decides, after verl's first B prompts."""
    for _ in range(allocator.settings.batch_size):
        allocator.register(*world.fresh(), UNIFORM, audited=world.is_audited())
    while not (advice := allocator.advance()).is_done:
        for _ in range(advice.refill):
            allocator.register(*world.fresh(), UNIFORM, audited=world.is_audited())
        for grant in advice.grants:
            for slot in grant.slots:
                allocator.record(grant.uid, slot, *world.rollout(grant.uid, slot))
    return allocator.finish()


def observe(allocator: StepAllocator, world: World) -> dict[str, Fate]:
    """Runs a step as verl's own filter does: whole groups, two fresh prompts for every one evicted."""
    batch_size = allocator.settings.batch_size
    wave, mixed = batch_size, []
    while wave:
        uids = [world.fresh() for _ in range(wave)]
        wave = 0
        for uid, prompt_id in uids:
            allocator.register(uid, prompt_id, UNIFORM)
            for slot in allocator.grant_whole(uid).slots:
                allocator.record(uid, slot, *world.rollout(uid, slot))
            if allocator.groups[uid].is_mixed:
                mixed.append(uid)
            else:
                wave += 2
        wave = 0 if len(mixed) >= batch_size else wave
    allocator.finish()
    fates = dict.fromkeys(allocator.groups, Fate.ABANDONED) | dict.fromkeys(mixed, Fate.SURPLUS)
    return fates | dict.fromkeys(mixed[:batch_size], Fate.TRAINED)


def close_step(writer: LedgerWriter, allocator: StepAllocator, fates: dict[str, Fate], number: int) -> None:
    """Writes the lines of a step, with times as a server of 64 slots would give them."""
    clock, records = 0.0, []
    for group in allocator.groups.values():
        clock += group.num_tokens / 6400
        times = {"registered_s": 0.0, "granted_s": 0.0, "closed_s": round(clock, 3)} if group.slots else {}
        record = group_record(group, fates[group.uid], step=number, prompt_tokens=24, times=times)
        records.append(record)
    committed, decided = allocator.num_decided()
    summary = {
        "step": number,
        "rounds": allocator.round_index,
        "committed": committed,
        "decided": decided,
        "commit_rate": committed / decided if decided else 0.0,
        "is_exhausted": allocator.is_exhausted,
        "collect_s": round(clock, 3),
        "statuses": {"ok": allocator.num_launched},
    }
    writer.write_step(records, summary, allocator.num_launched)


def timings(allocator: StepAllocator) -> dict[str, float]:
    """Returns verl's timing metrics of a step."""
    generate = 0.2 * allocator.round_index + sum(g.num_tokens for g in allocator.groups.values()) / 6400
    phases = {"gen": generate, "old_log_prob": 0.5, "adv": 0.05, "update_actor": 1.5, "update_weights": 0.1}
    values = {f"timing_s/{name}": value for name, value in phases.items()}
    return values | {"timing_s/step": sum(phases.values()) + 0.3, "timing_s/testing": 0.4}


def write_arms(folder: Path, presets=("verl_ds", "ds", "paper"), **changes) -> dict[str, Path]:
    """Writes a run folder per preset and returns them by name."""
    return {preset: write_run(folder / preset, preset, **changes) for preset in presets}


if __name__ == "__main__":
    write_arms(Path(sys.argv[1]), ("verl_ds", "ds", "uniform", "paper"))
