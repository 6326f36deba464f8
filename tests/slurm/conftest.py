"""A Slurm for the session, and a project folder with a space in its path to submit from."""

import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest

from tests.slurm.cluster import Cluster, missing

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def cluster():
    reason = missing()
    if reason:
        warnings.warn(f"NOT TESTED on a real Slurm: {reason}", stacklevel=1)
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="sara-slurm-", dir="/tmp"))
    one = Cluster(folder)
    try:
        one.start()
        yield one
    finally:
        one.stop()
        shutil.rmtree(folder, ignore_errors=True)


class Project:
    """The project in a folder of its own, with a cluster to submit to."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        self.root, self.cluster = folder / "my project", cluster
        self.root.mkdir()
        for name in ("recipes", "slurm", "tests", "verl_sara"):
            (self.root / name).symlink_to(ROOT / name)
        self.runs = self.root / "runs"
        self.env = cluster.env | {
            "SARA_PYTHON": sys.executable,
            "SARA_TRAIN": str(self.root / "tests/slurm/ledger_program.py"),
            "SARA_SITE": "/dev/null",
            "SARA_GRACE": "5",
            "SARA_MIN_FREE_GB": "0",
        }

    def submit(self, *arguments: str) -> str:
        """Submits and returns the job number."""
        common = ["sbatch", "--parsable", "--cpus-per-task=1", "--output=job-%A_%a.out"]
        job = subprocess.run([*common, *arguments], cwd=self.root, env=self.env, capture_output=True, text=True)
        assert job.returncode == 0, job.stderr
        return job.stdout.strip()

    def output(self, number: str, task: str = "4294967294") -> str:
        """Returns what a job has printed so far."""
        path = self.root / f"job-{number}_{task}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, number: str, *states: str, seconds: float = 120) -> dict[str, str]:
        """Waits for a job to reach one of the states and returns its fields."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wanted = states or ended

        def reached() -> bool:
            state = self.cluster.job(number).get("JobState", "")
            assert state in wanted or state not in ended, f"{state}:\n{self.output(number)}"
            return state in wanted

        self.cluster.wait_for(reached, seconds, f"job {number} {wanted}:\n{self.output(number)}")
        return self.cluster.job(number)


@pytest.fixture
def project(cluster, tmp_path):
    return Project(tmp_path, cluster)
