"""verl's dataset with a stable prompt identity and the state that crosses steps.

To use a dataset of your own, derive it from `SaraDataset` instead of verl's `RLHFDataset` and name
it in `data.custom_cls`.
"""

from typing import Any

from omegaconf import DictConfig, ListConfig
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_sara.adapters.carried import CARRIED
from verl_sara.core import ConfigError
from verl_sara.data.identity import prompt_id


def _as_list(files: Any) -> list[str]:
    return [str(f) for f in files] if isinstance(files, (list, tuple, ListConfig)) else [str(files)]


class SaraDataset(RLHFDataset):
    """Adds `prompt_id`, a content hash, to every training row; inert for the validation files.

    Its `state_dict` is saved by the stateful data loader into verl's `data.pt`, before the
    checkpoint's tracker file is written, and restored before the first row is read.

    Raises:
      ConfigError: If the training files hold fewer prompts than `data.train_batch_size`.
    """

    def __init__(self, data_files: Any, *args: Any, config: DictConfig, **kwargs: Any) -> None:
        self.is_train = _as_list(data_files) == _as_list(config.train_files)
        super().__init__(data_files, *args, config=config, **kwargs)
        if self.is_train and len(self) < config.train_batch_size:
            raise ConfigError(
                f"data.train_files hold {len(self)} prompts, data.train_batch_size is {config.train_batch_size}; "
                f"allowed: at least one batch of prompts (train_batch_size <= {len(self)})"
            )

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Returns verl's row, with `prompt_id` when it is a training row."""
        row = super().__getitem__(item)
        if self.is_train:
            truth = row.get("reward_model")
            truth = truth.get("ground_truth") if isinstance(truth, dict) else None
            row["prompt_id"] = prompt_id(row["raw_prompt"], str(row.get("data_source", "")), truth)
            CARRIED.prompts_consumed += 1
        return row

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that crosses steps; empty for the validation files."""
        return CARRIED.state_dict() if self.is_train else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it. A checkpoint of a run without SARA has none and starts afresh, and says so."""
        if not self.is_train:
            return
        if not state:
            print("verl_sara: the checkpoint holds no SARA state; starting with fresh beliefs", flush=True)
            return
        CARRIED.load_state_dict(state)
