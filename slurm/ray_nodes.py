"""Waits until all nodes of a job have joined its Ray: `ray_nodes.py HOST:PORT NODES`; status 1 if they have not."""

import sys
import time

import ray

WAIT_S = 30


def main() -> int:
    """Prints the nodes once all are there."""
    address, wanted = sys.argv[1], int(sys.argv[2])
    try:
        ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    except (ConnectionError, RuntimeError) as error:
        print(f"sara: Ray at {address} does not answer yet: {error}", flush=True)
        return 1
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        if len(nodes) >= wanted:
            for node in nodes:
                resources = node["Resources"]
                name, cpus, gpus = node["NodeManagerHostname"], resources.get("CPU", 0), resources.get("GPU", 0)
                print(f"sara: Ray node {name}, {cpus:g} CPUs, {gpus:g} GPUs", flush=True)
            return 0
        time.sleep(0.5)
    print(f"sara: {len(nodes)} of {wanted} Ray nodes so far", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
