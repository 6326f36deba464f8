"""Time and memory of prompt selection on a large data set.

    python tests/benchmarks/bench_selection.py [--prompts 10000000] [--cases dps dps-all ...] [--check]

One step = `observe` a batch of groups, `end_step`, and `select` the next batch in one call; the median and
the worst of `--steps` steps are printed, with the peak resident memory above that of the interpreter with
numpy. Every case runs in a process of its own. `uniform`, `dps` and `mopps` are measured with the default
parameters after `--history` training steps. In the worst cases every prompt has been seen and none is left
out: `dps-all` (decay 1, so that nothing is ever forgotten) and `mopps-all` (every prompt a candidate). `first`
is the first selection of a run, which shuffles the first pass over the data: once in a pass, and no part of
the steps. With `--check` the exit status is 1 if a step of another case than these two takes over 0.5 s, or
its memory over 0.5 GB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import time
from collections.abc import Iterator, Sequence

import numpy as np

from verl_sara.selection import GroupEvidence, PromptSelector, build_selector

PARAMS = {
    "uniform": {},
    "dps": {},
    "dps-all": {"decay": 1.0},
    "mopps": {},
    "mopps-all": {"num_candidates": None},
}
LIMIT_S, LIMIT_GB = 0.5, 0.5


class PromptIds(Sequence[str]):
    """Ids made on the fly, so that the caller's own list is not measured."""

    def __init__(self, num_prompts: int) -> None:
        self._num_prompts = num_prompts

    def __len__(self) -> int:
        return self._num_prompts

    def __getitem__(self, row: int) -> str:  # type: ignore[override]
        return f"{row:016x}"

    def __iter__(self) -> Iterator[str]:
        return (f"{row:016x}" for row in range(self._num_prompts))


def outcomes(ids: PromptIds, rows: np.ndarray, rng: np.random.Generator) -> list[GroupEvidence]:
    """A third of the groups each: effective, all fail, abandoned after 4 fails."""
    kinds = {0: (8, 3, "effective"), 1: (8, 0, "unsolved"), 2: (4, 0, "abandoned")}
    drawn = rng.integers(3, size=len(rows))
    return [
        GroupEvidence(ids[row], kinds[kind][0], kinds[kind][1], 8, kinds[kind][2], 4 / 9)
        for row, kind in zip(rows.tolist(), drawn.tolist(), strict=True)
    ]


def prepare(
    selector: PromptSelector, ids: PromptIds, args: argparse.Namespace, rng: np.random.Generator
) -> None:
    if args.case.endswith("-all"):
        for rows in np.array_split(np.arange(len(ids)), max(1, len(ids) // 100_000)):
            selector.observe(outcomes(ids, rows, rng))
            selector.end_step()
    for _ in range(args.history):
        selector.observe(outcomes(ids, selector.select(args.batch), rng))
        selector.end_step()


def measure(args: argparse.Namespace) -> None:
    """Prints one row of the table."""
    idle_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    rng = np.random.default_rng(0)
    ids = PromptIds(args.prompts)
    selector = build_selector(args.case.split("-")[0], ids, **PARAMS[args.case])
    began = time.perf_counter()
    rows = selector.select(args.batch)
    first_s = time.perf_counter() - began
    selector.observe(outcomes(ids, rows, rng))
    selector.end_step()
    prepare(selector, ids, args, rng)
    parts = []
    rows = selector.select(args.batch)
    for _ in range(args.steps):
        results = outcomes(ids, rows, rng)
        times = [time.perf_counter()]
        selector.observe(results)
        times.append(time.perf_counter())
        selector.end_step()
        times.append(time.perf_counter())
        rows = selector.select(args.batch)
        times.append(time.perf_counter())
        parts.append(np.diff(times))
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6 - idle_gb
    total, (observe_s, end_s, select_s) = np.sum(parts, axis=1), np.median(parts, axis=0)
    numbers = (np.median(total), total.max(), observe_s, end_s, select_s, first_s, peak_gb)
    print(f"{args.case:22}" + "".join(f"{number:9.3f}" for number in numbers))
    if args.check and not args.case.endswith("-all") and (total.max() > LIMIT_S or peak_gb > LIMIT_GB):
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=int, default=10**7)
    parser.add_argument("--batch", type=int, default=512, help="groups per step")
    parser.add_argument("--history", type=int, default=100, help="training steps before measuring")
    parser.add_argument("--steps", type=int, default=11, help="steps measured")
    parser.add_argument("--cases", nargs="+", choices=PARAMS, default=["uniform", "dps", "mopps"])
    parser.add_argument("--check", action="store_true", help="fail above the limits")
    args = parser.parse_args()
    print(f"{args.prompts} prompts, {args.batch} groups per step, times in s, memory in GB")
    print(f"{'case':22}{'median':>9}{'worst':>9}{'observe':>9}{'end_step':>9}{'select':>9}{'first':>9}{'peak':>9}")
    is_over = False
    for case in args.cases:
        process = multiprocessing.get_context("spawn").Process(
            target=measure, args=(argparse.Namespace(**vars(args), case=case),)
        )
        process.start()
        process.join()
        is_over |= process.exitcode != 0
    sys.exit(is_over)


if __name__ == "__main__":
    main()
