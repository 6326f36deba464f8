"""Real verl on two nodes of the real Slurm: two trainers and two engines in one Ray cluster."""

import pytest

from tests.slurm.test_training import train_and_evaluate, use_verl
from verl_sara.ledger import read_ledger

pytestmark = [pytest.mark.slurm, pytest.mark.verl, pytest.mark.e2e, pytest.mark.full]


def test_a_job_on_two_nodes_trains_to_the_end(project):
    use_verl(project)
    project.env |= {"GLOO_SOCKET_IFNAME": "lo"}  # the nodes share a machine, and their names have no address
    run, _, evaluation = train_and_evaluate(
        project, "train_multinode.sbatch", "trainer.total_training_steps=1", "trainer.save_freq=1",
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32",  # 64 responses, half of them on each node
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32",
    )  # fmt: skip
    assert [step["step"] for step in read_ledger(run).history()] == [1]
    shards = sorted(path.name for path in (run / "global_step_1/actor").glob("model_world_size_*"))
    assert shards == ["model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt"]
    state = project.wait(evaluation, seconds=600)
    assert state["JobState"] == "COMPLETED", project.output(evaluation)[-3000:]
    assert (run / "eval/model.step-1/model.safetensors").exists(), "one process cannot load the shards of two"
    assert (run / "eval.step-1.json").exists()
