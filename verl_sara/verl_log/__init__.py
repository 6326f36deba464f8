"""Reads verl's own logs, whatever backend wrote them, into one table of numbers per step.

- file logger: one JSON object per line, `{"step": N, "data": {...}}`; NaN is written as null
- console: `step:N - key:value - ...`, with Ray's prefix and colours, and `np.float64(0.5)` for numbers
- tensorboard: event files (needs the package tensorboard)

verl's token and throughput numbers count trained rows and padding, never what was generated and
thrown away: savings come from our ledger only.

- table: rows of numbers per step
- read: finds and reads the logs
- events: tensorboard event files
- dump: the rollouts that verl writes out when asked to
"""

from verl_sara.verl_log.dump import RolloutDump, find_dump, read_dump
from verl_sara.verl_log.read import read_files, read_verl_log
from verl_sara.verl_log.table import LogRow, VerlLog, number

__all__ = [
    "LogRow",
    "RolloutDump",
    "VerlLog",
    "find_dump",
    "number",
    "read_dump",
    "read_files",
    "read_verl_log",
]
