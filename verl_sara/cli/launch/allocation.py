"""What Slurm gave the job, read from its environment variables; and ports that no other job takes."""

import math
import re
import socket
from collections.abc import Mapping

from verl_sara.core import ConfigError

FIRST_PORT, LAST_PORT = 20000, 32000
"""Below the range from which Linux takes the ports of outgoing connections."""

_TYPED = re.compile(r"(?:gres[:/])?(?:gpu[:=])?(?:[A-Za-z][\w.-]*[:=])?(\d+)(?:\(.*\))?", re.ASCII)


def gpu_count(environ: Mapping[str, str]) -> int:
    """Returns the number of GPUs on this node of the job, 0 if it has none.

    Takes SLURM_GPUS_ON_NODE, else SLURM_GPUS_PER_NODE, which may be typed ("h100:8",
    "gpu:h100:8(S:0-1)", "a100:2,v100:1"), else the visible devices.

    Raises:
      ConfigError: If a variable holds something else.
    """
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if text := environ.get(name, "").strip():
            return sum(_number(name, part) for part in re.split(r",(?![^(]*\))", text))
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "SLURM_JOB_GPUS"):
        devices = [device.strip() for device in environ.get(name, "").split(",")]
        devices = [device for device in devices if device not in ("", "-1", "NoDevFiles")]
        if devices:
            return len(devices)
    return 0


def _number(name: str, text: str) -> int:
    match = _TYPED.fullmatch(text.strip())
    if not match:
        raise ConfigError(f"{name} is {text!r}; allowed: a number, or a typed one such as h100:8")
    return int(match[1])


def cpus_needed(gpus: int, nodes: int, storage_units: int) -> int:
    """Returns the CPUs per node that verl 0.9.1 reserves in Ray; with fewer it waits for ever.

    Three a GPU, one a storage unit of TransferQueue, and one each for its controller, for verl's driver, and
    for the actors that need one only while they start.

    Args:
      gpus: GPUs per node, >= 1.
      nodes: Nodes, >= 1.
      storage_units: `transfer_queue.backend.SimpleStorage.num_data_storage_units`, >= 1.
    """
    return 3 * gpus + math.ceil((storage_units + 3) / nodes)


def ports(job: int, node: int, count: int) -> list[int]:
    """Returns ports that are free on this machine, from a start that depends on job and node.

    Args:
      job: Job number, >= 0.
      node: Index of the node within the job, >= 0.
      count: Ports asked for, >= 1.

    Raises:
      ConfigError: If there are not as many.
    """
    span = LAST_PORT - FIRST_PORT
    start = (job * 97 + node * 2 * count) % span
    found: list[int] = []
    for offset in range(span):
        port = FIRST_PORT + (start + offset) % span
        if _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise ConfigError(
        f"{count} free ports between {FIRST_PORT} and {LAST_PORT} were wanted, {len(found)} are free"
    )


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
