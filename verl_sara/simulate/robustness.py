"""What an abrupt policy shift does to a predicted stream of prompts, with and without early verdicts on top."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from verl_sara.core import ConfigError
from verl_sara.simulate.arms import PAPER, RANKED, UNIFORM, policy
from verl_sara.simulate.baselines import Cost, whole_batches
from verl_sara.simulate.lengths import Lengths
from verl_sara.simulate.populations import POOLS, Pool
from verl_sara.simulate.table import Table
from verl_sara.simulate.tables import GROUP_SIZE, MARGIN, NUM_PROMPTS, mean
from verl_sara.simulate.training import StepReport, Training

JUMP = 5.5
"""Logits gained in one step: hard prompts of the pools become medium, medium ones easy. The effective share of
pool B stays what it was, so only what was learned of the prompts is out of date."""

ARMS: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "dps": ("DPS alone", UNIFORM, RANKED),
    "sara": ("SARA alone", {**PAPER, **MARGIN}, {}),
    "sara_dps": ("SARA + DPS", {**PAPER, **MARGIN}, RANKED),
}


@dataclass(frozen=True)
class ShiftedPool(Pool):
    """A pool whose logits all jump once, on top of their drift.

    Attributes:
      jump: Logits gained at once.
      at: Share of the training that is done when they are, in [0, 1].
    """

    jump: float = JUMP
    at: float = 0.5

    def pass_rates(self, progress: float) -> np.ndarray:
        """Returns the pass rates when a share `progress` of the training is done, [P] in (0, 1)."""
        return Pool(self.logits + self.jump * (progress >= self.at), self.drift).pass_rates(progress)

    def still(self, progress: float) -> Pool:
        """Returns the pool as it stands at one moment, without drift."""
        return Pool(self.logits + self.jump * (progress >= self.at) + self.drift * (progress - 0.5))


def phases(num_steps: int) -> dict[str, range]:
    """Returns the steps before the shift, right after it and at the end, by name; it comes midway.

    Raises:
      ConfigError: If there are too few steps for three phases.
    """
    if num_steps < 4:
        raise ConfigError(f"steps of the robustness table are {num_steps}; allowed: >= 4")
    shift, width = num_steps // 2, max(1, num_steps // 8)
    return {
        "before": range(shift - width, shift),
        "right_after": range(shift, shift + max(1, num_steps // 40)),
        "later": range(num_steps - width, num_steps),
    }


def robustness(
    *, pool: str = "B", num_steps: int = 80, batch_size: int = 256, num_prompts: int = NUM_PROMPTS, seed: int = 0
) -> Table:
    """Cost of an effective group and effective share of the trained batch around an abrupt policy shift.

    Midway all logits jump by `JUMP`, so that a predictor's beliefs are wrong from one step to the next. The
    numbers hold, by arm and phase, `rollouts_per_effective_group`, `effective_fraction` of the trained batch and
    `saving` of rollouts against dynamic sampling in whole batches at that time; None without an effective group.

    Raises:
      ConfigError: If `num_steps` is below 4.
    """
    lengths, spans = Lengths(), phases(num_steps)
    base = POOLS[pool].build(num_prompts)
    prompts = ShiftedPool(base.logits, base.drift, at=spans["right_after"].start / (num_steps - 1))
    table = Table(
        f"pool {pool}, {num_steps} steps, B = {batch_size}, k = {GROUP_SIZE}; all logits jump by {JUMP} midway",
        ("", "rollouts per effective group", "rollouts vs DS", "effective fraction of the batch", "rounds"),
        notes=[
            "Before: the last steps before the shift; right after: the first ones of it; later: the last steps.",
            "DS = whole generation batches of B prompts until B groups are effective, on the pool as it then is.",
            "DPS = Dynamics-Predictive Sampling, 5 % random prompts; alone, it trains every group that it selects.",
        ],
    )
    whole = {
        name: whole_batches(
            prompts.still(float(np.mean(span)) / (num_steps - 1)),
            num_steps=1, batch_size=batch_size, group_size=GROUP_SIZE, lengths=lengths, seed=seed, repeats=20,
        )
        for name, span in spans.items()
    }  # fmt: skip
    for name, cost in whole.items():
        table.rows.append((f"DS, {name.replace('_', ' ')}", f"{cost.rollouts / cost.groups:.1f}", "", "1.00", ""))
    for key, (arm, options, stream) in ARMS.items():
        one = policy(options, batch_size=batch_size, **stream)
        reports = Training(prompts, one, num_steps=num_steps, lengths=lengths, seed=seed).run()
        for name, span in spans.items():
            seen = [reports[step] for step in span]
            numbers = numbers_of(seen, whole[name])
            table.numbers.setdefault(key, {})[name] = numbers
            forms = zip(numbers.values(), (".1f", ".2f", ".1%"), strict=True)
            price, fraction, saving = ("none" if value is None else f"{value:{form}}" for value, form in forms)
            row = f"{arm}, {name.replace('_', ' ')}"
            table.rows.append((row, price, saving, fraction, f"{mean(seen, 'rounds'):.1f}"))
    return table


def numbers_of(reports: Sequence[StepReport], baseline: Cost) -> dict[str, float | None]:
    """Returns the numbers of one phase, named as in `robustness`."""
    cost, groups = Cost.of(reports), sum(report.trained + report.saturated for report in reports)
    return {
        "rollouts_per_effective_group": cost.rollouts / cost.groups if cost.groups else None,
        "effective_fraction": cost.groups / groups,
        "saving": cost.saving(baseline) if cost.groups else None,
    }
