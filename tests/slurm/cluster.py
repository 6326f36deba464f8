"""A real Slurm on this machine: munge, a controller and two node daemons, all under one temporary folder.

Debian's build lets several slurmd run side by side (`-N`). Each runs with a host name of its own, claims eight
CPUs and one fake GPU, and runs jobs as root. Nothing in /etc is read or written.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

NODES = ("node1", "node2")
PACKAGES = {"slurmctld": "slurm-wlm", "munged": "munge"}


def missing() -> str:
    """Returns why no cluster can be started here, empty if one can (packages may have to be installed)."""
    if os.geteuid() != 0:
        return "Slurm needs root: slurmd starts the jobs"
    if not shutil.which("apt-get"):
        return "Slurm is set up on Debian only"
    if wanted := sorted({package for command, package in PACKAGES.items() if not shutil.which(command)}):
        return _install(wanted)
    return ""


def _install(packages: list[str]) -> str:
    """Installs Debian packages without starting their services; returns what went wrong."""
    policy = Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    apt = ["apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=120", "--no-install-recommends", "install", *packages]
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        job = subprocess.run(apt, env=env, capture_output=True, text=True)
        if job.returncode:
            subprocess.run(["apt-get", "-q", "update"], capture_output=True)
            job = subprocess.run(apt, env=env, capture_output=True, text=True)
    finally:
        if is_ours:
            policy.unlink()
    return f"cannot install {' '.join(packages)}: {job.stderr[-300:]}" if job.returncode else ""


def free_ports(count: int) -> list[int]:
    """Returns ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    found = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return found


class Cluster:
    """The cluster in a folder; `start` and `stop` it.

    Attributes:
      folder: Its folder; no spaces, since slurm.conf cannot quote them.
      env: Environment for sbatch, squeue and the like.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.host = socket.gethostname().partition(".")[0]

    def start(self) -> None:
        """Starts the daemons and waits until both nodes are idle."""
        self.folder.chmod(0o755)  # munge demands it
        (self.folder / "state").mkdir()
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for index in range(len(NODES)):
            os.mknod(self.folder / f"gpu{index}", 0o600 | 0o020000, os.makedev(1, 3))
        self._write_config(free_ports(2 + len(NODES)))
        names = ("socket", "pid", "log", "seed")
        paths = {name: f"{self.folder}/munge.{name}" for name in names}
        self._run(
            "munged", f"--socket={paths['socket']}", f"--key-file={key}", f"--pid-file={paths['pid']}",
            f"--log-file={paths['log']}", f"--seed-file={paths['seed']}",
        )  # fmt: skip
        self._run("slurmctld", "-i")
        for node in NODES:
            self._run("unshare", "--uts", "sh", "-c", 'hostname "$1" && exec slurmd -N "$1"', "sh", node)
        self.wait_for(lambda: self.states().count("idle") == len(NODES), 60, "both nodes idle")

    def _write_config(self, free: list[int]) -> None:
        lines = [
            "ClusterName=test", f"SlurmctldHost={self.host}(127.0.0.1)", f"SlurmctldPort={free[0]}",
            "SlurmUser=root", "SlurmdUser=root", "AuthType=auth/munge",
            # cred_expire is how long a requeued job waits; two minutes by default
            f"AuthInfo=socket={self.folder}/munge.socket,cred_expire=5",
            f"StateSaveLocation={self.folder}/state", f"SlurmdSpoolDir={self.folder}/spool.%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid", f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={self.folder}/slurmctld.log", f"SlurmdLogFile={self.folder}/slurmd-%n.log",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core", "SlurmdParameters=config_overrides", "ReturnToService=2",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2", "KillWait=5",
            "MinJobAge=3600", "MpiDefault=none", "MailProg=/bin/true", "JobAcctGatherType=jobacct_gather/none",
            "AccountingStorageType=accounting_storage/none", "GresTypes=gpu",
        ]  # fmt: skip
        for index, node in enumerate(NODES):
            lines.append(
                f"NodeName={node} NodeHostname={node} NodeAddr=127.0.0.{11 + index} Port={free[2 + index]} "
                "CPUs=8 RealMemory=2000 Gres=gpu:null:1"
            )
        lines.append("PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        (self.folder / "slurm.conf").write_text("\n".join(lines) + "\n")
        gres = [f"NodeName={n} Name=gpu Type=null File={self.folder}/gpu{i}" for i, n in enumerate(NODES)]
        (self.folder / "gres.conf").write_text("\n".join(["AutoDetect=off", *gres]) + "\n")

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def wait_for(self, condition, seconds: float, what: str) -> None:
        """Polls until the condition holds; fails with the daemons' logs."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                logs = {path.name: path.read_text()[-1500:] for path in self.folder.glob("*.log")}
                raise AssertionError(f"not within {seconds} s: {what}\n{logs}")
            time.sleep(0.3)

    def ask(self, *command: str) -> str:
        """Returns what a command of Slurm prints."""
        return subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=30).stdout

    def states(self) -> list[str]:
        """Returns the states of the nodes."""
        return self.ask("sinfo", "-h", "-N", "-o", "%t").split()

    def job(self, number: str) -> dict[str, str]:
        """Returns the fields of a job, as scontrol shows them."""
        text = self.ask("scontrol", "show", "job", "-o", number)
        return dict(field.split("=", 1) for field in text.split() if "=" in field)

    def jobs(self) -> list[str]:
        """Returns the numbers of the jobs that are not over, none if the controller is not up."""
        return self.ask("squeue", "-h", "-o", "%A").split() if (self.folder / "slurmctld.pid").exists() else []

    def stop(self) -> None:
        """Cancels all jobs and ends the daemons, which are known by their pid files."""
        end = time.monotonic() + 20
        while (jobs := self.jobs()) and time.monotonic() < end:
            self.ask("scancel", "--full", *jobs)
            time.sleep(0.5)
        pids = [int(path.read_text()) for path in self.folder.glob("*.pid") if path.read_text().strip()]
        for sig in (signal.SIGTERM, signal.SIGKILL):
            for pid in filter(_is_alive, pids):
                os.kill(pid, sig)
            end = time.monotonic() + 10
            while any(map(_is_alive, pids)) and time.monotonic() < end:
                time.sleep(0.1)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (OSError, IndexError):
        return False
