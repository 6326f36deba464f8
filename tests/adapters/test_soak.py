"""Many steps on a fake generator while everything fails at random: nothing is lost, leaked or left behind."""

import time
from collections import Counter

import pytest

pytestmark = [pytest.mark.verl, pytest.mark.slow]

FAULT_RATE = 0.05
GROUP_SIZE, BATCH_SIZE, PROMPTS = 4, 4, 300
LOST, ODD, UNGRADED = {"generate": "connection lost"}, {"generate": "odd tool call"}, {"grade": "no gold"}
GENERATION = [LOST, {**LOST, "times": 1}, {**LOST, "times": 2}, ODD, {"tokens": 0}] * 4 + [{"generate": "hang"}]
GRADING = [UNGRADED, {**UNGRADED, "times": 1}] * 10 + [{"grade": "hang"}]
MAX_GROWTH_MB = 24


def script(prompt, slot):
    """One rollout in twenty fails to be generated and one in twenty to be graded, each in one of several ways."""
    from tests.adapters.chance import draw
    from tests.adapters.scripted import Behaviour

    fault = {"passed": draw("roll", prompt, slot) < (0.0, 1.0, 0.5, 0.5)[int(draw("kind", prompt) * 4)]}
    for name, faults in (("generation", GENERATION), ("grading", GRADING)):
        if draw(name, prompt, slot) < FAULT_RATE:
            fault |= faults[int(draw("how", name, prompt, slot) * len(faults))]
    return Behaviour(**fault)


def memory_mb(host):
    """Resident memory of coordinator and workers, in MB."""
    import ray

    def resident(_):
        import psutil

        return psutil.Process().memory_info().rss / 1e6

    actors = [host.manager.coordinator, *host.actors.workers]
    return ray.get([actor.__ray_call__.remote(resident) for actor in actors])


def wait_until_idle(host):
    """Waits until the workers hold nothing of the step any more."""
    import ray

    end = time.monotonic() + 10.0
    while held := [each for each in ray.get([w.pending.remote() for w in host.actors.workers]) if any(each.values())]:
        assert time.monotonic() < end, f"workers still hold {held}"
        time.sleep(0.01)


@pytest.mark.parametrize("steps", [30, pytest.param(200, marks=pytest.mark.full)])
def test_everything_fails_at_random_and_every_rollout_is_accounted_for(host, steps):
    import ray

    from tests.adapters.scripted import keys_left
    from verl_sara.ledger import balance

    h = host(
        "+sara=tuned", f"actor_rollout_ref.rollout.n={GROUP_SIZE}", script=script, num_prompts=PROMPTS,
        options={"rollout_timeout_s": 2.0, "audit_fraction": 0.1},
    )  # fmt: skip
    generated, memory = [], []
    for step in range(1, steps + 1):
        batch, _ = h.run_step()
        rows = Counter(key.split("_")[0] for key in batch.keys)
        assert len(rows) == BATCH_SIZE and set(rows.values()) == {GROUP_SIZE}
        assert set(keys_left()) == set(batch.keys)
        h.end_step(batch)
        wait_until_idle(h)
        generated.append(sum(ray.get([worker.take_attempts.remote() for worker in h.actors.workers])))
        if step in (steps // 3, steps):
            memory.append(memory_mb(h))
    assert keys_left() == []
    growth = [round(after - before, 1) for before, after in zip(*memory, strict=True)]
    assert max(growth) < MAX_GROWTH_MB, f"coordinator and workers grew by {growth} MB"

    ledger = h.ledger()
    assert [step["step"] for step in ledger.history()] == list(range(1, steps + 1)) and ledger.problems == []
    statuses = Counter()
    for step, slots in zip(ledger.history(), generated, strict=True):
        groups = [group for group in ledger.groups if group["step"] == step["step"]]
        assert balance(groups) == step["fates"]
        assert step["fates"]["launched"]["rollouts"] == slots, "a rollout is missing or invented"
        statuses += Counter(status for group in groups for status in group["slots"]["status"])
    assert set(statuses) == {"ok", "error", "lost", "timeout", "grader_error"}
    assert all(set(group["slots"]["status"]) == {"ok"} for group in ledger.groups if group["fate"] == "trained")
