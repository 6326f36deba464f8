"""The only definition of each number, used live by the trainer and offline by the reports.

Rates of one run are ratios of sums over steps; their intervals treat the steps as independent
(delta method, 95 %). Three kinds of saving are told apart and never mixed: measured (two arms that
were run), replayed (the rule run over another arm's full groups: paired, same outcomes) and
counterfactual (from an arm's own ledger, where what abandoned groups would have become is unknown).

Everything that looks at groups takes them one by one, so that memory does not grow with the ledger.

- estimates: numbers with intervals
- steps: cost and yield of steps
- replay: a rule over full groups
- ideal: bounds on ideal dynamic sampling
- lengths: tokens of rollouts by outcome
- occupancy: how busy the steps were
- stopping: verdicts, calibration of p_eff, audited wrong abandons
"""

from verl_sara.metrics.estimates import Estimate, RatioOfRatios, proportion, ratio, saving
from verl_sara.metrics.ideal import Bounds, IdealDs, ideal_ds_cost
from verl_sara.metrics.lengths import Lengths
from verl_sara.metrics.occupancy import Occupancy
from verl_sara.metrics.replay import Replay, Replayed, is_full, replay
from verl_sara.metrics.steps import (
    cost_per_effective_group,
    effective_fraction,
    effective_groups,
    groups_trained,
    step_metrics,
)
from verl_sara.metrics.stopping import Stopping

__all__ = [
    "Bounds",
    "Estimate",
    "IdealDs",
    "Lengths",
    "Occupancy",
    "RatioOfRatios",
    "Replay",
    "Replayed",
    "Stopping",
    "cost_per_effective_group",
    "effective_fraction",
    "effective_groups",
    "groups_trained",
    "ideal_ds_cost",
    "is_full",
    "proportion",
    "ratio",
    "replay",
    "saving",
    "step_metrics",
]
