"""One Ray and one TransferQueue for all adapter tests."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="session")
def actors() -> Iterator[Any]:
    import ray
    import transfer_queue as tq
    from omegaconf import OmegaConf

    root = str(Path(__file__).parents[2])
    ray.init(
        num_cpus=16,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": root, "TRANSFER_QUEUE_ENABLE": "1"}},
    )
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    from tests.adapters.scripted import Actors

    yield Actors()
    tq.close()
    ray.shutdown()


@pytest.fixture
def host(actors: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    from tests.adapters.scripted import Host

    hosts: list[Host] = []

    def make(*overrides: str, **kwargs: Any) -> Host:
        kwargs = {"run_dir": tmp_path, "actors": actors, **kwargs}
        hosts.append(Host(overrides=overrides, **kwargs))
        return hosts[-1]

    yield make
    for one in hosts:
        one.close()
