"""The sizes and modes of one step, validated. Priors and rules are passed beside them."""

from dataclasses import dataclass, fields
from typing import Literal, get_args, get_origin, get_type_hints

from verl_sara.core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class StepSettings:
    """How one step collects.

    Attributes:
      group_size: k, rollouts in a full group, >= 2; 1 is allowed only with `keep_saturated`.
      batch_size: B, groups per step, >= 1.
      probe_size: Rollouts of a fresh prompt before the first verdict, >= 1.
      increment: Rollouts per further stage, >= 1.
      keep_saturated: Train every group (uniform collection).
      collect: "effective_groups" = until B groups are committed; "budget" = as many as B k rollouts
        give, which with prefixes may be more than B.
      group_completion: "full" completes committed groups to k; "prefix" trains what was launched.
      schedule: "rounds" = a barrier per round (the paper); "streaming" = none.
      max_rollouts: Most rollouts a step may cost, audits apart, >= B k.
      refill_margin: Standard deviations by which a wave exceeds what the deficit asks for, >= 0.
      surplus: "discard" or "train" committed groups beyond B (in whole mini-batches).
      mini_batch_size: Groups per optimizer mini-batch, >= 1.
      on_exhausted: With fewer than B groups at the end of the budget, "train_committed" trains
        those, "fill_saturated" adds abandoned groups up to B.
      train_audited: Audited groups that turn out mixed are trained like committed ones and count
        among the first B; their completions stay outside the budget.
    """

    group_size: int
    batch_size: int
    probe_size: int = 4
    increment: int = 1
    keep_saturated: bool = False
    collect: Literal["effective_groups", "budget"] = "effective_groups"
    group_completion: Literal["full", "prefix"] = "full"
    schedule: Literal["rounds", "streaming"] = "rounds"
    max_rollouts: int = 0
    refill_margin: float = 0.0
    surplus: Literal["discard", "train"] = "discard"
    mini_batch_size: int = 1
    on_exhausted: Literal["train_committed", "fill_saturated"] = "train_committed"
    train_audited: bool = False

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for field in fields(self):
            check_type(field.name, getattr(self, field.name), hints[field.name])
        for name in ("batch_size", "probe_size", "increment", "mini_batch_size"):
            check_least(name, getattr(self, name), 1)
        check_least("refill_margin", self.refill_margin, 0)
        if self.group_size < 2 and not (self.group_size == 1 and self.keep_saturated):
            raise ConfigError(
                f"group_size is {self.group_size}; allowed: >= 2, since a group of one is never mixed "
                "(1 only when every group is kept, preset uniform)"
            )
        if self.train_audited and (self.collect, self.group_completion) != ("effective_groups", "full"):
            raise ConfigError(
                f"train_audited is True with collect {self.collect!r} and group_completion "
                f"{self.group_completion!r}; allowed: only with effective_groups and full, since an audit "
                "completes its group, outside the budget"
            )
        if self.max_rollouts == 0 or self.collect == "budget":
            factor = 1 if self.collect == "budget" else 10
            object.__setattr__(self, "max_rollouts", factor * self.batch_size * self.group_size)
        check_least("max_rollouts", self.max_rollouts, self.batch_size * self.group_size)


def check_type(name: str, value: object, hint: object) -> None:
    """Raises ConfigError unless `value` is of the annotated type; int passes for float, bool never."""
    if get_origin(hint) is Literal:
        allowed = get_args(hint)
        if value not in allowed:
            raise ConfigError(f"{name} is {value!r}; allowed: {', '.join(map(str, allowed))}")
        return
    options = tuple(t for t in (get_args(hint) or (hint,)) if isinstance(t, type))
    accepted = (*options, int) if float in options else options
    if (isinstance(value, bool) and bool not in accepted) or not isinstance(value, accepted):
        names = " or ".join("null" if t is type(None) else t.__name__ for t in options)
        raise ConfigError(f"{name} is {value!r} ({type(value).__name__}); allowed: {names}")


def check_least(name: str, value: float, least: float) -> None:
    """Raises ConfigError unless `value` >= `least` (NaN and infinity never are)."""
    if not least <= value < float("inf"):
        raise ConfigError(f"{name} is {value!r}; allowed: >= {least}")
