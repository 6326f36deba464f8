"""The batch scripts without a Slurm: fake `srun` and `scontrol`, many nodes, and what shellcheck says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted([*(ROOT / "slurm").glob("*.sh"), *(ROOT / "slurm").glob("*.sbatch")])

FAKES = {
    # expands node[01-03,7] and lists of them, as scontrol does
    "scontrol": """#!/usr/bin/env python3
import re, sys
if sys.argv[1:3] == ["show", "hostnames"]:
    for name, ranges in re.findall(r"([^,\\[]+)(?:\\[([^]]*)\\])?,?", sys.argv[3]):
        for part in ranges.split(",") if ranges else [""]:
            first, dash, last = part.partition("-")
            for number in range(int(first), int(last or first) + 1) if part else [None]:
                print(name if number is None else f"{name}{number:0{len(first)}d}")
""",
    # runs the step here; a Ray node only opens the port of the head
    "srun": """#!/usr/bin/env bash
echo "$*" >>"$FAKE_LOG"
while [[ $1 == --* ]]; do shift; done
if [[ $1 == */ray_node.sh ]]; then
  [[ $2 != 0 ]] || exec python3 -c 'import socket, sys, time
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(("", int(sys.argv[1]))); s.listen(); time.sleep(60)' "${3##*:}"
  exec sleep 60
fi
exec "$@"
""",
    "scancel": "#!/usr/bin/env bash\npkill -TERM -P $PPID || true  # the steps are children of the script\n",
}


@pytest.fixture
def fakes(tmp_path):
    """Returns the environment of a job with fake commands of Slurm."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in FAKES.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    python = folder / "python"  # answers for Ray, is Python for the rest
    python.write_text(
        '#!/usr/bin/env bash\n[[ $1 != */ray_nodes.py ]] || { echo "joined $3"; exit 0; }\n'
        f'exec "{sys.executable}" "$@"\n'
    )
    python.chmod(0o755)
    return {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SARA"))} | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "FAKE_LOG": str(tmp_path / "srun.log"),
        "SARA_ROOT": str(ROOT),
        "SARA_RUNS": str(tmp_path / "my runs"),
        "SARA_PYTHON": str(python),
        "SARA_TRAIN": str(ROOT / "tests/slurm/ledger_program.py"),
        "SARA_SITE": "/dev/null",
        "SARA_MIN_FREE_GB": "0",
        "SARA_GRACE": "2",
    }


def shell(fakes, command, **extra):
    return subprocess.run(
        ["bash", "-c", f"set -Eeuo pipefail; {command}"], env={**fakes, **extra}, capture_output=True, text=True,
        timeout=120, cwd=ROOT,
    )  # fmt: skip


def in_env(fakes, command, **extra):
    """Runs functions of env.sh."""
    return shell(fakes, f". slurm/env.sh; {command}", **extra)


def test_shellcheck_finds_nothing():
    command = [str(Path(sys.executable).with_name("shellcheck")), "-x", "-P", str(ROOT), *map(str, SCRIPTS)]
    job = subprocess.run(command, capture_output=True, text=True)
    assert job.returncode == 0, job.stdout


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_hold_no_hyperparameters_and_never_auto(script):
    text = script.read_text()
    for word in ("actor_rollout_ref", "learning", "batch_size", "sampler_kwargs", "address=auto", "ray stop"):
        assert word not in text


@pytest.mark.parametrize(
    ("nodes", "hosts", "first", "last"),
    [
        (1, "gpu7", "gpu7", "gpu7"),
        (2, "gpu[7-8]", "gpu7", "gpu8"),
        (16, "rack-a[01-09,12],rack-b[3-8]", "rack-a01", "rack-b8"),
    ],
)
def test_each_node_of_a_job_gets_one_ray_node_and_the_head_is_the_first(fakes, nodes, hosts, first, last):
    job = shell(
        fakes, "bash slurm/train_multinode.sbatch countdown_tiny paper", SLURM_JOB_ID="4711",
        SLURM_JOB_NODELIST=hosts,
        SLURM_JOB_NUM_NODES=str(nodes), SLURM_SUBMIT_DIR=str(ROOT), SLURM_CPUS_PER_TASK="1",
        SARA_TRAIN=str(ROOT / "tests/slurm/echo_program.py"),
    )  # fmt: skip
    steps = [line for line in Path(fakes["FAKE_LOG"]).read_text().splitlines() if "ray_node.sh" in line]
    assert len(steps) == nodes, job.stderr
    where = {int(step.split()[-2]): step.split("--nodelist=")[1].split()[0] for step in steps}
    assert sorted(where) == list(range(nodes)) and len(set(where.values())) == nodes
    assert (where[0], where[nodes - 1]) == (first, last)
    addresses = {step.split()[-1] for step in steps}
    assert len(addresses) == 1 and addresses.pop() in job.stdout
    assert f"trainer.nnodes={nodes}" in job.stdout
    assert f"joined {nodes}" in job.stdout


def test_a_host_list_that_does_not_match_the_nodes_is_refused(fakes):
    job = shell(
        fakes, "bash slurm/train_multinode.sbatch countdown_tiny paper", SLURM_JOB_ID="4711",
        SLURM_JOB_NODELIST="gpu[1-3]", SLURM_JOB_NUM_NODES="2", SLURM_SUBMIT_DIR=str(ROOT),
    )  # fmt: skip
    assert job.returncode == 1 and "has 3 hosts (gpu1 gpu2 gpu3), but the job has 2 nodes" in job.stderr


@pytest.mark.parametrize(
    ("task", "arguments", "expected"),
    [
        (None, "r", "r paper 0"),
        (None, "r ds 4", "r ds 4"),
        ("0", "r 'ds paper' '0 1 2'", "r ds 0"),
        ("2", "r 'ds paper' '0 1 2'", "r ds 2"),
        ("3", "r 'ds paper' '0 1 2'", "r paper 0"),
        ("5", "r 'ds paper' '0 1 2' -- a='x y' b", "r paper 2 -- a=x y b"),
    ],
)
def test_the_task_of_an_array_picks_arm_and_seed(fakes, task, arguments, expected):
    show = 'echo "$recipe $arm $seed${extra[1]+ ${extra[*]}}"'
    job = in_env(fakes, f"sara_arguments {arguments}; {show}", **({"SLURM_ARRAY_TASK_ID": task} if task else {}))
    assert job.stdout.strip() == expected, job.stderr


@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        ("6", "r 'ds paper' '0 1 2'", "task 6 of the array, but there are 6 runs: --array=0-5"),
        (None, "r 'ds paper'", "2 runs need --array=0-1"),
        (None, "", "arguments are RECIPE"),
        (None, "a b c d", "arguments are RECIPE"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(fakes, task, arguments, message):
    job = in_env(fakes, f"sara_arguments {arguments}", **({"SLURM_ARRAY_TASK_ID": task} if task else {}))
    assert job.returncode == 2 and message in job.stderr


def test_a_long_temporary_folder_is_refused(fakes, tmp_path):
    job = in_env(fakes, "sara_temp ''", SLURM_JOB_ID="1", SARA_TMP=f"/tmp/{'x' * 30}")
    assert job.returncode == 1 and "allowed: 39 (set SARA_TMP)" in job.stderr


def test_a_full_disk_is_refused(fakes, tmp_path):
    job = in_env(fakes, f"sara_space '{tmp_path}'", SARA_MIN_FREE_GB="999999999")
    assert job.returncode == 1 and "GB free" in job.stderr


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("::1 127.0.0.1 10.0.0.5 10.0.0.6", "10.0.0.5"),
        ("fe80::1 192.168.1.9", "192.168.1.9"),
        ("127.0.1.1 127.0.0.1", "127.0.1.1"),
    ],
)
def test_the_address_is_an_ipv4_one_and_no_loopback_if_there_is_a_choice(fakes, tmp_path, names, expected):
    fake = tmp_path / "bin/hostname"
    fake.write_text(f'#!/usr/bin/env bash\n[[ $1 != --ip-address ]] || echo "{names}"\n')
    fake.chmod(0o755)
    assert in_env(fakes, "sara_ip").stdout.strip() == expected


def test_an_inherited_ray_address_is_dropped_and_offline_is_the_default(fakes):
    job = in_env(fakes, 'echo "${RAY_ADDRESS-none} $HF_HUB_OFFLINE $WANDB_MODE"', RAY_ADDRESS="10.0.0.1:6379")
    assert job.stdout.strip() == "none 1 offline"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"OMP_NUM_THREADS": "1"}, str(len(os.sched_getaffinity(0)))),
        ({"SLURM_CPUS_ON_NODE": "48", "OMP_NUM_THREADS": "1"}, "48"),
        ({"SLURM_CPUS_ON_NODE": "48", "SLURM_CPUS_PER_TASK": "12"}, "12"),
    ],
)
def test_cpus_are_those_of_the_job_whatever_openmp_is_told(fakes, given, expected):
    assert in_env(fakes, 'echo "$SARA_CPUS"', **given).stdout.strip() == expected


def test_a_container_comes_before_every_python(fakes, tmp_path):
    site = tmp_path / "site.sh"
    box = tmp_path / "my box"
    box.write_text('#!/usr/bin/env bash\necho "boxed: $*" >&2\nexec "$@"\n')
    box.chmod(0o755)
    site.write_text(f'CONTAINER=("{box}")\n')
    command = "bash slurm/train.sbatch countdown_tiny paper -- trainer.total_training_steps=1"
    job = shell(fakes, command, SARA_SITE=str(site), SLURM_JOB_ID="1")
    assert job.returncode == 0, job.stderr
    assert job.stderr.count("boxed: ") == 5 and "ledger_program.py" in job.stderr


def test_a_run_on_this_machine_without_slurm(fakes):
    command = "bash slurm/train.sbatch countdown_tiny tau_0.6 2 -- trainer.total_training_steps=2"
    job = shell(fakes, command)
    assert job.returncode == 0, job.stderr
    assert "attempt 1: steps 1 to 2" in job.stdout
    assert (Path(fakes["SARA_RUNS"]) / "countdown_tiny/tau_0.6/seed2/verl.attempt-1.jsonl").exists()


@pytest.mark.parametrize(("message", "arguments"), [("did you mean paper", "papr"), ("seed", "paper one")])
def test_unknown_names_end_the_job_before_anything_is_trained(fakes, message, arguments):
    job = shell(fakes, f"bash slurm/train.sbatch countdown_tiny {arguments}")
    assert job.returncode == 2 and message in job.stderr


def test_the_evaluation_needs_a_checkpoint_and_leaves_its_numbers_beside_the_ledger(fakes):
    shell(fakes, "bash slurm/train.sbatch countdown_tiny paper -- trainer.total_training_steps=1", SLURM_JOB_ID="1")
    job = shell(fakes, "bash slurm/eval.sbatch countdown_tiny paper", SLURM_JOB_ID="1")
    assert job.returncode == 2 and "has no checkpoint global_step_0" in job.stderr
    run = Path(fakes["SARA_RUNS"]) / "countdown_tiny/paper/seed0"
    (run / "global_step_4").mkdir()
    (run / "latest_checkpointed_iteration.txt").write_text("4")
    program = str(ROOT / "tests/slurm/echo_program.py")
    job = shell(fakes, "bash slurm/eval.sbatch countdown_tiny paper", SLURM_JOB_ID="1", SARA_TRAIN=program)
    assert job.returncode == 0, job.stderr
    numbers = json.loads((run / "eval.step-4.json").read_text())
    assert numbers["sets"] == [{"data_source": "countdown", "avg": 0.5, "n": 4}]
    assert [numbers[key] for key in ("recipe", "arm", "seed", "step")] == ["countdown_tiny", "paper", 0, 4]
    assert "step 4, countdown: avg@4 0.5000" in job.stdout and "trainer.val_only=true" in job.stdout
    assert "+sara=paper" not in job.stdout and len(list((run / "sara").glob("ledger.*"))) == 1
