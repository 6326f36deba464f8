"""The batch scripts on a real Slurm, with a program in verl's place that writes real ledgers."""

from pathlib import Path

import pytest

from tests.slurm.conftest import Project
from verl_sara.ledger import read_ledger

pytestmark = [pytest.mark.slurm]
STEPS = "trainer.total_training_steps=3"


@pytest.fixture(scope="module", autouse=True)
def timed(cluster, tmp_path_factory):
    """A job that meets its time limit: it begins first and is looked at last."""
    project = Project(tmp_path_factory.mktemp("timed"), cluster)
    job = project.submit(
        "--time=1", "--signal=B:USR1@50", "slurm/train.sbatch", "countdown_tiny", "paper", "--",
        "trainer.total_training_steps=8", "trainer.save_freq=2", "+program.step_s=5",
    )  # fmt: skip
    return project, job


def last_lines(text, count=25):
    return "\n".join(text.splitlines()[-count:])


def test_a_run_writes_ledger_and_log_into_its_folder(project):
    job = project.submit("slurm/train.sbatch", "countdown_tiny", "paper", "--", STEPS)
    state = project.wait(job)
    output = project.output(job)
    assert state["JobState"] == "COMPLETED", last_lines(output)
    run = project.runs / "countdown_tiny/paper/seed0"
    ledger = read_ledger(run)
    assert [step["step"] for step in ledger.history()] == [1, 2, 3] and not ledger.lost
    assert (run / "verl.attempt-1.jsonl").read_text().count("\n") == 3
    assert "attempt 1: steps 1 to 3" in output
    assert ledger.runs[0]["temp"].startswith("/tmp/sara-") and len(ledger.runs[0]["temp"]) <= 39


def test_a_finished_run_is_left_alone(project):
    project.wait(project.submit("slurm/train.sbatch", "countdown_tiny", "ds", "1", "--", STEPS))
    job = project.submit("slurm/train.sbatch", "countdown_tiny", "ds", "1", "--", STEPS)
    assert project.wait(job)["JobState"] == "COMPLETED"
    assert "step 3 of 3 is done already" in project.output(job)
    assert len(read_ledger(project.runs / "countdown_tiny/ds/seed1").runs) == 1


def test_a_job_array_runs_arms_times_seeds(project):
    job = project.submit("--array=0-3", "slurm/array.sbatch", "countdown_tiny", "paper ds", "0 7", "--", STEPS)
    for task in range(4):
        assert project.wait(f"{job}_{task}")["JobState"] == "COMPLETED", last_lines(project.output(job, str(task)))
    found = {
        (arm, seed): read_ledger(project.runs / f"countdown_tiny/{arm}/seed{seed}").runs[0]["options"]["preset"]
        for arm in ("paper", "ds")
        for seed in (0, 7)
    }
    assert found == {("paper", 0): "paper", ("paper", 7): "paper", ("ds", 0): "ds", ("ds", 7): "ds"}


def test_a_failing_training_gives_a_failed_job_with_its_status(project):
    job = project.submit("slurm/train.sbatch", "countdown_tiny", "paper", "--", STEPS, "+program.fail_at=2")
    state = project.wait(job)
    assert (state["JobState"], state["ExitCode"]) == ("FAILED", "3:0")


def test_fewer_steps_than_asked_for_fail_though_the_training_says_success(project):
    short = project.root / "short.py"
    short.write_text("import sys\nsys.exit(0)\n")
    project.env["SARA_TRAIN"] = str(short)
    job = project.submit("slurm/train.sbatch", "countdown_tiny", "paper", "--", STEPS)
    assert project.wait(job)["JobState"] == "FAILED"
    assert "the training did not do what was asked" in project.output(job)


def test_a_job_without_the_gpus_and_cpus_that_verl_waits_for_is_refused(project):
    units = "transfer_queue.backend.SimpleStorage.num_data_storage_units=1"
    for options, message in (
        ([], "the job has no GPU and countdown_qwen2.5_3b needs one"),
        (["--gpus-per-node=null:1"], "the job has 1 CPUs a node, and verl would wait for ever with fewer than 7"),
        (["--gpus-per-node=1", "--cpus-per-task=7"], ""),
        (["--gres=gpu:null:1", "--cpus-per-task=7"], ""),
    ):
        arm = "ds" if "--gpus-per-node=1" in options else "paper"
        job = project.submit(*options, "slurm/train.sbatch", "countdown_qwen2.5_3b", arm, "--", STEPS, units)
        assert project.wait(job)["JobState"] == ("FAILED" if message else "COMPLETED"), project.output(job)
        assert (message or "trainer.n_gpus_per_node=1") in project.output(job)


def test_two_jobs_on_one_node_at_once_keep_apart(project):
    slow = (STEPS, "+program.step_s=2")
    jobs = [
        project.submit("--nodelist=node1", "slurm/train.sbatch", "countdown_tiny", arm, "--", *slow)
        for arm in ("paper", "ds")
    ]
    for job in jobs:
        project.wait(job, "RUNNING")
    assert [project.cluster.job(job)["JobState"] for job in jobs] == ["RUNNING"] * 2
    headers = []
    for job, arm in zip(jobs, ("paper", "ds"), strict=True):
        assert project.wait(job)["JobState"] == "COMPLETED", last_lines(project.output(job))
        headers.append(read_ledger(project.runs / f"countdown_tiny/{arm}/seed0").runs[0])
    assert {header["host"] for header in headers} == {"node1"}
    assert len({header["temp"] for header in headers}) == 2


def test_a_second_job_in_the_same_run_folder_is_refused(project):
    first = project.submit("slurm/train.sbatch", "countdown_tiny", "paper", "--", STEPS, "+program.step_s=2")
    project.cluster.wait_for(lambda: "data.seed" in project.output(first), 240, "the first job trains")
    second = project.submit("slurm/train.sbatch", "countdown_tiny", "paper", "--", STEPS)
    assert project.wait(second)["JobState"] == "FAILED"
    assert "another job works in" in project.output(second)
    assert project.wait(first)["JobState"] == "COMPLETED"


def test_a_cancelled_job_ends_its_training_and_is_not_requeued(project):
    job = project.submit("slurm/train.sbatch", "countdown_tiny", "paper", "--", STEPS, "+program.step_s=300")
    journal = project.runs / "countdown_tiny/paper/seed0/sara/journal.attempt-1.jsonl"
    project.cluster.wait_for(lambda: journal.exists() and journal.read_text(), 240, "the training has begun")
    project.cluster.ask("scancel", job)
    assert project.wait(job)["JobState"] == "CANCELLED"
    assert read_ledger(journal.parent).lost_rollouts == 1


@pytest.mark.verl
def test_two_nodes_join_one_ray_cluster(project):
    job = project.submit("slurm/train_multinode.sbatch", "countdown_tiny", "paper", "--", STEPS)
    state = project.wait(job, seconds=240)
    assert state["JobState"] == "COMPLETED", last_lines(project.output(job), 60)
    run = project.runs / "countdown_tiny/paper/seed0"
    address, *hosts = (run / "nodes.txt").read_text().splitlines()
    assert hosts == [f"node1 /tmp/sara-{job}-0", f"node2 /tmp/sara-{job}-1"], "each node has a folder, and clears it"
    assert address in project.output(job) and "auto" not in address
    assert not list(run.glob(".ray-token-*")) and not list(Path("/tmp").glob(f"sara-{job}-*"))
    assert "trainer.nnodes=2" in project.output(job)


def test_the_time_limit_requeues_and_the_run_goes_on_from_its_checkpoint(timed):
    """The signal comes within half a minute, in whichever step; the second attempt does the rest."""
    project, job = timed
    state = project.wait(job, "COMPLETED", seconds=180)
    output = project.output(job)
    assert state["Restarts"] != "0" and "USR1, ending the run" in output
    run = project.runs / "countdown_tiny/paper/seed0"
    ledger = read_ledger(run)
    assert [step["step"] for step in ledger.history()] == list(range(1, 9))
    assert len(ledger.runs) == int(state["Restarts"]) + 1
    assert sorted(path.name for path in run.glob("verl.attempt-*.jsonl")) == [
        f"verl.attempt-{number}.jsonl" for number in range(1, len(ledger.runs) + 1)
    ]
    first_of_second = next(step["step"] for step in ledger.steps if step["attempt"] == 2)
    assert first_of_second % 2 == 1, "the second attempt begins after a checkpoint"
