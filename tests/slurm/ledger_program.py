"""Stands in for verl: writes a ledger, verl's file log and checkpoints with the real allocator and writer.

Called with verl's arguments. Of its own: `+program.step_s` (seconds a step), `+program.fail_at` (the step
in which it fails), and with a Ray address it notes in `nodes.txt` the nodes of that cluster and their folders.
"""

import json
import os
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.simulated_runs import World, close_step, collect, new_step, options, timings
from verl_sara.core import CommitRate
from verl_sara.ledger import LedgerWriter


def main() -> None:
    """Trains nothing, step by step."""
    pairs = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:] if "=" in word)
    run = Path(pairs["trainer.default_local_dir"].strip("'"))
    if address := pairs.get("ray_kwargs.ray_init.address", "local").replace("local", ""):
        note_nodes(address, run)
    tracker = run / "latest_checkpointed_iteration.txt"
    first = 1 + (int(tracker.read_text()) if tracker.exists() else 0)
    settings = options(pairs["sara"], run, batch_size=4, mini_batch_size=4)
    world, rate = World(int(pairs["data.seed"]), 100), CommitRate()
    header = {
        "options": settings,
        "versions": {},
        "started_unix_s": time.time(),
        "host": socket.gethostname(),
        "job": os.environ.get("SLURM_JOB_ID", ""),
        "temp": os.environ.get("RAY_TMPDIR", ""),
    }
    writer = LedgerWriter(run / "sara", pairs["sara"], header)
    with open(os.environ["VERL_FILE_LOGGER_PATH"], "w") as log:
        for number in range(first, int(pairs["trainer.total_training_steps"]) + 1):
            world.step = number
            allocator = new_step(settings, rate)
            writer.launched(number, "begun", [0])
            writer.flush()
            time.sleep(float(pairs.get("program.step_s", 0)))
            if number == int(pairs.get("program.fail_at", 0)):
                sys.exit(3)
            fates = collect(allocator, world)
            rate.end_step(*allocator.num_decided())
            close_step(writer, allocator, fates, number)
            log.write(json.dumps({"step": number, "data": timings(allocator)}) + "\n")
            log.flush()
            if number % int(pairs.get("trainer.save_freq", 2)) == 0:
                (run / f"global_step_{number}").mkdir(exist_ok=True)
                tracker.write_text(str(number))


def note_nodes(address: str, run: Path) -> None:
    """Writes the host names on which tasks of the Ray cluster run, one a node, and Ray's folder there."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.init(address=address, log_to_driver=False)
    where = ray.remote(lambda: f"{socket.gethostname()} {ray.get_runtime_context().get_temp_dir()}")
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    pinned = [where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)) for node in nodes]
    (run / "nodes.txt").write_text("\n".join([address, *sorted(ray.get([task.remote() for task in pinned]))]))
    ray.shutdown()


if __name__ == "__main__":
    main()
