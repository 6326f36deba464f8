"""The runs of a report, read once, and their summary."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from verl_sara.ledger import LedgerError
from verl_sara.metrics import Replayed
from verl_sara.summary import Arm, paper_rule, read_arm, summary_of
from verl_sara.summary.compare import FULL_GROUPS

TAU_GRID = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)
"""Thresholds at which the paper's rule is replayed; the probe shrinks to 2, so that each can act."""


@dataclass
class Runs:
    """Runs by name, with what could not be read.

    Attributes:
      arms: Runs by name; "arm/1", "arm/2" for several of an arm.
      rule: Options of the replayed rule.
      baselines: Arms that savings are measured against; empty = by preset.
      unread: Why a run is missing, by name.
    """

    arms: dict[str, Arm]
    rule: dict[str, Any]
    baselines: Sequence[str] = ()
    unread: dict[str, str] = field(default_factory=dict)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The summary, see `verl_sara.summary.summarise`."""
        return summary_of(self.arms, baselines=self.baselines, rule=self.rule)

    def replays(self, *seeds: Arm) -> dict[float, Replayed]:
        """Returns the rule at every threshold of TAU_GRID, run over the full groups of the seeds of an arm."""
        pooled = Arm(seeds[0].label)
        for arm in seeds:
            pooled.full_groups.update(arm.full_groups)
        return {tau: pooled.replay(**{**self.rule, "tau_low": tau, "probe_size": 2}) for tau in TAU_GRID}

    @property
    def by_label(self) -> dict[str, list[Arm]]:
        """Runs by arm."""
        groups: dict[str, list[Arm]] = {}
        for arm in self.arms.values():
            groups.setdefault(arm.label, []).append(arm)
        return groups

    @property
    def with_ledger(self) -> list[Arm]:
        """Runs that have a ledger."""
        return [arm for arm in self.arms.values() if arm.ledger]

    @property
    def full(self) -> list[Arm]:
        """Runs whose groups are full, so that rules can be replayed on them."""
        return [arm for arm in self.with_ledger if arm.preset in FULL_GROUPS and arm.stopping.num_full]


def load_runs(
    folders: Mapping[str, str | os.PathLike[str]],
    *,
    baselines: Sequence[str] = (),
    last_step: int | None = None,
) -> Runs:
    """Reads run folders; one that cannot be read is told in `unread` and left out.

    Raises:
      LedgerError: If none can be read, or a baseline is no arm.
    """
    unread: dict[str, str] = {}
    arms: dict[str, Arm] = {}
    rule = paper_rule(folders)
    for name, folder in folders.items():
        try:
            arms[name] = read_arm(name, folder, last_step=last_step)
        except LedgerError as error:
            unread[name] = str(error)
    if not arms:
        raise LedgerError("; ".join(f"{name}: {reason}" for name, reason in unread.items()) or "no run given")
    runs = Runs(arms, rule, baselines, unread)
    _ = runs.summary
    return runs
