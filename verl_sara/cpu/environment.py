"""The environment variables under which verl, Ray and vLLM run without an accelerator."""

import os
import shutil


def is_cpu() -> bool:
    """True if this process was told to run verl without an accelerator (`VERL_PLATFORM=cpu`)."""
    return os.environ.get("VERL_PLATFORM", "").strip().lower() == "cpu"


def cpu_environment() -> dict[str, str]:
    """Variables to set before `python -m verl.trainer.main_ppo ... +sara/host=cpu` starts.

    Ray and vLLM hand them on to every process they start. A variable that the user has set keeps
    its value, except the two that choose the platform.
    """
    chosen = {
        "VERL_PLATFORM": "cpu",
        # verl/workers/engine/base.py:405: the FSDP engine is registered under "cuda" and "npu" only,
        # and this variable is verl's own way to ask for one of them
        "VERL_ENGINE_DEVICE": "cuda",
    }
    defaults = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB; vLLM's own default is a large share of the memory
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # several processes share few cores
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "TQ_NUM_THREADS": "1",  # TransferQueue warns when its default of 8 exceeds the cores
        # else vllm/platforms/cpu.py:148 turns the uni executor of `+sara/host=cpu` into one more process
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",  # a second thread costs more than it gives for tiny models
        "RAY_USAGE_STATS_ENABLED": "0",
        # `+sara/host=cpu` declares more CPUs than there are: do not start a worker for each of them
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        # Ray 2.60 warns about the coming change of this default in every actor without a GPU
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    if not shutil.which(os.environ.get("CXX", "g++")):
        # vllm/v1/sample/ops/topk_topp_sampler.py compiles the sampler, for which torch needs a C++ compiler
        defaults["TORCHDYNAMO_DISABLE"] = "1"
    return chosen | {name: os.environ.get(name, value) for name, value in defaults.items()}
