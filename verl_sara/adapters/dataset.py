"""verl's dataset with a stable prompt identity, prompt selection and the state that crosses steps.

To use a dataset of your own, derive it from `SaraDataset` instead of verl's `RLHFDataset` and name
it in `data.custom_cls`.
"""

from collections.abc import Sequence
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_sara.adapters.carried import CARRIED
from verl_sara.core import ConfigError
from verl_sara.data.identity import prompt_id
from verl_sara.selection import PromptSelector, build_selector, number_duplicates
from verl_sara.selection.evidence import GroupEvidence

VERLS_ORDER = "verl"
"""Name of the selection that leaves the order of the prompts to verl's own sampler."""


def _as_list(files: Any) -> list[str]:
    return [str(f) for f in files] if isinstance(files, (list, tuple, ListConfig)) else [str(files)]


def build_selection(options: dict[str, Any], ids: Sequence[str]) -> PromptSelector | None:
    """Returns the selector that `data.custom_cls.sara.selection` names, None for verl's own order.

    Raises:
      ConfigError: If the name or a parameter is unknown, or a value is out of range.
    """
    name = options.pop("name", VERLS_ORDER)
    if name == VERLS_ORDER:
        return None
    try:
        return build_selector(name, ids, **options)
    except ValueError as error:
        raise ConfigError(f"data.custom_cls.sara.selection: {error}") from error


class SaraDataset(RLHFDataset):
    """Adds `prompt_id`, a content hash, to every training row; inert for the validation files.

    With a selector, a row is the selector's next choice, whatever index verl's sampler asks for. The
    `state_dict` is saved by the stateful data loader into verl's `data.pt`, before the checkpoint's
    tracker file is written, and restored before the first row is read.

    Raises:
      ConfigError: If the training files hold fewer prompts than `data.train_batch_size`, or the
        selection is not one of ours.
    """

    def __init__(self, data_files: Any, *args: Any, config: DictConfig, **kwargs: Any) -> None:
        self.is_train = _as_list(data_files) == _as_list(config.train_files)
        self.selector: PromptSelector | None = None
        super().__init__(data_files, *args, config=config, **kwargs)
        if not self.is_train:
            return
        if len(self) < config.train_batch_size:
            raise ConfigError(
                f"data.train_files hold {len(self)} prompts, data.train_batch_size is {config.train_batch_size}; "
                f"allowed: at least one batch of prompts (train_batch_size <= {len(self)})"
            )
        options = OmegaConf.to_container(config.custom_cls.get("sara", {}), resolve=True)
        self.ids = number_duplicates([self._identity(row) for row in self.dataframe])
        self.selector = build_selection(dict(options.get("selection", {})), self.ids)
        CARRIED.num_prompts, CARRIED.observe = len(self), self._end_step
        CARRIED.num_free = self._num_free if self.selector is not None else None

    def _identity(self, row: dict[str, Any]) -> str:
        truth = row.get("reward_model")
        truth = truth.get("ground_truth") if isinstance(truth, dict) else None
        return prompt_id(row[self.prompt_key], str(row.get("data_source", "")), truth)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Returns verl's row, with `prompt_id` when it is a training row."""
        if not self.is_train:
            return super().__getitem__(item)
        if self.selector is not None:
            item = int(self.selector.select(1)[0])
        CARRIED.prompts_consumed += 1
        return {**super().__getitem__(item), "prompt_id": self.ids[item]}

    def _num_free(self) -> int:
        assert self.selector is not None
        return len(self) - len(self.selector.in_flight())

    def _end_step(self, evidence: Sequence[GroupEvidence], unused: Sequence[str]) -> dict[str, float]:
        """Teaches the selector what a finished step showed and returns its numbers."""
        if self.selector is None:
            return {}
        self.selector.release(unused)
        self.selector.observe([one for one in evidence if one.prompt_id not in set(unused)])
        self.selector.end_step()
        return self.selector.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that crosses steps; empty for the validation files."""
        if not self.is_train:
            return {}
        selection = self.selector.state_dict() if self.selector else None
        return {**CARRIED.state_dict(), "selection": selection}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it. A checkpoint of a run without SARA has none and starts afresh, and says so.

        Raises:
          ValueError: If another schema or another selection wrote it.
        """
        if not self.is_train:
            return
        if not state:
            print("verl_sara: the checkpoint holds no SARA state; starting with fresh beliefs", flush=True)
            return
        CARRIED.load_state_dict(state)
        if self.selector is None:
            return
        if state.get("selection") is None:
            print("verl_sara: the checkpoint was made without a selector; its beliefs start at the prior", flush=True)
            return
        report = self.selector.load_state_dict(state["selection"])
        print(f"verl_sara: selection restored: {report}", flush=True)
