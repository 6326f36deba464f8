"""The evaluation of a checkpoint: weights in the form that the job can load, and the numbers it leaves.

A checkpoint of verl is one shard per process. Another number of processes cannot load it, so its shards are
merged into one model first, with verl's own merger.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_sara.core import SaraError

_ACCURACY = re.compile(r"val-core/(.+)/acc/mean@(\d+)")


def require_checkpoint(run: Path, step: int) -> Path:
    """Returns the checkpoint of a step in a run folder.

    Raises:
      SaraError: If there is none.
    """
    folder = run / f"global_step_{step}"
    if not folder.is_dir():
        raise SaraError(
            f"{run} has no checkpoint global_step_{step}; set trainer.save_freq, or name another step"
        )
    return folder


def merged_model(run: Path, step: int) -> Path:
    """Returns the folder of the merged weights of a step, whether or not it is there."""
    return run / f"eval/model.step-{step}"


def num_shards(checkpoint: Path) -> int | None:
    """Returns the number of processes that saved a checkpoint, None if it does not say."""
    try:
        return int(json.loads((checkpoint / "actor/fsdp_config.json").read_text())["world_size"])
    except (OSError, ValueError, KeyError):
        return None


def merge(run: Path, step: int, processes: int) -> Path | None:
    """Merges the shards of a checkpoint unless so many processes can load it as it is.

    Args:
      run: Run folder.
      step: Step of the checkpoint.
      processes: Processes of the evaluation, one a GPU.

    Returns:
      The folder of the merged model, None if none is needed.

    Raises:
      SaraError: If there is no checkpoint, or verl's merger fails.
    """
    checkpoint, target = require_checkpoint(run, step), merged_model(run, step)
    if num_shards(checkpoint) in (None, processes):
        return None
    if not target.is_dir():
        unfinished = target.with_name(f"{target.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        merger = [sys.executable, "-m", "verl.model_merger", "merge", "--backend", "fsdp"]
        folders = ["--local_dir", str(checkpoint / "actor"), "--target_dir", str(unfinished)]
        if status := subprocess.run([*merger, *folders], stdout=sys.stderr, check=False).returncode:
            raise SaraError(f"verl's merger ended with status {status} for {checkpoint}")
        os.replace(unfinished, target)
    return target


def accuracies(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns one entry `{data_source, avg, n}` per data source, of the metrics that verl logs.

    `avg` is avg@n: the mean over problems of the share of their n responses that are right, 0 to 1.
    """
    best: dict[str, tuple[int, float]] = {}
    for key, value in data.items():
        if (match := _ACCURACY.fullmatch(key)) and value is not None:
            best[match[1]] = max(best.get(match[1], (0, 0.0)), (int(match[2]), float(value)))
    return [{"data_source": source, "avg": avg, "n": n} for source, (n, avg) in sorted(best.items())]


def write_numbers(run: Path, step: int, log: Path, facts: Mapping[str, Any]) -> str:
    """Writes `eval.step-N.json` in a run folder from verl's log of the evaluation; returns it as text.

    Args:
      run: Run folder.
      step: Step of the checkpoint.
      log: verl's file log: one JSON object per line.
      facts: What else the file says, such as recipe, arm and seed.

    Raises:
      SaraError: If the log holds no accuracy.
    """
    found: list[dict[str, Any]] = []
    if log.is_file():
        for line in log.read_text(encoding="utf-8").splitlines():
            found = accuracies(json.loads(line)["data"]) or found
    if not found:
        raise SaraError(f"the evaluation logged no accuracy in {log}")
    path = run / f"eval.step-{step}.json"
    unfinished = path.with_suffix(".unfinished")
    text = json.dumps({**facts, "step": step, "sets": found}, indent=1)
    unfinished.write_text(text + "\n", encoding="utf-8")
    os.replace(unfinished, path)
    lines = [f"step {step}, {one['data_source']}: avg@{one['n']} {one['avg']:.4f}" for one in found]
    return "\n".join([*lines, f"written to {path}"])
