"""The verl platform "cpu": one logical device a process, gloo, and no device memory."""

import os
from contextlib import contextmanager, nullcontext
from types import ModuleType
from typing import Any

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


class _CpuDevice(ModuleType):
    """`torch.cpu` with the memory functions that verl asks a device module for."""

    def __init__(self) -> None:
        super().__init__("verl_sara.cpu.device", "torch.cpu, with memory figures that are all zero")

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cpu, name)

    def _zero(self, *args: Any, **kwargs: Any) -> int:
        return 0

    # verl/utils/profiler/performance.py:49, verl/workers/engine_workers.py:219
    memory_allocated = memory_reserved = max_memory_allocated = max_memory_reserved = _zero
    # verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py, verl/utils/memory_utils.py
    empty_cache = ipc_collect = reset_peak_memory_stats = set_per_process_memory_fraction = _zero

    def mem_get_info(self, *args: Any) -> tuple[int, int]:
        """Free and total bytes of the host's memory."""
        page = os.sysconf("SC_PAGE_SIZE")
        return page * os.sysconf("SC_AVPHYS_PAGES"), page * os.sysconf("SC_PHYS_PAGES")

    def get_device_name(self, *args: Any) -> str:
        return "cpu"

    def get_rng_state(self, *args: Any) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *args: Any) -> None:
        torch.set_rng_state(state)


class PlatformCPU(PlatformBase):
    """What verl may ask of a device, answered for a host without one.

    Ray counts one *logical* GPU (`ray_kwargs.ray_init.num_gpus=1`), because verl reserves resources
    named "GPU" or "NPU" only (verl/single_controller/ray/base.py:226 and :144).
    """

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _CpuDevice()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        # chosen by VERL_PLATFORM only, never detected
        return False

    def current_device(self) -> torch.device:
        # an index would be taken for a GPU: verl hands this to Tensor.to and torch.device
        # (verl/workers/engine/fsdp/transformer_impl.py:1052)
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...

    def synchronize(self, device_index: int | None = None) -> None: ...

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...

    def empty_cache(self) -> None: ...

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str):
        with nullcontext():
            yield

    def profiler_start(self) -> None: ...

    def profiler_stop(self) -> None: ...

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_resource_options(self, num_gpus: float) -> dict[str, Any]:
        return {"num_gpus": num_gpus}

    def ray_noset_envvars(self) -> list[str]:
        return ["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"]

    def is_ipc_supported(self) -> bool:
        # weights go to vLLM through POSIX shared memory
        return False

    def cudart(self) -> None:
        return None


def register() -> None:
    """Make `VERL_PLATFORM=cpu` name `PlatformCPU`."""
    PlatformRegistry.register(platform="cpu")(PlatformCPU)
