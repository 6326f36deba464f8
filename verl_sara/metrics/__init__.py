"""The only definition of each number, used live by the trainer and offline by the reports.

Rates of one run are ratios of sums over steps; their intervals treat the steps as independent
(delta method, 95 %). Three kinds of saving are told apart and never mixed: measured (two arms that
were run), replayed (the rule run over another arm's full groups: paired, same outcomes) and
counterfactual (from an arm's own ledger, where what abandoned groups would have become is unknown).

Everything that looks at groups takes them one by one, so that memory does not grow with the ledger.

- estimates: numbers with intervals
- steps: cost and yield of steps
- replay: rules over full groups
- ideal: bounds on ideal dynamic sampling
- lengths: tokens of rollouts by outcome
- occupancy: how busy the steps were
- stopping: verdicts, calibration of p_eff
- audits: audited wrong abandons, with exact bounds
"""

from verl_sara.metrics.audits import Audits, audit_metrics
from verl_sara.metrics.estimates import Estimate, RatioOfRatios, clopper_pearson, proportion, ratio, saving
from verl_sara.metrics.ideal import Bounds, IdealDs, ideal_ds_cost
from verl_sara.metrics.lengths import Lengths
from verl_sara.metrics.occupancy import Occupancy
from verl_sara.metrics.replay import FullGroups, Replayed, is_full
from verl_sara.metrics.steps import (
    cost_per_effective_group,
    effective_fraction,
    effective_groups,
    groups_trained,
    step_metrics,
)
from verl_sara.metrics.stopping import Stopping

__all__ = [
    "Audits",
    "Bounds",
    "Estimate",
    "FullGroups",
    "IdealDs",
    "Lengths",
    "Occupancy",
    "RatioOfRatios",
    "Replayed",
    "Stopping",
    "audit_metrics",
    "clopper_pearson",
    "cost_per_effective_group",
    "effective_fraction",
    "effective_groups",
    "groups_trained",
    "ideal_ds_cost",
    "is_full",
    "proportion",
    "ratio",
    "saving",
    "step_metrics",
]
