"""The demo: real verl `main_ppo` on CPU, one run an arm, one table side by side, a report.

    python recipes/countdown_tiny/demo.py [--arms "verl_ds ds paper"] [--steps 14] [--out runs/demo]

Writes under --out: per arm verl's logs and the ledger, `summary.json`, and the report with its
figures.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))

from prepare import prepare  # noqa: E402

from verl_sara.cpu import cpu_environment  # noqa: E402

DEFAULT_ARMS = "verl_ds ds paper"
ARM_DEADLINE_S = 900
SILENCE_DEADLINE_S = 420
STEP_LINE = re.compile(r"\bstep:(\d+) - ")


def command(arm: str, run_dir: Path, steps: int, seed: int, extra: list[str]) -> list[str]:
    """Returns the command of one arm: what a user types, with the recipe's config."""
    return [
        sys.executable, "-m", "verl.trainer.main_ppo", "--config-dir", str(ROOT),
        "+recipes/countdown_tiny=config", "+sara/host=cpu", f"+sara={arm}",
        f"trainer.default_local_dir={run_dir}", f"trainer.experiment_name={arm}",
        f"trainer.total_training_steps={steps}", f"trainer.test_freq={steps}", f"data.seed={seed}",
        f"hydra.run.dir={run_dir}/hydra", *extra,
    ]  # fmt: skip


def start(arm: str, run_dir: Path, steps: int, seed: int, extra: list[str], attempt: int = 1) -> subprocess.Popen:
    """Starts one arm in a session of its own; its output goes to `console.log` in its folder."""
    run_dir.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ,
        **cpu_environment(),
        "COUNTDOWN_TINY": str(ROOT / ".cache/countdown_tiny"),
        "VERL_FILE_LOGGER_PATH": str(run_dir / f"verl.attempt-{attempt}.jsonl"),
        "PYTHONUNBUFFERED": "1",
    }
    with open(run_dir / "console.log", "ab") as out:
        return subprocess.Popen(
            command(arm, run_dir, steps, seed, extra), cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


def run_arm(arm: str, run_dir: Path, steps: int, seed: int, extra: list[str]) -> float:
    """Runs one arm to its end, showing its steps; returns its seconds.

    Raises:
      SystemExit: If it fails, falls silent or exceeds its deadline; its processes are ended.
    """
    began, log = time.monotonic(), run_dir / "console.log"
    process = start(arm, run_dir, steps, seed, extra)
    try:
        _follow(process, log, arm, steps, began)
    finally:
        end_session(process)
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise SystemExit(f"{tail}\ndemo: arm {arm} ended with status {process.returncode}; whole log: {log}")
    return time.monotonic() - began


def _follow(process: subprocess.Popen, log: Path, arm: str, steps: int, started: float) -> None:
    seen, size, last_change = 0, 0, time.monotonic()
    print(f"[{arm}] starting verl (about two minutes to the first step)", flush=True)
    while process.poll() is None:
        time.sleep(1)
        text = log.read_text(errors="replace")
        if len(text) != size:
            size, last_change = len(text), time.monotonic()
        done = max([0, *map(int, STEP_LINE.findall(text))])
        if done > seen:
            seen = done
            print(f"[{arm}] step {seen}/{steps}  {time.monotonic() - started:.0f} s", flush=True)
        now = time.monotonic()
        if now - started > ARM_DEADLINE_S or now - last_change > SILENCE_DEADLINE_S:
            end_session(process)
            raise SystemExit(
                f"demo: arm {arm} made no progress and was ended at step {seen}; whole log: {log}"
            )


def end_session(process: subprocess.Popen) -> None:
    """Ends the run and what it started: verl's own children and its Ray, which share its session."""
    for sig, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        members = session_members(process.pid)
        if not members:
            break
        for pid in members:
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                continue
        end = time.monotonic() + patience
        while session_members(process.pid) and time.monotonic() < end:
            process.poll()
            time.sleep(0.2)
    process.wait()


def session_members(session: int) -> list[int]:
    """Returns the pids of a session that are not zombies (Linux)."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            members.append(int(stat.parent.name))
    return members


def show_pool(pool: dict) -> None:
    """Prints the pool's mix and the condition under which stopping pays, both measured."""
    keys = ("all_fail", "mixed", "all_pass", "pbar", "q", "bound", "margin")
    print(
        "pool, full groups on held-out prompts: " + ", ".join(f"{k} {pool[k]:.3f}" for k in keys)
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arms", default=DEFAULT_ARMS, help="presets, separated by spaces")
    parser.add_argument("--steps", type=int, default=14, help="training steps an arm")
    parser.add_argument("--seed", type=int, default=1, help="order of the prompts")
    parser.add_argument("--out", type=Path, default=ROOT / "runs/demo", help="folder to write to")
    args, extra = parser.parse_known_args()
    from verl_sara.report import write_report
    from verl_sara.summary import summarise, table

    out, arms = args.out.resolve(), args.arms.split()
    show_pool(prepare(ROOT / ".cache/countdown_tiny"))
    for arm in arms:
        shutil.rmtree(out / arm, ignore_errors=True)
        seconds = run_arm(arm, out / arm, args.steps, args.seed, extra)
        print(f"[{arm}] done in {seconds:.0f} s", flush=True)
    folders = {arm: out / arm for arm in arms}
    summary = summarise(folders)
    (out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    report = write_report(folders, out / "report")
    print(f"\n{table(summary)}\n\nsummary: {out / 'summary.json'}\nreport: {report}")


if __name__ == "__main__":
    main()
