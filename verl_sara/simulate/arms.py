"""The policies that the tables compare, built from the options of the presets."""

from collections.abc import Mapping
from typing import Any

from verl_sara.config.schema import SaraConfig
from verl_sara.simulate.training import Policy

DS: Mapping[str, Any] = {"rule": "full"}
UNIFORM: Mapping[str, Any] = {"rule": "full", "keep_saturated": True}
PAPER: Mapping[str, Any] = {"rule": "threshold", "tau_low": 0.4, "probe_size": 4, "increment": 1}
TUNED: Mapping[str, Any] = {
    "rule": "renewal",
    "tau_low": None,
    "prior_source": "history",
    "probe_size": 2,
    "increment": 1,
    "schedule": "streaming",
}
"""Options of the presets of these names; audits apart."""

RANKED = {"selection": "dps", "selection_options": {"explore_fraction": 0.05}}
"""A ranked stream: Dynamics-Predictive Sampling (arXiv 2603.10887) with 5 % random prompts."""


def policy(
    options: Mapping[str, Any],
    *,
    group_size: int = 8,
    batch_size: int = 256,
    is_exact: bool = False,
    skip: float | None = None,
    selection: str = "uniform",
    selection_options: Mapping[str, Any] | None = None,
) -> Policy:
    """Returns a fresh policy with the given options of `SaraConfig`; the rest as in `Policy`."""
    if is_exact:
        options = {**options, "schedule": "streaming"}
    config = SaraConfig(
        group_size=group_size,
        batch_size=batch_size,
        mini_batch_size=batch_size,
        run_dir="none",
        run_name="simulated",
        preset="simulated",
        **options,
    )
    running_yield, priors = config.running_yield(), config.priors()
    return Policy(
        settings=config.step_settings(),
        rule=config.stopping_rule(running_yield, priors),
        priors=priors,
        running_yield=running_yield,
        selection=selection,
        selection_options=selection_options or {},
        is_exact=is_exact,
        skip=skip,
    )
