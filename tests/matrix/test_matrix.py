"""Real `main_ppo` on CPU, two steps of every cell: batches, groups, advantages and losses are what they should be."""

import json
import math
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import mean

import pytest

from tests.matrix.cells import CELLS, DR_GRPO
from tests.matrix.expected import EXPECTED, dr_grpo

ROOT = Path(__file__).parents[2]
STEPS, DEADLINE_S = 2, 600
pytestmark = [pytest.mark.verl, pytest.mark.e2e, pytest.mark.full]


@pytest.fixture(scope="module")
def demo():
    sys.path.insert(0, str(ROOT / "recipes/countdown_tiny"))
    import demo
    from prepare import prepare

    prepare(ROOT / ".cache/countdown_tiny")
    return demo


def run(demo, cell, folder, monkeypatch):
    """Runs the cell to its end, or fails with the end of its log."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    buffer = "trainer.v1.sampler.custom_sampler"
    options = [
        "trainer.val_before_train=false", "trainer.test_freq=-1",
        f"{buffer}.path=pkg://tests.matrix.recording", f"{buffer}.name=RecordingReplayBuffer", *cell.overrides,
    ]  # fmt: skip
    process, end = demo.start(cell.preset, folder, STEPS, 1, options), time.monotonic() + DEADLINE_S
    try:
        while process.poll() is None and time.monotonic() < end:
            time.sleep(0.5)
    finally:
        demo.end_session(process)
    log = (folder / "console.log").read_text(errors="replace")
    assert process.returncode == 0, log[-6000:]


def read_lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def rows_of(folder, step):
    """The rows of a batch without verl's padding."""
    rows = [row for row in read_lines(folder / f"advantages.{step}.jsonl") if not row["key"].startswith("pad")]
    for row in rows:
        row["uid"], row["session"], _ = row["key"].split("_")
        row["rewards"] = row["token_level_rewards"]
    return rows


def check_groups(cell, rows, groups):
    """The batch holds the trained groups, each complete and mixed, with the scores they were decided on."""
    trained = {group["uid"]: group for group in groups if group["fate"] == "trained"}
    assert (0 < len(trained) < cell.batch_size) if cell.is_short else len(trained) == cell.batch_size
    assert len(rows) == len(trained) * cell.group_size and {row["uid"] for row in rows} == set(trained)
    for uid, group in trained.items():
        outcomes = group["slots"]["outcome"]
        assert len(outcomes) == cell.group_size and 0 < sum(outcomes) < cell.group_size
        scores = {int(row["session"]): sum(row["token_level_scores"]) for row in rows if row["uid"] == uid}
        assert {slot: int(score >= 1) for slot, score in scores.items()} == dict(enumerate(outcomes))
    return len(trained) / cell.batch_size


def check_advantages(cell, rows, weight):
    """Every token's advantage is that of the definition, times the weight of a short step."""
    estimate = dr_grpo if cell.options[:3] == DR_GRPO else EXPECTED[cell.estimator]
    for row, expected in zip(rows, estimate(rows), strict=True):
        assert row["advantages"] == pytest.approx([weight * value for value in expected], abs=2e-4)
    if estimate in (dr_grpo, EXPECTED["grpo"], EXPECTED["rloo"]):
        groups = defaultdict(list)
        for row in rows:
            groups[row["uid"]] += row["advantages"][:1]
        for advantages in groups.values():
            assert sum(advantages) == pytest.approx(0.0, abs=1e-3) and any(advantages)


def check_losses(cell, rows, numbers, step):
    """The update is on-policy, so the policy loss is minus the aggregated advantage; nothing is NaN or zero."""
    tokens = [value for row in rows for value in row["advantages"]]
    aggregated = sum(tokens) / 32 / len(rows) if cell.options[:3] == DR_GRPO else mean(tokens)
    assert numbers["actor/pg_loss"] == pytest.approx(-aggregated, abs=1e-4)
    assert numbers["actor/grad_norm"] > 0.0
    assert all(math.isfinite(value) for key, value in numbers.items() if key.startswith(("actor/", "critic/")))
    if cell.estimator == "gae":
        assert numbers["critic/vf_loss"] > 0.0 and numbers["critic/grad_norm"] > 0.0
    if "actor_rollout_ref.actor.use_kl_loss=true" in cell.options:
        assert numbers["actor/kl_loss"] > 0.0 or step == 1  # before the first update the reference is the policy


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_two_steps(demo, cell, tmp_path, monkeypatch):
    from verl_sara.ledger import read_ledger

    run(demo, cell, tmp_path, monkeypatch)
    ledger = read_ledger(tmp_path / "sara")
    log = {line["step"]: line["data"] for line in read_lines(tmp_path / "verl.attempt-1.jsonl")}
    assert [step["step"] for step in ledger.history()] == [1, 2] == sorted(log) and not ledger.lost_rollouts
    for step, numbers in log.items():
        groups = [group for group in ledger.groups if group["step"] == step]
        rows = rows_of(tmp_path, step)
        filled = check_groups(cell, rows, groups)
        check_advantages(cell, rows, filled if cell.is_short else 1.0)
        check_losses(cell, rows, numbers, step)
        assert numbers["sara/effective_fraction"] == 1.0
        assert numbers["sara/is_exhausted"] == float(cell.is_short)
        if any(option.endswith("use_kl_in_reward=true") for option in cell.options):
            assert step == 1 or any(row["rewards"] != row["token_level_scores"] for row in rows)
