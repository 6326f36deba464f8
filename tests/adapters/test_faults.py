"""Bad input and faults through real Ray and TransferQueue: a clear message or a defined outcome."""

from collections import Counter

import pytest

pytestmark = pytest.mark.verl


def sessions(batch):
    return Counter(key.split("_")[0] for key in batch.keys)


def launched(ledger):
    return sum(len(group["slots"]["tokens"]) for group in ledger.groups)


@pytest.mark.parametrize(
    ("info", "message"),
    [
        ({"score": 0.1, "acc": 0.1}, r"data source scripted: acc is 0\.1; allowed: 0 or 1"),
        ({"score": 1.0}, r"data source scripted: the reward returns no 'acc'"),
        ({"score": float("nan"), "acc": float("nan")}, r"acc is nan; allowed: 0 or 1"),
    ],
)
def test_a_verdict_that_is_not_binary_stops_the_first_step(host, info, message):
    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.replay_buffer import StalledError

    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(info=info))
    with pytest.raises(StalledError, match=message):
        h.run_step()


def test_success_threshold_decides_on_the_score(host):
    from tests.adapters.chance import draw
    from tests.adapters.scripted import Behaviour

    def script(prompt, slot):
        return Behaviour(info={"score": 0.9 if draw(prompt, slot) < 0.5 else 0.1})

    h = host("+sara=paper", script=script, options={"success_threshold": 0.5})
    batch, _ = h.run_step()
    assert set(sessions(batch).values()) == {8}


def test_a_reward_that_always_raises_stops_the_run_with_its_message(host):
    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.replay_buffer import StalledError

    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(grade="no gold answer"))
    with pytest.raises(StalledError, match="ValueError: no gold answer"):
        h.run_step()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"grade": "hang"}, r"all \d+ rollouts of step 1 failed; .*no answer after .*rollout_timeout_s is 0\.5"),
        ({"generate": "hang"}, r"all \d+ rollouts of step 1 failed; .*no answer after"),
        ({"generate": "connection lost"}, r"all \d+ rollouts of step 1 failed; .*ConnectionError: connection lost"),
        ({"generate": "odd tool call"}, r"all \d+ rollouts of step 1 failed; .*RuntimeError: odd tool call"),
    ],
)
def test_what_befalls_every_rollout_stops_the_run_with_its_cause(host, fault, message):
    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.replay_buffer import StalledError

    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(**fault), options={"rollout_timeout_s": 0.5})
    with pytest.raises(StalledError, match=message):
        h.run_step()


def test_failing_rollouts_drop_their_group_and_are_counted(host):
    from tests.adapters.chance import draw
    from tests.adapters.scripted import Behaviour

    def script(prompt, slot):
        fault = {"grade": "broken"} if draw("fault", prompt, slot) < 0.05 else {}
        return Behaviour(passed=draw(prompt, slot) < 0.5, **fault)

    h = host("+sara=paper", script=script)
    for _ in range(4):
        batch, _ = h.run_step()
        h.end_step(batch)
        assert set(sessions(batch).values()) == {8} and len(sessions(batch)) == 4
    ledger = h.ledger()
    failed = [group for group in ledger.groups if group["fate"] == "failed"]
    assert failed and all("grader_error" in group["slots"]["status"] for group in failed)
    assert all(tokens == 3 for group in failed for tokens in group["slots"]["tokens"]), "graded or not, they were paid"
    assert all(set(g["slots"]["status"]) == {"ok"} for g in ledger.groups if g["fate"] == "trained")


def test_a_lost_rollout_is_retried_in_its_slot(host):
    from tests.adapters.chance import draw
    from tests.adapters.scripted import Behaviour

    def script(prompt, slot):
        return Behaviour(passed=draw(prompt, slot) < 0.5, generate="connection lost", times=2)

    h = host("+sara=paper", script=script)
    batch, _ = h.run_step()
    assert set(sessions(batch).values()) == {8}
    assert {s for g in h.ledger().groups for s in g["slots"]["status"]} == {"ok"}


def test_a_rollout_that_never_returns_fails_its_group_only(host):
    from tests.adapters.chance import draw
    from tests.adapters.scripted import Behaviour, keys_left

    def script(prompt, slot):
        hang = "hang" if prompt in ("p0", "p2") and slot == 1 else ""
        return Behaviour(passed=draw(prompt, slot) < 0.5, generate=hang)

    h = host("+sara=paper", script=script, options={"rollout_timeout_s": 1.0})
    batch, _ = h.run_step()
    h.end_step(batch)
    groups = {group["prompt_id"]: group for group in h.ledger().groups}
    assert groups["p0"]["fate"] == groups["p2"]["fate"] == "failed"
    assert groups["p0"]["slots"]["status"][1] == "timeout"
    assert len(sessions(batch)) == 4 and keys_left() == []


def test_a_step_without_progress_reports_and_stops(host, capfd):
    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.replay_buffer import StalledError

    options = {"stall_report_s": 0.5, "stall_deadline_s": 2.0}
    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(generate="hang"), options=options)
    with pytest.raises(StalledError, match=r"no progress within stall_deadline_s; step 1: \d+ rollouts in flight"):
        h.run_step()
    assert "waiting for" in capfd.readouterr().out


def test_an_empty_response_is_a_wrong_answer_with_a_row(host):
    from tests.adapters.scripted import Behaviour

    def script(prompt, slot):
        return Behaviour(passed=slot % 2 == 0, tokens=slot % 2 * 0 if slot % 2 else 3)

    h = host("+sara=paper", script=script)
    batch, _ = h.run_step()
    assert set(sessions(batch).values()) == {8}
    tokens = h.ledger().groups[0]["slots"]["tokens"]
    assert tokens == [3, 0] * 4


@pytest.mark.parametrize("on_exhausted", ["train_committed", "fill_saturated"])
def test_a_saturated_pool_ends_the_step_by_its_budget_and_the_run_after_three(host, on_exhausted):
    from tests.adapters.scripted import Behaviour
    from verl_sara.core import NoCommittedGroup

    options = {"max_rollouts_per_step": 64, "on_exhausted": on_exhausted}
    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(passed=False), options=options)
    for _ in range(2):
        batch, metrics = h.run_step()
        h.end_step(batch)
        assert set(sessions(batch).values()) == {5} and len(sessions(batch)) == 4
        assert metrics["sara/effective_fraction"] == 0.0 and metrics["sara/rollouts_launched_total"] <= 64
    with pytest.raises(NoCommittedGroup, match=r"3 step\(s\) in a row without an effective group"):
        h.run_step()
    fates = Counter(group["fate"] for group in h.ledger().groups)
    assert fates["saturated_trained"] == 8 + 4 and fates["abandoned"] > 0


def test_a_short_step_is_filled_with_saturated_groups_only_if_asked(host):
    from tests.adapters.scripted import Behaviour

    def script(prompt, slot):
        return Behaviour(passed=prompt == "p1" and slot == 0)

    for on_exhausted, groups in (("train_committed", 1), ("fill_saturated", 4)):
        h = host("+sara=paper", script=script, options={"max_rollouts_per_step": 64, "on_exhausted": on_exhausted})
        batch, metrics = h.run_step()
        h.end_step(batch)
        assert len(sessions(batch)) == groups and metrics["sara/is_exhausted"] == 1.0
        h.close()


def test_groups_of_two(host):
    from tests.adapters.chance import draw
    from tests.adapters.scripted import Behaviour

    h = host("+sara=paper", "actor_rollout_ref.rollout.n=2", script=lambda *key: Behaviour(passed=draw(*key) < 0.5))
    batch, _ = h.run_step()
    assert set(sessions(batch).values()) == {2} and len(sessions(batch)) == 4
    for group in h.ledger().groups:
        if group["fate"] == "trained":
            assert sorted(group["slots"]["outcome"]) == [0, 1]


def test_a_group_of_one_is_refused_except_where_every_group_is_kept(host):
    from verl_sara.core import ConfigError

    with pytest.raises(ConfigError, match="group_size is 1; allowed: >= 2"):
        host("+sara=paper", "actor_rollout_ref.rollout.n=1")
    h = host("+sara=uniform", "actor_rollout_ref.rollout.n=1")
    batch, _ = h.run_step()
    assert set(sessions(batch).values()) == {1} and len(sessions(batch)) == 4


@pytest.mark.parametrize("file", ["_journal", "_ledger"])
def test_a_full_disk_under_the_ledger_stops_the_run_with_its_cause(host, file):
    import ray

    def fill(coordinator):
        setattr(coordinator.ledger, file, open("/dev/full", "w"))  # noqa: SIM115  every write fails: no space left

    h = host("+sara=paper")
    ray.get(h.manager.coordinator.__ray_call__.remote(fill))
    with pytest.raises(OSError, match="No space left on device"):
        h.run_step()
    assert [group for group in h.ledger().groups if group["fate"] == "trained"] == []


def test_a_dead_coordinator_stops_the_run(host):
    import ray

    h = host("+sara=paper")
    h.step = 1
    h.submit(4)
    ray.kill(h.manager.coordinator)
    with pytest.raises(ray.exceptions.RayActorError):
        h.buffer.sample(global_steps=1, partition_id="train", batch_size=4)


def test_rows_that_transferqueue_lost_stop_the_run(host):
    import transfer_queue as tq

    from verl_sara.adapters.replay_buffer import StalledError

    h = host("+sara=uniform")
    finish = h.buffer._sync_metadata_from_transfer_queue

    def lose_one():
        key = next(k for k in tq.kv_list()["train"] if k.endswith("_3_0"))
        tq.kv_clear(keys=[key], partition_id="train")
        finish()

    h.buffer._sync_metadata_from_transfer_queue = lose_one
    with pytest.raises(StalledError, match=r"TransferQueue lost rollouts \[3\] of prompt"):
        h.run_step()


def test_an_error_that_may_depend_on_the_outcome_is_not_resampled(host):
    from tests.adapters.chance import draw
    from tests.adapters.scripted import Behaviour

    def script(prompt, slot):
        return Behaviour(passed=draw(prompt, slot) < 0.5, generate="odd tool call" if prompt == "p0" else "", times=1)

    h = host("+sara=paper", script=script)
    h.run_step()
    group = next(g for g in h.ledger().groups if g["prompt_id"] == "p0")
    assert group["fate"] == "failed" and set(group["slots"]["status"]) == {"error"}


def test_uniform_goes_on_over_saturated_steps(host):
    from tests.adapters.scripted import Behaviour

    h = host("+sara=uniform", script=lambda prompt, slot: Behaviour(passed=True))
    for _ in range(4):
        batch, _ = h.run_step()
        h.end_step(batch)
        assert len(sessions(batch)) == 4


def test_verls_own_filter_stops_for_a_verdict_that_is_not_binary(host):
    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.replay_buffer import StalledError

    h = host("+sara=verl_ds", script=lambda prompt, slot: Behaviour(info={"score": 0.1, "acc": 0.1}))
    with pytest.raises(StalledError, match=r"acc is 0\.1"):
        h.run_step()


def test_a_step_that_needs_more_prompts_than_there_are_ends_as_exhausted(host, capfd):
    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.carried import CARRIED

    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(passed=prompt == "p1" and slot == 0))
    CARRIED.num_free = lambda: 10 - h.position
    try:
        batch, metrics = h.run_step()
    finally:
        CARRIED.num_free = None
    h.end_step(batch)
    assert len(sessions(batch)) == 1 and metrics["sara/prompts_visited_total"] == 10
    assert "no prompt was left" in capfd.readouterr().out
