"""verl's dataset with a stable prompt identity, prompt selection and the state that crosses steps.

A dataset class of the user's own is joined with it: see `own_dataset`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import datasets
from omegaconf import DictConfig, ListConfig, OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset

from verl_sara.adapters.carried import CARRIED
from verl_sara.adapters.own_dataset import load_own_class, rebuild, with_base
from verl_sara.adapters.verl_order import VerlOrder
from verl_sara.core import ConfigError
from verl_sara.data.identity import prompt_id
from verl_sara.selection import PromptSelector, build_selector, number_duplicates
from verl_sara.selection.evidence import GroupEvidence

PER_PROMPT_SIZE = "__rollout_n__"
"""verl's column of a prompt's own group size."""


def _as_list(files: Any) -> list[str]:
    return [str(f) for f in files] if isinstance(files, (list, tuple, ListConfig)) else [str(files)]


def build_selection(options: dict[str, Any], ids: Sequence[str]) -> PromptSelector | None:
    """Returns the selector that `data.custom_cls.sara.selection` names, None for verl's own order.

    Raises:
      ConfigError: If the name or a parameter is unknown, or a value is out of range.
    """
    name = options.pop("name", VerlOrder.name)
    if name == VerlOrder.name:
        if options:
            raise ConfigError(
                f"data.custom_cls.sara.selection: selection {name!r} has no parameter {', '.join(options)}; "
                "allowed: none (choose a selection with +sara/selection=<name>)"
            )
        return None
    try:
        return build_selector(name, ids, **options)
    except ValueError as error:
        raise ConfigError(f"data.custom_cls.sara.selection: {error}") from error


class SaraDataset(RLHFDataset):
    """Adds `prompt_id`, a content hash, to every training row; inert for the validation files.

    A row is the selector's next choice, whatever index verl's sampler asks for; without a selection,
    the choice is verl's own order (`VerlOrder`). The `state_dict` is saved by the stateful data loader
    into verl's `data.pt`, before the checkpoint's tracker file is written, and restored before the first
    row is read. Constructing it with `data.custom_cls.sara.base` set makes a dataset of that class, too.

    Raises:
      ConfigError: If the training files hold fewer prompts than `data.train_batch_size`, or the
        selection is not one of ours.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> "SaraDataset":
        config = kwargs["config"] if "config" in kwargs else args[2]
        return super().__new__(with_base(cls, config))

    def __init__(
        self,
        data_files: Any,
        tokenizer: Any,
        config: DictConfig,
        processor: Any = None,
        max_samples: int = -1,
        **kwargs: Any,
    ) -> None:
        self.is_train = _as_list(data_files) == _as_list(config.train_files)
        self.selector: PromptSelector | None = None
        super().__init__(
            data_files=data_files,
            tokenizer=tokenizer,
            config=config,
            processor=processor,
            max_samples=max_samples,
            **kwargs,
        )
        if not self.is_train:
            return
        if len(self) < config.train_batch_size:
            raise ConfigError(
                f"data.train_files hold {len(self)} prompts, data.train_batch_size is {config.train_batch_size}; "
                f"allowed: at least one batch of prompts (train_batch_size <= {len(self)})"
            )
        self.ids = number_duplicates([self._identity(row) for row in self._rows()])
        options = OmegaConf.to_container(config.custom_cls.get("sara", {}), resolve=True)
        self.selector = self._build_selector(dict(options.get("selection", {})))
        CARRIED.num_prompts, CARRIED.observe, CARRIED.num_free = len(self), self._end_step, self._num_free

    def _build_selector(self, options: dict[str, Any]) -> PromptSelector:
        from verl.trainer.ppo.utils import create_rl_sampler

        selector = build_selection(options, self.ids)
        return selector or VerlOrder(self.ids, create_rl_sampler(self.config, self))

    def _rows(self) -> Iterable[dict[str, Any]]:
        """Returns the rows of the file, or those of `__getitem__` where a class keeps its data otherwise."""
        frame = getattr(self, "dataframe", None)
        is_plain = isinstance(frame, datasets.Dataset) and len(frame) == len(self)
        return frame if is_plain else map(self.__getitem__, range(len(self)))

    def _identity(self, row: dict[str, Any]) -> str:
        truth = row.get("reward_model")
        truth = truth.get("ground_truth") if isinstance(truth, dict) else None
        prompt = row[self.prompt_key] if self.prompt_key in row else row["raw_prompt"]
        return prompt_id(prompt, str(row.get("data_source", "")), truth)

    def __getitem__(self, item: int) -> dict[str, Any]:
        """Returns the row, with `prompt_id` when it is a training row.

        Raises:
          ConfigError: If a training row brings a group size of its own.
        """
        if self.selector is None:
            return super().__getitem__(item)
        chosen = int(self.selector.select(1)[0])
        if isinstance(self.selector, VerlOrder) and not CARRIED.prompts_consumed and chosen != item:
            print("verl_sara: verl's position in the pass is not ours; the pass over the data starts again", flush=True)
        CARRIED.prompts_consumed += 1
        row = super().__getitem__(chosen)
        if PER_PROMPT_SIZE in row:
            raise ConfigError(
                f"data.train_files: a row has {PER_PROMPT_SIZE} {row[PER_PROMPT_SIZE]!r}, which has no effect with "
                "SARA; allowed: rows without it (every group has actor_rollout_ref.rollout.n rollouts)"
            )
        return {**row, "prompt_id": self.ids[chosen]}

    def __reduce__(self) -> Any:
        return rebuild, getattr(type(self), "origin", (type(self),)), self.__getstate__()

    def _num_free(self) -> int:
        assert self.selector is not None
        return len(self) - len(self.selector.in_flight())

    def _end_step(self, evidence: Sequence[GroupEvidence], unused: Sequence[str]) -> dict[str, float]:
        """Teaches the selector what a finished step showed and returns its numbers."""
        assert self.selector is not None
        self.selector.release(unused)
        self.selector.observe([one for one in evidence if one.prompt_id not in set(unused)])
        self.selector.end_step()
        return self.selector.metrics()

    def state_dict(self) -> dict[str, Any]:
        """Returns the state that crosses steps and, under "base", that of the user's class, if it has any."""
        own = super().state_dict() if hasattr(super(), "state_dict") else {}
        if self.selector is None:
            return own
        return {**CARRIED.state_dict(), "selection": self.selector.state_dict(), "base": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores it. A checkpoint of a run without SARA has none and starts afresh, and says so.

        Raises:
          ValueError: If another schema or another selection wrote it.
        """
        is_ours = self.selector is not None and "coordinator" in state
        if hasattr(super(), "load_state_dict"):
            super().load_state_dict(state["base"] if is_ours else state)
        if self.selector is None:
            return
        if not is_ours:
            print("verl_sara: the checkpoint holds no SARA state; starting with fresh beliefs", flush=True)
            return
        CARRIED.load_state_dict(state)
        saved = (state["selection"] or {}).get("selector")
        if saved != self.selector.name and VerlOrder.name in (saved, self.selector.name):
            print(f"verl_sara: the checkpoint's selection is {saved}; {self.selector.name} starts afresh", flush=True)
            return
        report = self.selector.load_state_dict(state["selection"])
        print(f"verl_sara: selection restored: {report}", flush=True)


def adopt_own_class(data_config: DictConfig) -> bool:
    """Puts a class named by `data.custom_cls.{path,name}` beneath ours, unless it derives from ours.

    A preset names ours there, which the same keys on a command line replace.

    Returns:
      Whether `data_config` was changed.

    Raises:
      ConfigError: If the class cannot be loaded, does not derive from RLHFDataset, or another one is the base.
    """
    custom = data_config.custom_cls
    ours = {"path": f"pkg://{SaraDataset.__module__}", "name": SaraDataset.__name__}
    own = {"path": custom.path, "name": custom.name}
    if own == ours or issubclass(load_own_class(**own, key="data.custom_cls"), SaraDataset):
        return False
    base = OmegaConf.select(data_config, "custom_cls.sara.base")
    if base is None or any(value is not None for value in base.values()):
        raise ConfigError(
            f"data.custom_cls is {custom.path}:{custom.name} with data.custom_cls.sara.base {base}; allowed: one of "
            "them, with a preset (+sara=<preset>)"
        )
    base.update(own)
    custom.update(ours)
    return True
