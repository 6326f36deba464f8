"""Real `main_ppo` runs on CPU that are killed after a checkpoint and resumed; shared by the tests of this folder."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
TASK = ROOT / ".cache/countdown_tiny"
DEADLINE_S = 900
sys.path.insert(0, str(ROOT / "recipes/countdown_tiny"))

from demo import end_session, session_members, start  # noqa: E402
from prepare import prepare  # noqa: E402


def kill_and_resume(
    arm: str, folder: Path, options: Sequence[str], *, steps: int, killed_after: int, at_the_end: Sequence[str] = ()
) -> Path:
    """Runs the tiny Countdown task in two attempts and returns the run's folder.

    Attempt 1 is killed (SIGKILL, all its processes) in the step after the checkpoint of `killed_after`;
    attempt 2 resumes with `trainer.resume_mode=auto` and the further options `at_the_end`.
    """
    prepare(TASK)
    options = [
        f"trainer.save_freq={killed_after}", "trainer.resume_mode=auto", "trainer.val_before_train=false",
        "trainer.test_freq=-1", *options,
    ]  # fmt: skip
    log, tracker = folder / "console.log", folder / "latest_checkpointed_iteration.txt"
    first = start(arm, folder, steps, 1, options, attempt=1)
    try:
        _wait_for(lambda: tracker.exists() and tracker.read_text() == str(killed_after), first, log)
        files = [folder / f"sara/{name}.attempt-1.jsonl" for name in ("journal", "ledger")]
        _wait_for(lambda: any(f'"step":{killed_after + 1}' in file.read_text() for file in files), first, log)
        for pid in session_members(first.pid):
            os.kill(pid, signal.SIGKILL)
    finally:
        end_session(first)
    log.rename(folder / "console.attempt-1.log")
    second = start(arm, folder, steps, 1, [*options, *at_the_end], attempt=2)
    try:
        second.wait(timeout=DEADLINE_S)
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"main_ppo did not end within {DEADLINE_S} s:\n{_tail(log)}") from error
    finally:
        end_session(second)
    assert second.returncode == 0, _tail(log)
    return folder


def _wait_for(condition: Callable[[], bool], process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert process.poll() is None, f"main_ppo ended early:\n{_tail(log)}"
        assert time.monotonic() < end, f"main_ppo did not get there within {DEADLINE_S} s:\n{_tail(log)}"
        time.sleep(0.5)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:]
