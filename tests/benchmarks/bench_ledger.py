"""Loads a ledger of a million groups, as a frame and as the summary of an arm; --check fails above limits."""

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.simulated_runs import write_run

LIMIT_S, LIMIT_GB = 10.0, 1.0


def grow(folder: Path, num_groups: int) -> Path:
    """Writes a run of at least `num_groups` groups: a simulated one, its steps repeated under new numbers."""
    ledger = write_run(folder / "run", "paper", steps=12) / "sara" / "ledger.attempt-1.jsonl"
    header, *body = ledger.read_text().splitlines(keepends=True)
    parts = [line.split('"step":', 1) for line in body]
    parts = [(head, *tail.split(",", 1)) for head, tail in parts]
    per_cycle = sum('"kind":"group"' in head for head, _, _ in parts)
    with ledger.open("w") as file:
        file.write(header)
        for cycle in range(-(-num_groups // per_cycle)):
            file.writelines(f'{head}"step":{int(step) + 12 * cycle},{tail}' for head, step, tail in parts)
    print(f"{-(-num_groups // per_cycle) * per_cycle:,} groups, {ledger.stat().st_size / 1e6:,.0f} MB")
    return folder / "run"


def measure(case: str, folder: Path, is_checked: bool) -> None:
    """Prints one row; exits with 1 above the limits of the frame."""
    if case == "frame":
        from verl_sara.report.frames import group_frame as load
    else:
        from verl_sara.summary import summarise_arm as load
    started, cpu = time.perf_counter(), time.process_time()
    load(folder)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{case:10}{seconds:10.2f}{cpu:10.2f}{peak_gb:10.2f}", flush=True)
    if is_checked and case == "frame" and (min(seconds, cpu) > LIMIT_S or peak_gb > LIMIT_GB):
        sys.exit(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=10**6)
    parser.add_argument("--check", action="store_true", help="fail above the limits")
    args = parser.parse_args()
    is_over = False
    with tempfile.TemporaryDirectory() as folder:
        run = grow(Path(folder), args.groups)
        print(f"{'case':10}{'s':>10}{'CPU s':>10}{'peak GB':>10}", flush=True)
        for case in ("frame", "summary"):
            process = multiprocessing.get_context("spawn").Process(target=measure, args=(case, run, args.check))
            process.start()
            process.join()
            is_over |= process.exitcode != 0
    sys.exit(is_over)


if __name__ == "__main__":
    main()
