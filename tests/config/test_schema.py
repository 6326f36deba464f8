"""The options: every wrong one is refused with its name, its value and what is allowed."""

import pytest

from verl_sara.config.schema import build_config
from verl_sara.core import BetaPrior, ConfigError, FixedPrior, FullGroup, GuardedThreshold, SaraThreshold

BASE = {
    "group_size": 8,
    "batch_size": 8,
    "mini_batch_size": 8,
    "run_dir": "runs/x",
    "run_name": "x",
    "preset": "paper",
}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("tau_lo", 0.3, r"unknown option 'tau_lo'; did you mean tau_low\?"),
        ("whatever", 1, "unknown option 'whatever'"),
        ("tau_low", 1.5, r"tau_low is 1\.5; allowed: a number in \[0, 1\]"),
        ("tau_low", "0.4", r"tau_low is '0\.4' \(str\); allowed: float"),
        ("tau_low", float("nan"), "tau_low is nan"),
        ("prior", [0, 1], "prior alpha is 0; allowed: a finite number > 0"),
        ("prior", [1], r"prior is \(1,\); allowed: two numbers > 0"),
        ("schedule", "round", "schedule is 'round'; allowed: rounds, streaming"),
        ("collect", None, "collect is None; allowed: effective_groups, budget"),
        ("probe_size", 0, "probe_size is 0; allowed: >= 1"),
        ("increment", 1.5, r"increment is 1\.5 \(float\); allowed: int"),
        ("seed", True, r"seed is True \(bool\); allowed: int"),
        ("keep_saturated", 1, r"keep_saturated is 1 \(int\); allowed: bool"),
        ("max_rollouts_per_step", 63, "max_rollouts_per_step is 63; allowed: >= 64"),
        ("audit_fraction", 1.5, r"audit_fraction is 1\.5; allowed: a number in \[0, 1\]"),
        ("train_audited", True, r"with audit_fraction 0\.0; allowed: only with audit_fraction > 0"),
        ("rule", "optimal", "rule is 'optimal'; allowed: threshold, renewal, full"),
        ("history_decay", 0.0, r"history_decay is 0\.0; allowed: a number in \(0, 1\]"),
        ("prior_source", "past", "prior_source is 'past'; allowed: fixed, empirical_bayes, history"),
        ("min_fail_length", 1, "min_fail_length is 1; allowed: >= 2"),
        ("refill_margin", -1.0, r"refill_margin is -1\.0; allowed: >= 0"),
        ("max_empty_steps", 0, "max_empty_steps is 0; allowed: >= 1"),
        ("rollout_timeout_s", 0.0, r"rollout_timeout_s is 0\.0; allowed: >= 0\.001"),
        ("success_threshold", "high", r"success_threshold is 'high' \(str\); allowed: float or null"),
        ("group_size", 1, "group_size is 1; allowed: >= 2"),
        ("run_dir", " ", "run_dir is empty"),
    ],
)
def test_a_wrong_option_is_named(option, value, message):
    with pytest.raises(ConfigError, match=message):
        build_config({**BASE, option: value})


def test_a_missing_option_asks_for_a_preset():
    with pytest.raises(ConfigError, match="select a preset"):
        build_config({})


@pytest.mark.parametrize("option", [{"group_completion": "prefix"}, {"collect": "budget"}])
def test_the_correction_is_refused_where_the_keep_probability_is_unknown(option):
    with pytest.raises(ConfigError, match="importance_correction is 'horvitz_thompson' with"):
        build_config({**BASE, "importance_correction": "horvitz_thompson", **option})


@pytest.mark.parametrize("option", [{"rule": "threshold"}, {"rule": "full", "audit_fraction": 0.1}])
def test_observing_takes_no_decisions(option):
    with pytest.raises(ConfigError, match="mode is 'observe' with rule"):
        build_config({**BASE, "mode": "observe", **option})


def rule_of(config):
    return config.stopping_rule(config.running_yield(), config.priors())


@pytest.mark.parametrize(("group_size", "cap"), [(4, 0.3), (8, 0.3), (16, 0.4), (32, 0.4)])
def test_the_cap_of_the_renewal_rule_follows_the_group_size(group_size, cap):
    config = build_config({**BASE, "group_size": group_size, "rule": "renewal", "tau_low": None})
    assert rule_of(config).tau_low == cap


def test_options_become_core_objects():
    config = build_config({**BASE, "prior": [0.5, 2], "tau_low": 0.3, "max_rollouts_per_step": 640})
    assert config.priors() == FixedPrior(BetaPrior(0.5, 2))
    assert rule_of(config) == SaraThreshold(0.3)
    assert config.step_settings().max_rollouts == 640
    whole = build_config({**BASE, "rule": "full"})
    assert rule_of(whole) == FullGroup() and whole.step_settings().probe_size == 8
    guarded = build_config({**BASE, "yield_guard": True})
    assert isinstance(rule_of(guarded), GuardedThreshold)
    assert build_config({**BASE, "group_size": 1, "rule": "full", "keep_saturated": True}).group_size == 1
