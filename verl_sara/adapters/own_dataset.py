"""A user's own dataset class beneath ours: loaded, checked and joined with it."""

from functools import cache
from typing import Any

from omegaconf import DictConfig, OmegaConf
from verl.utils.dataset.rl_dataset import RLHFDataset
from verl.utils.import_utils import load_extern_object

from verl_sara.core import ConfigError

BASE_KEY = "data.custom_cls.sara.base"


def load_own_class(path: Any, name: Any, key: str = BASE_KEY) -> type[RLHFDataset]:
    """Returns the class `name` of a file or a `pkg://` module.

    Raises:
      ConfigError: Naming `key`, if it cannot be loaded or does not derive from verl's RLHFDataset.
    """
    allowed = "allowed: path, a file or pkg://module, and name, a class in it that derives from verl's RLHFDataset"
    try:
        found = load_extern_object(str(path), str(name))
    except Exception as error:
        cause = error.__cause__ or error
        raise ConfigError(f"{key} is {path}:{name} ({type(cause).__name__}: {cause}); {allowed}") from error
    if not (isinstance(found, type) and issubclass(found, RLHFDataset)):
        raise ConfigError(f"{key} is {path}:{name}, which does not derive from RLHFDataset; {allowed}")
    return found


@cache
def joined_class(ours: type[RLHFDataset], path: str, name: str) -> type[RLHFDataset]:
    """Returns a class that is `ours` before it is the user's; the user's alone if it derives from `ours`.

    Cached, since loading a file a second time makes other classes.
    """
    own = load_own_class(path, name)
    if issubclass(own, ours):
        return own
    return type(f"{ours.__name__}Of{own.__name__}", (ours, own), {"origin": (ours, path, name)})


def with_base(ours: type[RLHFDataset], data_config: DictConfig) -> type[RLHFDataset]:
    """Returns `ours`, joined with the class that `data.custom_cls.sara.base` names, if any."""
    base = OmegaConf.select(data_config, "custom_cls.sara.base") or {}
    path, name = base.get("path"), base.get("name")
    if path is None and name is None:
        return ours
    return joined_class(ours, str(path), str(name))


def rebuild(ours: type[RLHFDataset], *own: str) -> RLHFDataset:
    """Returns a dataset without content, for unpickling; its class need not be importable."""
    return object.__new__(joined_class(ours, *own) if own else ours)
