"""What has to change in vLLM's own processes, through the entry point `vllm.general_plugins`.

vLLM calls `register` in each of its processes before it builds the model. Both changes concern the
weights that verl sends after every update.
"""

import functools

from verl_sara.cpu.environment import is_cpu


def register() -> None:
    """Apply the changes; does nothing unless `VERL_PLATFORM=cpu`."""
    if is_cpu():
        keep_plain_weights()
        copy_out_of_shared_memory()


def keep_plain_weights() -> None:
    """Linear layers multiply with the weight they loaded.

    vllm/model_executor/layers/utils.py:234 (called by linear.py:220) packs the weight of every linear layer
    and replaces it by an empty parameter, so that loading the next weights fails with
    "'Parameter' object has no attribute 'weight_loader'".
    """
    import torch
    from vllm.model_executor.layers import utils

    def dispatch(layer, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = dispatch


def copy_out_of_shared_memory() -> None:
    """Received weights are copies, not views of the shared buffer.

    verl/workers/rollout/vllm_rollout/bucketed_weight_transfer.py:287 relies on `tensor.to(device)` for
    the copy, which on a CPU returns the same memory; the buffer is unmapped soon afterwards.
    """
    from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

    receive = BucketedWeightReceiver.receive_weights
    if hasattr(receive, "verl_sara"):
        return

    @functools.wraps(receive)
    def receive_weights(self, on_bucket_received):
        def on_copy(weights, is_last):
            return on_bucket_received([(name, tensor.clone()) for name, tensor in weights], is_last)

        return receive(self, on_bucket_received=on_copy)

    receive_weights.verl_sara = True
    BucketedWeightReceiver.receive_weights = receive_weights
