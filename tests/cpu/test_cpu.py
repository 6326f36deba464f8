"""The CPU plug-in: silent without `VERL_PLATFORM=cpu`, and right where verl and vLLM look with it."""

import os
import subprocess
import sys

import pytest

from verl_sara.cpu.environment import cpu_environment, is_cpu


def run(code: str, **environment: str) -> str:
    """Output of `code` in a fresh interpreter, with exactly these variables besides the inherited ones."""
    inherited = {name: value for name, value in os.environ.items() if name != "VERL_PLATFORM"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_import_and_register_are_inert_without_the_variable():
    code = """
import sys
import verl_sara.cpu, verl_sara.cpu.vllm_plugin
before = list(sys.meta_path)
verl_sara.cpu.register()
verl_sara.cpu.vllm_plugin.register()
print(sorted({"torch", "verl", "vllm", "ray", "numpy"} & set(sys.modules)), sys.meta_path == before)
"""
    assert run(code) == "[] True"


def test_is_cpu_reads_the_variable(monkeypatch):
    for value, expected in [("cpu", True), (" CPU ", True), ("nvidia", False), ("", False)]:
        monkeypatch.setenv("VERL_PLATFORM", value)
        assert is_cpu() is expected


def test_environment_keeps_what_the_user_has_set_but_not_the_platform(monkeypatch):
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.setenv("VERL_PLATFORM", "nvidia")
    environment = cpu_environment()
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert environment["VERL_PLATFORM"] == "cpu"
    assert environment["HF_HUB_OFFLINE"] == os.environ.get("HF_HUB_OFFLINE", "1")
    assert all(isinstance(value, str) for value in environment.values())


def test_nothing_is_compiled_where_there_is_no_compiler(monkeypatch, tmp_path):
    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "TORCHDYNAMO_DISABLE" not in cpu_environment()
    monkeypatch.setenv("CXX", "clang++")  # torch then asks for no other
    assert cpu_environment()["TORCHDYNAMO_DISABLE"] == "1"
    monkeypatch.delenv("CXX")
    compiler.unlink()
    assert cpu_environment()["TORCHDYNAMO_DISABLE"] == "1"


@pytest.mark.verl
def test_gloo_is_named_once():
    from verl_sara.cpu.fixes import accept_gloo_for_both

    seen = []
    wrapped = accept_gloo_for_both(lambda backend=None, **kwargs: seen.append((backend, kwargs)))
    wrapped(backend="cpu:gloo,cpu:gloo", rank=0)
    wrapped("cpu:gloo,cuda:nccl")
    wrapped()
    assert seen == [("gloo", {"rank": 0}), ("cpu:gloo,cuda:nccl", {}), (None, {})]


@pytest.mark.verl
def test_a_value_model_is_loaded_without_flash_attention(tmp_path):
    code = f"""
import verl
from transformers import Qwen2Config, Qwen2ForTokenClassification
from verl.utils.model import load_valuehead_model
config = Qwen2Config(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, vocab_size=16, num_labels=1, attn_implementation="sdpa")
Qwen2ForTokenClassification(config).save_pretrained({str(tmp_path)!r})
print(load_valuehead_model({str(tmp_path)!r}, "float32", config, False).config._attn_implementation)
"""
    assert run(code, **cpu_environment()).endswith("sdpa")


@pytest.mark.verl
def test_a_reference_model_is_offloaded_to_memory_that_is_not_pinned():
    code = """
from verl.workers.engine.fsdp import transformer_impl
policy = transformer_impl.CPUOffloadPolicy(pin_memory=True)
print(policy.pin_memory, type(policy).__mro__[1].__name__)
"""
    assert run(code, **cpu_environment()).endswith("False CPUOffloadPolicy")


@pytest.mark.verl
def test_vllm_name_is_answered_by_the_cpu_build():
    import importlib.metadata as metadata

    from verl_sara.cpu.fixes import VllmAlias

    real = metadata.version("vllm-cpu")
    before = sorted(d.name for d in metadata.distributions())
    sys.meta_path.append(VllmAlias())
    try:
        assert metadata.version("vllm") == f"{real}+cpu"
        assert metadata.distribution("vllm").name == "vllm"
        assert metadata.version("vllm-cpu") == real
        assert sorted(d.name for d in metadata.distributions()) == before
        with pytest.raises(metadata.PackageNotFoundError):
            metadata.version("no-such-distribution")
    finally:
        sys.meta_path.pop()


@pytest.mark.verl
@pytest.mark.slow
def test_importing_verl_registers_the_platform():
    code = """
import verl, torch
from verl.plugin.platform import get_platform
from verl.utils.device import get_device_id, get_torch_device, is_support_ipc
from verl.workers.engine.base import EngineRegistry
platform, device = get_platform(), get_torch_device()
assert type(platform).__name__ == "PlatformCPU", platform
assert get_device_id() == torch.device("cpu") and not is_support_ipc()
assert device.memory_allocated() == 0 and device.mem_get_info()[1] > 0 and device.is_available()
device.set_rng_state(device.get_rng_state())
assert platform.ray_resource_options(0.5) == {"num_gpus": 0.5}
with platform.nvtx_range("x"):
    pass
store = torch.distributed.HashStore()
torch.distributed.init_process_group("cpu:gloo,cpu:gloo", rank=0, world_size=1, store=store)
print(torch.distributed.get_backend())
"""
    assert run(code, **cpu_environment()).endswith("gloo")
