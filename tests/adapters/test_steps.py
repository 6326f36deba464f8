"""Whole steps through real Ray and TransferQueue with scripted answers."""

from collections import Counter

import pytest

pytestmark = pytest.mark.verl


def rows_of(batch):
    return Counter(key.split("_")[0] for key in batch.keys)


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_paper_trains_complete_mixed_groups_and_leaves_nothing_behind(host, schedule):
    from tests.adapters.scripted import keys_left

    h = host("+sara=paper", options={"schedule": schedule})
    for _ in range(3):
        batch, metrics = h.run_step()
        assert set(rows_of(batch).values()) == {8} and len(rows_of(batch)) == 4
        assert metrics["sara/effective_fraction"] == 1.0
        assert set(keys_left()) == set(batch.keys)
        h.end_step(batch)
    assert keys_left() == []
    ledger = h.ledger()
    assert [s["step"] for s in ledger.history()] == [1, 2, 3] and ledger.problems == []
    for group in ledger.groups:
        outcomes = group["slots"]["outcome"]
        if group["fate"] == "trained":
            assert len(outcomes) == 8 and 0 < sum(outcomes) < 8
        if group["verdict"] == "abandon":
            assert len(set(outcomes)) == 1 and len(outcomes) == 5 and group["p_eff"] < 0.4
    assert {g["fate"] for g in ledger.groups} >= {"trained", "abandoned"}


def test_uniform_trains_every_prompt_with_k_rollouts_in_dispatch_order(host):
    h = host("+sara=uniform")
    batch, metrics = h.run_step()
    h.end_step(batch)
    groups = h.ledger().groups
    assert [g["prompt_id"] for g in groups] == ["p0", "p1", "p2", "p3"]
    assert {g["fate"] for g in groups} <= {"trained", "saturated_trained"}
    assert list(dict.fromkeys(key.split("_")[0] for key in batch.keys)) == [g["uid"] for g in groups]
    assert metrics["sara/rollouts_launched_total"] == 32


def test_dynamic_sampling_generates_full_groups_and_evicts_saturated_ones(host):
    h = host("+sara=ds")
    for _ in range(2):
        batch, metrics = h.run_step()
        h.end_step(batch)
        assert len(rows_of(batch)) == 4 and metrics["sara/effective_fraction"] == 1.0
    groups = h.ledger().groups
    assert {len(g["slots"]["outcome"]) for g in groups} == {8}
    assert all(len(set(g["slots"]["outcome"])) == 1 for g in groups if g["fate"] == "abandoned")


def test_verl_ds_is_verls_own_filter_with_a_ledger(host):
    h = host("+sara=verl_ds")
    for _ in range(2):
        batch, metrics = h.run_step()
        h.end_step(batch)
        assert len(rows_of(batch)) == 4
    groups = h.ledger().groups
    evicted = [g for g in groups if g["fate"] == "abandoned"]
    assert evicted and all(len(set(g["slots"]["outcome"])) == 1 for g in evicted)
    assert all(len(set(g["slots"]["outcome"])) == 2 for g in groups if g["fate"] in ("trained", "surplus"))
    assert {len(g["slots"]["outcome"]) for g in groups} == {8}
    assert metrics["training/filter_groups/evicted_samples"] > 0


def test_validation_goes_through_untouched(host):
    import ray

    from tests.adapters.scripted import keys_left

    h = host("+sara=paper", "actor_rollout_ref.rollout.val_kwargs.n=3")
    uids = h.submit(5, partition="val")
    batch, metrics = h.buffer.sample(global_steps=0, partition_id="val", batch_size=5)
    assert rows_of(batch) == dict.fromkeys(uids, 3) and metrics == {}
    h.end_step(batch)
    ray.get(h.manager.coordinator.state.remote())
    assert keys_left() == [] and h.ledger().groups == []


def test_the_state_of_a_run_is_restored_and_its_ledger_continued(host, tmp_path):
    from verl_sara.adapters.carried import CARRIED

    h = host("+sara=paper", options={"schedule": "streaming"})
    batch, _ = h.run_step()
    h.end_step(batch)
    state = CARRIED.state_dict()
    assert state["coordinator"]["commit_rate"]["decided"] > 0
    h.step = 2
    h.submit(4)
    h.close()

    again = host("+sara=paper")
    again.step, again.position = 1, h.position
    CARRIED.load_state_dict(state)
    batch, _ = again.run_step()
    again.end_step(batch)
    ledger = again.ledger()
    assert [(s["step"], s["attempt"]) for s in ledger.history()] == [(1, 1), (2, 2)]
    assert ledger.lost_rollouts > 0
    before, news = state["coordinator"]["commit_rate"]["decided"], ledger.history()[1]["decided"]
    assert CARRIED.coordinator["commit_rate"]["decided"] == 0.8 * before + news


def test_prefix_groups_and_budget_mode(host):
    h = host("+sara=paper", options={"group_completion": "prefix"})
    batch, _ = h.run_step()
    h.end_step(batch)
    assert all(2 <= n < 8 for n in rows_of(batch).values()) and len(rows_of(batch)) == 4
    h.close()
    h = host("+sara=paper", options={"collect": "budget"})
    batch, metrics = h.run_step()
    assert metrics["sara/rollouts_launched_total"] <= 32 and set(rows_of(batch).values()) == {8}


def test_tuned_learns_priors_and_audits_what_it_abandons(host):
    from verl_sara.adapters.carried import CARRIED

    h = host("+sara=tuned", options={"audit_fraction": 0.5}, num_prompts=40)
    for _ in range(6):
        batch, _ = h.run_step()
        h.end_step(batch)
        assert set(rows_of(batch).values()) == {8} and len(rows_of(batch)) == 4
    groups = h.ledger().groups
    audits = [g for g in groups if g["fate"] == "audit"]
    assert audits and all(len(g["slots"]["outcome"]) == 8 and g["verdict"] == "abandon" for g in audits)
    assert len({tuple(g["prior"]) for g in groups if g["step"] == 6}) > 1, "no prompt has a history of its own"
    state = CARRIED.coordinator
    assert state["prior_source"] == "history" and state["priors"]["tallies"]
    assert state["running_yield"]["committed"] > 0


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_audited_groups_that_are_mixed_are_trained_with_their_weight(host, schedule):
    from verl_sara.adapters.carried import CARRIED
    from verl_sara.core import prob_keep

    options = {
        "probe_size": 2, "tau_low": 0.7, "audit_fraction": 0.5, "train_audited": True, "schedule": schedule,
        "importance_correction": "horvitz_thompson",
    }  # fmt: skip
    h = host("+sara=paper", options=options)
    metrics = []
    for _ in range(6):
        batch, numbers = h.run_step()
        h.end_step(batch)
        metrics.append(numbers)
        assert set(rows_of(batch).values()) == {8} and len(rows_of(batch)) == 4
        groups = [g for g in h.ledger().groups if g["step"] == h.step]
        trained = {g["uid"]: sum(g["slots"]["outcome"]) for g in groups if g["fate"] == "trained"}
        keep = {u: prob_keep(s, group_size=8, fail_length=2, pass_length=2, recovered=0.5) for u, s in trained.items()}
        assert CARRIED.weights == pytest.approx({uid: 1 / chance for uid, chance in keep.items()})
    ledger = h.ledger()
    assert ledger.problems == []
    audits = [g for g in ledger.groups if g["verdict"] == "abandon" and len(g["slots"]["outcome"]) == 8]
    mixed = [g for g in audits if len(set(g["slots"]["outcome"])) == 2]
    assert any(g["fate"] == "trained" for g in mixed)
    assert {g["fate"] for g in audits if g not in mixed} == {"audit"}
    assert metrics[-1]["sara/audits_run"] == len(audits)
    assert metrics[-1]["sara/wrong_abandon_rate_run"] == len(mixed) / len(audits)
    assert ("sara/rounds" in metrics[-1]) == (schedule == "rounds")


def test_a_saturated_step_with_every_abandoned_group_audited_is_filled_with_those(host):
    from tests.adapters.scripted import Behaviour

    options = {"max_rollouts_per_step": 64, "on_exhausted": "fill_saturated", "audit_fraction": 1.0}
    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(passed=False), options=options)
    batch, metrics = h.run_step()
    assert set(rows_of(batch).values()) == {8} and len(rows_of(batch)) == 4
    assert metrics["sara/effective_fraction"] == 0.0 and metrics["sara/wrong_abandon_rate"] == 0.0


def test_what_the_trainer_keeps_of_the_priors_is_what_the_coordinator_has(host):
    import ray

    from verl_sara.adapters.carried import CARRIED

    h = host("+sara=tuned", num_prompts=40)
    for _ in range(4):
        batch, _ = h.run_step()
        h.end_step(batch)
        assert CARRIED.coordinator == ray.get(h.manager.coordinator.state.remote())


def test_a_worker_that_dies_stops_the_run_at_once_with_the_cause(host):
    from tests.adapters.scripted import Actors, Behaviour
    from verl_sara.adapters.replay_buffer import StalledError

    def script(prompt, slot):
        return Behaviour(delay_s=0.5, generate="die" if (prompt, slot) == ("p2", 3) else "")

    own = Actors(num_workers=2)
    h = host("+sara=paper", script=script, actors=own)
    with pytest.raises(StalledError, match=r"a rollout worker died: .*pid: \d+ .*process has died"):
        h.run_step()
    own.close()
