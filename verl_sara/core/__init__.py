"""The decisions of SARA, as pure functions and small machines on the standard library.

- posterior: Beta prior, probability that a group will be effective, keep-probability, costs
- stopping: rules that turn a prior into the lengths at which a prompt is abandoned
- priors: where a prompt's prior comes from: fixed, fitted to the stream, its own history
- renewal: lengths of greatest yield under a reliability cap; yield guard
- group: one prompt's group as a transition table
- settings: sizes and modes of a step
- commit_rate: running share of committed prompts, which sizes the waves
- allocator: one training step; standing keeps its counts in dispatch order
- fate: what became of every group
- feedback: what a finished step teaches the prior source and the running yield
"""

from verl_sara.core.allocator import Advice, Grant, StepAllocator, run_step
from verl_sara.core.commit_rate import CommitRate
from verl_sara.core.errors import ConfigError, IllegalTransition, NoCommittedGroup, SaraError
from verl_sara.core.fate import TRAINED_FATES, Fate, fates
from verl_sara.core.feedback import learn
from verl_sara.core.group import TRANSITIONS, Event, Group, Phase, Reason, Slot, SlotStatus, Verdict
from verl_sara.core.posterior import UNIFORM, BetaPrior, expected_cost, prob_effective, prob_keep
from verl_sara.core.priors import EmpiricalBayesPrior, FixedPrior, HistoryPrior, PriorSource, merge_changes
from verl_sara.core.renewal import GuardedThreshold, RenewalOptimal, RunningYield
from verl_sara.core.settings import StepSettings
from verl_sara.core.stopping import (
    FullGroup,
    SaraThreshold,
    StopLengths,
    StoppingRule,
    align_lengths,
    stage_boundaries,
)

__all__ = [
    "TRAINED_FATES",
    "TRANSITIONS",
    "UNIFORM",
    "Advice",
    "BetaPrior",
    "CommitRate",
    "ConfigError",
    "EmpiricalBayesPrior",
    "Event",
    "Fate",
    "FixedPrior",
    "FullGroup",
    "Grant",
    "Group",
    "GuardedThreshold",
    "HistoryPrior",
    "IllegalTransition",
    "NoCommittedGroup",
    "Phase",
    "PriorSource",
    "Reason",
    "RenewalOptimal",
    "RunningYield",
    "SaraError",
    "SaraThreshold",
    "Slot",
    "SlotStatus",
    "StepAllocator",
    "StepSettings",
    "StopLengths",
    "StoppingRule",
    "Verdict",
    "align_lengths",
    "expected_cost",
    "fates",
    "learn",
    "merge_changes",
    "prob_effective",
    "prob_keep",
    "run_step",
    "stage_boundaries",
]
