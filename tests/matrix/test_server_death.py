"""Real `main_ppo` on CPU whose vLLM server dies in the middle of a step: it ends soon, with the cause."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.matrix.test_matrix import DEADLINE_S, demo  # noqa: F401  (fixture)

pytestmark = [pytest.mark.verl, pytest.mark.e2e, pytest.mark.full]
PATIENCE_S = 120


def engine_of(session_members, pid):
    """Process ids of vLLM's engine within the run's session."""
    names = {one: Path(f"/proc/{one}/cmdline").read_text() for one in session_members(pid)}
    return [one for one, name in names.items() if "EngineCore" in name]


def test_a_dead_engine_ends_the_run_with_its_cause(demo, tmp_path):  # noqa: F811
    options = ["trainer.val_before_train=false", "trainer.test_freq=-1"]
    process, end = demo.start("paper", tmp_path, 200, 1, options), time.monotonic() + DEADLINE_S
    journal, log = tmp_path / "sara/journal.attempt-1.jsonl", tmp_path / "console.log"
    try:
        while not (journal.exists() and '"step":3' in journal.read_text()):
            assert process.poll() is None and time.monotonic() < end, log.read_text(errors="replace")[-3000:]
            time.sleep(0.1)
        engines = engine_of(demo.session_members, process.pid)
        assert engines
        for pid in engines:
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        while process.poll() is None and time.monotonic() < killed + PATIENCE_S:
            time.sleep(0.5)
        text = log.read_text(errors="replace")
        assert process.poll() not in (None, 0), text[-6000:]
    finally:
        demo.end_session(process)
    assert "EngineDeadError" in text or "died" in text, text[-6000:]
