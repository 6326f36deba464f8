"""verl on a machine without an accelerator: a platform plug-in and the few fixes it needs.

Inert unless the environment says `VERL_PLATFORM=cpu`; nothing here is imported on a GPU. The parts:

- `environment`   the environment variables of a CPU run (`cpu_environment`);
- `platform`      the verl platform named "cpu";
- `fixes`         the distribution name of vLLM's CPU build, the gloo backend string, the value model's attention;
- `vllm_plugin`   what has to change inside vLLM's processes, loaded by vLLM itself.

The Hydra options that belong to it are the config `+sara/host=cpu`.
"""

from verl_sara.cpu.environment import cpu_environment, is_cpu

__all__ = ["cpu_environment", "is_cpu", "register"]


def register() -> None:
    """Register the platform "cpu" with verl and apply the fixes; does nothing unless `is_cpu()`.

    Safe to repeat. Called while verl is being imported, in every process that imports verl.
    """
    if not is_cpu():
        return
    from verl_sara.cpu import fixes, platform

    platform.register()
    fixes.apply()
