"""Processes that die in the middle of a step, and runs that share a machine, through real Ray and TransferQueue."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.verl


@pytest.fixture
def mortals(actors):
    """Processes of this test alone."""
    from tests.adapters.scripted import Actors

    own = Actors()
    yield own
    own.close()


def test_a_dead_reward_worker_stops_the_run_with_its_cause_and_no_response_is_sampled_again(host, mortals):
    """Which responses kill a grader depends on what they are: a second one in their place would tilt the group."""
    import ray

    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.replay_buffer import StalledError

    h = host("+sara=paper", script=lambda prompt, slot: Behaviour(grade="die"), actors=mortals)
    with pytest.raises(StalledError, match=r"all \d+ rollouts of step 1 failed; the last one: reward function: Actor"):
        h.run_step()
    attempts = ray.get([worker.__ray_call__.remote(lambda self: dict(self.attempts)) for worker in mortals.workers])
    assert {count for each in attempts for count in each.values()} == {1}


def test_a_server_lost_in_mid_step_stops_the_run_by_the_next_step_and_no_part_of_a_group_is_trained(host):
    from tests.adapters.chance import draw
    from tests.adapters.scripted import Behaviour
    from verl_sara.adapters.replay_buffer import StalledError

    def script(prompt, slot):
        lost = int(prompt[1:]) >= 5
        return Behaviour(passed=draw(prompt, slot) < 0.5, generate="connection lost" if lost else "")

    h = host("+sara=paper", script=script)
    with pytest.raises(StalledError, match=r"all .* rollouts of step .* failed; .*ConnectionError: connection lost"):
        for _ in range(2):
            batch, _ = h.run_step()
            h.end_step(batch)
    trained = [group for group in h.ledger().groups if group["fate"] == "trained"]
    assert all(len(group["slots"]["outcome"]) == 8 and None not in group["slots"]["outcome"] for group in trained)


RUN = """
import sys, ray
ray.init(address=sys.argv[1], namespace="shared", log_to_driver=False)
from tests.adapters.scripted import compose_config
from verl_sara.adapters.compat import check_alone
from verl_sara.adapters.coordinator import coordinator_actor
from verl_sara.config.schema import options_of
config = compose_config("+sara=paper", "actor_rollout_ref.rollout.n=8", "data.train_batch_size=4",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4", "trainer.default_local_dir=" + sys.argv[2])
coordinator = coordinator_actor(options_of(config), {})
ray.get(coordinator.register.remote(1, [("u", "p")], None))
check_alone()
print("alone", flush=True)
sys.stdin.read()
"""


def start_run(address, folder):
    return subprocess.Popen(
        [sys.executable, "-c", RUN, address, str(folder)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_a_second_run_on_the_same_ray_is_refused_and_leaves_the_first_alone(tmp_path, actors):
    """Even with one run folder and one namespace, coordinators and ledgers are apart."""
    import ray

    from verl_sara.ledger import attempts

    address = ray.get_runtime_context().gcs_address
    first = start_run(address, tmp_path)
    try:
        assert first.stdout.readline() == "alone\n", first.communicate()[1][-2000:]
        second = start_run(address, tmp_path)
        _, errors = second.communicate(timeout=120)
        assert second.returncode == 1 and "another run of SARA (Ray job" in errors
        assert first.poll() is None
        third_would_be = list(attempts(tmp_path / "sara"))
        assert len(third_would_be) == 2, "each run has a ledger of its own"
    finally:
        first.stdin.close()
        first.wait(timeout=60)
