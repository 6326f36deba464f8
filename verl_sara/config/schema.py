"""Every option of ours, as one validated frozen dataclass.

The presets put these options under verl's `trainer.v1.sampler.sampler_kwargs`; verl hands that node
to our replay buffer. An unknown name, a wrong type or a value out of range is refused with the name,
the value and what is allowed.
"""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_type_hints

from verl_sara.core import (
    BetaPrior,
    ConfigError,
    EmpiricalBayesPrior,
    FixedPrior,
    FullGroup,
    GuardedThreshold,
    HistoryPrior,
    PriorSource,
    RenewalOptimal,
    RunningYield,
    SaraThreshold,
    StepSettings,
    StoppingRule,
)
from verl_sara.core.settings import check_least, check_type

WEIGHTED_ESTIMATORS = {
    f"sara_{name}": name for name in ("grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline")
}
"""Our advantage estimators, which weight groups, and verl's that they are made of."""


@dataclass(frozen=True, slots=True)
class SaraConfig:
    """The options of a run.

    Attributes:
      preset: Name shown in banner and ledger.
      mode: "collect" = our allocator decides; "observe" = verl's own buffer decides and we record.
      group_size: k, from `actor_rollout_ref.rollout.n`.
      batch_size: B, from `data.train_batch_size`.
      mini_batch_size: Prompts per optimizer mini-batch, from `actor_rollout_ref.actor`.
      run_dir: Folder of the ledger.
      run_name: Name of the run in the ledger.
      rule: "threshold" abandons when p_eff < tau_low (the paper), "renewal" where going on is worth
        less than its cost and p_eff < tau_low, "full" never before the group is full.
      tau_low: Abandon threshold in [0, 1]; null = 0.3 up to k = 8, else 0.4.
      yield_guard: With rule "threshold", abandon only if also p_eff <= yield (k - n).
      token_costs: Price tokens instead of rollouts in rule "renewal".
      min_fail_length: Shortest all-fail prefix that rule "renewal" abandons, >= 2.
      prior_source: "fixed" is `prior` for every prompt, "empirical_bayes" fits one to the stream,
        "history" adds each prompt's own discounted counts to the fit.
      prior: [alpha, beta] of the fixed prior, both > 0.
      history_decay: Factor of a prompt's counts per step, in (0, 1].
      probe_size: First rollouts of a prompt, >= 1.
      increment: Rollouts per further stage, >= 1.
      keep_saturated: Train every group.
      collect: "effective_groups" or "budget".
      group_completion: "full" or "prefix".
      schedule: "rounds" or "streaming".
      max_rollouts_per_step: Budget of a step, null = 10 B k, else >= B k.
      refill_margin: Standard deviations added to a wave of fresh prompts, >= 0.
      surplus: "discard" or "train".
      on_exhausted: "train_committed" or "fill_saturated".
      audit_fraction: Share of the abandoned groups that are completed, outside the budget, to measure
        how many would have been mixed, in [0, 1].
      train_audited: Train audited groups that turned out mixed; they count among the B. Needs
        audit_fraction > 0.
      importance_correction: "horvitz_thompson" weights a group by 1 / P(trained | its passes), which undoes
        the selection by abandoning; needs an estimator of WEIGHTED_ESTIMATORS. P(trained) is P(kept), with
        train_audited P(kept) + audit_fraction (1 - P(kept)).
      short_steps: With fewer than B groups, "warn", or "scale" the advantages by groups / B, which makes
        up for token-mean aggregation; needs an estimator of WEIGHTED_ESTIMATORS.
      max_empty_steps: Steps in a row without a committed group that stop the run, >= 1.
      max_step_s: Seconds after which a step takes no new probes, > 0.
      rollout_timeout_s: Seconds one rollout may take, grading included, > 0.
      max_retries: Retries of a rollout whose server or worker was lost, >= 0.
      stall_report_s: Seconds without progress until a report is printed, > 0.
      stall_deadline_s: Seconds without progress until the run stops, > 0.
      verdict_key: Key of the reward's extra info that holds the binary correctness.
      success_threshold: If set, a rollout passes when its score reaches it, and `verdict_key` is
        not used.
      task: What is trained on and graded by, for the ledger: runs of another task are not compared.
      setup: Algorithm, model and learning rate, for the ledger.
      filter_metric: In mode "observe", verl's `algorithm.filter_groups.metric`, null = no filter.
      max_inflight_gen_batches: In mode "observe", verl's option of that name.
      seed: Seed of everything random on our side.
    """

    group_size: int
    batch_size: int
    mini_batch_size: int
    run_dir: str
    run_name: str
    preset: str
    mode: Literal["collect", "observe"] = "collect"
    rule: Literal["threshold", "renewal", "full"] = "threshold"
    tau_low: float | None = 0.4
    yield_guard: bool = False
    token_costs: bool = False
    min_fail_length: int = 2
    prior_source: Literal["fixed", "empirical_bayes", "history"] = "fixed"
    prior: tuple[float, float] = (1.0, 1.0)
    history_decay: float = 0.95
    probe_size: int = 4
    increment: int = 1
    keep_saturated: bool = False
    collect: Literal["effective_groups", "budget"] = "effective_groups"
    group_completion: Literal["full", "prefix"] = "full"
    schedule: Literal["rounds", "streaming"] = "rounds"
    max_rollouts_per_step: int | None = None
    refill_margin: float = 0.0
    surplus: Literal["discard", "train"] = "discard"
    on_exhausted: Literal["train_committed", "fill_saturated"] = "train_committed"
    audit_fraction: float = 0.0
    train_audited: bool = False
    importance_correction: Literal["none", "horvitz_thompson"] = "none"
    short_steps: Literal["warn", "scale"] = "warn"
    max_empty_steps: int = 3
    max_step_s: float = 7200.0
    rollout_timeout_s: float = 3600.0
    max_retries: int = 2
    stall_report_s: float = 120.0
    stall_deadline_s: float = 5400.0
    verdict_key: str = "acc"
    success_threshold: float | None = None
    task: Mapping[str, Any] = field(default_factory=dict)
    setup: Mapping[str, Any] = field(default_factory=dict)
    filter_metric: str | None = None
    max_inflight_gen_batches: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for option in fields(self):
            if option.name not in ("prior", "task", "setup"):
                check_type(option.name, getattr(self, option.name), hints[option.name])
        for name in ("max_empty_steps",):
            check_least(name, getattr(self, name), 1)
        for name in ("max_step_s", "rollout_timeout_s", "stall_report_s", "stall_deadline_s"):
            check_least(name, getattr(self, name), 0.001)
        check_least("max_retries", self.max_retries, 0)
        if self.max_rollouts_per_step is not None:
            check_least("max_rollouts_per_step", self.max_rollouts_per_step, self.batch_size * self.group_size)
        for name in ("verdict_key", "run_dir", "run_name", "preset"):
            if not getattr(self, name).strip():
                raise ConfigError(f"{name} is empty; allowed: a non-empty text")
        if self.mode == "observe" and (self.rule != "full" or self.audit_fraction or self.keep_saturated):
            raise ConfigError(
                f"mode is 'observe' with rule {self.rule!r}, audit_fraction {self.audit_fraction!r}, keep_saturated "
                f"{self.keep_saturated!r}; allowed: 'full', 0.0, False, since verl's own buffer decides (+sara=verl_ds)"
            )
        check_least("min_fail_length", self.min_fail_length, 2)
        for name in ("audit_fraction", "tau_low"):
            value = getattr(self, name)
            if value is not None and not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name} is {value!r}; allowed: a number in [0, 1]")
        if self.train_audited and not self.audit_fraction:
            raise ConfigError(
                f"train_audited is True with audit_fraction {self.audit_fraction!r}; allowed: only with "
                "audit_fraction > 0, since no other abandoned group is completed"
            )
        if not 0.0 < self.history_decay <= 1.0:
            raise ConfigError(f"history_decay is {self.history_decay!r}; allowed: a number in (0, 1]")
        is_whole = (self.collect, self.group_completion) == ("effective_groups", "full")
        if self.importance_correction != "none" and not is_whole:
            raise ConfigError(
                f"importance_correction is {self.importance_correction!r} with collect {self.collect!r} and "
                f"group_completion {self.group_completion!r}; allowed: only with effective_groups and full, since the "
                "keep-probability is known for whole groups of a step that is not cut off"
            )
        self.stopping_rule(self.running_yield(), self.priors())
        self.step_settings()

    def priors(self) -> PriorSource:
        """Returns where a prompt's prior comes from, in its initial state."""
        if not isinstance(self.prior, (list, tuple)) or len(self.prior) != 2:
            raise ConfigError(f"prior is {self.prior!r}; allowed: two numbers > 0, [alpha, beta]")
        fixed = BetaPrior(*self.prior)
        if self.prior_source == "fixed":
            return FixedPrior(fixed)
        population = EmpiricalBayesPrior(self.group_size)
        return population if self.prior_source == "empirical_bayes" else HistoryPrior(population, self.history_decay)

    def needs_weights(self) -> bool:
        """Whether groups are weighted, which takes an estimator of WEIGHTED_ESTIMATORS."""
        return self.importance_correction != "none" or self.short_steps == "scale"

    def running_yield(self) -> RunningYield:
        """Returns the price of cost that the rules use, in its initial state."""
        return RunningYield(use_tokens=self.token_costs)

    def stopping_rule(self, running_yield: RunningYield, priors: PriorSource) -> StoppingRule:
        """Returns the rule that fixes n0 and n1 of a prompt; it reads, never feeds, yield and priors."""
        if self.rule == "full":
            return FullGroup()
        tau_low = (0.3 if self.group_size <= 8 else 0.4) if self.tau_low is None else self.tau_low
        if self.rule == "renewal":
            fill = self.group_completion == "full"
            return RenewalOptimal(running_yield, tau_low, self.min_fail_length, fill, priors)
        return GuardedThreshold(tau_low, running_yield) if self.yield_guard else SaraThreshold(tau_low)

    def step_settings(self) -> StepSettings:
        """Returns the sizes and modes of a step."""
        k = self.group_size
        return StepSettings(
            group_size=k,
            batch_size=self.batch_size,
            probe_size=k if self.rule == "full" or self.keep_saturated else self.probe_size,
            increment=self.increment,
            keep_saturated=self.keep_saturated,
            collect=self.collect,
            group_completion=self.group_completion,
            schedule=self.schedule,
            max_rollouts=self.max_rollouts_per_step or 0,
            refill_margin=self.refill_margin,
            surplus=self.surplus,
            mini_batch_size=self.mini_batch_size,
            on_exhausted=self.on_exhausted,
            train_audited=self.train_audited,
        )


def build_config(options: Mapping[str, Any]) -> SaraConfig:
    """Returns the validated options.

    Raises:
      ConfigError: For an unknown or missing name (with the nearest known one), a wrong type or a
        value out of range.
    """
    known = {option.name for option in fields(SaraConfig)}
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(f"unknown option {name!r}{hint} Allowed: {', '.join(sorted(known))}")
    missing = {"group_size", "batch_size", "mini_batch_size", "run_dir", "run_name", "preset"} - set(options)
    if missing:
        raise ConfigError(f"option {min(missing)!r} is missing: select a preset with +sara=<preset>")
    values = dict(options)
    if isinstance(values.get("prior"), list):
        values["prior"] = tuple(values["prior"])
    return SaraConfig(**values)


def plain_options(node: Any) -> dict[str, Any]:
    """Returns an options node (OmegaConf or mapping) as plain, resolved Python values."""
    from omegaconf import OmegaConf

    plain = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    if not isinstance(plain, Mapping):
        raise ConfigError(f"options are {plain!r}; select a preset with +sara=<preset>")
    return {str(key): value for key, value in plain.items()}


def options_of(config: Any) -> dict[str, Any]:
    """Returns our options of a composed verl config."""
    return plain_options(config.trainer.v1.sampler.sampler_kwargs)
