"""Simulated training: a pool, a selector and the real core, step after step, without a model.

A policy's step runs through the same `StepAllocator`, rules, priors and selectors as a real one; only
the rollouts are drawn from known pass rates.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from verl_sara.core import (
    BetaPrior,
    CommitRate,
    Fate,
    FixedPrior,
    FullGroup,
    Group,
    PriorSource,
    Reason,
    RenewalOptimal,
    RunningYield,
    StepAllocator,
    StepSettings,
    StoppingRule,
    Verdict,
    learn,
    run_step,
)
from verl_sara.selection import GroupEvidence, PromptSelector, build_selector
from verl_sara.selection.evidence import evidence_of
from verl_sara.simulate.lengths import Lengths
from verl_sara.simulate.populations import Pool, effective_share
from verl_sara.simulate.server import Server


@dataclass
class Policy:
    """One way to collect a step, with everything that it carries from step to step.

    Attributes:
      settings: Sizes and modes of a step.
      rule: Stopping rule.
      priors: Source of the priors.
      running_yield: Price of the renewal rule, fed after every step.
      selection: Name of a selector; `selection_options` are its parameters.
      is_exact: True runs prompt after prompt and stops exactly at the B-th committed one, without
        rounds: the accounting of ideal dynamic sampling. False runs waves.
      skip: With the renewal rule, a prompt whose worth is negative is not started, except with this
        probability; None starts every prompt. Skipping is outside the reliability bound.
    """

    settings: StepSettings
    rule: StoppingRule = field(default_factory=FullGroup)
    priors: PriorSource = field(default_factory=FixedPrior)
    running_yield: RunningYield | None = None
    selection: str = "uniform"
    selection_options: Mapping[str, Any] = field(default_factory=dict)
    is_exact: bool = False
    skip: float | None = None
    commit_rate: CommitRate = field(default_factory=CommitRate)


@dataclass
class StepReport:
    """What one simulated step cost and gave.

    Attributes:
      rollouts: Rollouts launched; `tokens` those generated for them.
      trained: Effective groups trained; `saturated` those trained beside them.
      rounds: Waves of grants; a number of its own kind without rounds.
      abandoned: Prompts abandoned.
      predicted: Sum over the abandoned of p_eff at the verdict.
      realised: Sum over the abandoned of the probability, under the true pass rate, of being mixed.
      hard: Trained groups with a pass rate below 0.2.
      effective_share: Mean probability of being mixed over the prompts started.
    """

    rollouts: int
    tokens: int
    trained: int
    saturated: int
    rounds: int
    abandoned: int
    predicted: float
    realised: float
    hard: int
    effective_share: float


class Training:
    """Runs one policy over one pool.

    Args:
      pool: The prompts.
      policy: The policy; its state moves.
      num_steps: Steps in all, over which the pool drifts.
      lengths: Distribution of response lengths.
      seed: Seed of outcomes, lengths and selection.
      server: Runs the rollouts in simulated time, if given.
    """

    def __init__(
        self,
        pool: Pool,
        policy: Policy,
        *,
        num_steps: int,
        lengths: Lengths,
        seed: int,
        server: Server | None = None,
    ) -> None:
        self.pool, self.policy, self.num_steps, self.server = pool, policy, num_steps, server
        self.stream = PromptStream(pool, policy, lengths, seed)
        self.step = 0

    def run(self) -> list[StepReport]:
        """Runs the remaining steps and returns their reports."""
        return [self.run_step() for _ in range(self.num_steps - self.step)]

    def run_step(self) -> StepReport:
        """Runs the next step."""
        policy, stream = self.policy, self.stream
        stream.begin_step(self.pool.pass_rates(self.step / max(1, self.num_steps - 1)))
        allocator = StepAllocator(policy.settings, policy.rule, policy.commit_rate)
        run = self.server.run_step if self.server else run_exact if policy.is_exact else run_step
        fates = run(allocator, stream.fresh, stream.rollout)
        policy.commit_rate.end_step(*allocator.num_decided())
        groups = list(allocator.groups.values())
        learn(groups, policy.priors, policy.running_yield)
        stream.end_step(groups)
        self.step += 1
        return self._report(allocator, fates)

    def _report(self, allocator: StepAllocator, fates: Mapping[str, Fate]) -> StepReport:
        stream, k = self.stream, self.policy.settings.group_size
        started = [group for group in allocator.groups.values() if group.num_launched]
        trained = [group for group in started if fates[group.uid] is Fate.TRAINED]
        abandoned = [group for group in started if group.verdict is Verdict.ABANDON]
        return StepReport(
            rollouts=allocator.num_launched,
            tokens=sum(group.num_tokens for group in started),
            trained=len(trained),
            saturated=sum(fate is Fate.SATURATED_TRAINED for fate in fates.values()),
            rounds=allocator.round_index,
            abandoned=len(abandoned),
            predicted=sum(group.p_eff_at_verdict or 0.0 for group in abandoned),
            realised=sum(prob_mixed(group, stream.pass_rate(group.uid)) for group in abandoned),
            hard=sum(stream.pass_rate(group.uid) < 0.2 for group in trained),
            effective_share=effective_share([stream.pass_rate(group.uid) for group in started], k),
        )


class PromptStream:
    """Draws prompts from a selector and their outcomes from the pass rates."""

    def __init__(self, pool: Pool, policy: Policy, lengths: Lengths, seed: int) -> None:
        self.policy, self.lengths = policy, lengths
        self.rng = np.random.default_rng(seed)
        self.ids = [f"p{number}" for number in range(len(pool.logits))]
        options = dict(policy.selection_options)
        self.selector: PromptSelector = build_selector(policy.selection, self.ids, seed=seed, **options)
        self._rates = pool.pass_rates(0.0)
        self._rows: dict[str, int] = {}
        self._results: dict[str, tuple[list[bool], list[int]]] = {}

    def begin_step(self, rates: np.ndarray) -> None:
        """Begins a step with the given pass rates, [P]."""
        self._rates, self._rows, self._results = rates, {}, {}

    def pass_rate(self, uid: str) -> float:
        """Returns the true pass rate of a prompt of this step."""
        return float(self._rates[self._rows[uid]])

    def fresh(self) -> tuple[str, str, BetaPrior]:
        """Returns (uid, prompt_id, prior) of the next prompt that is not skipped."""
        k = self.policy.settings.group_size
        while True:
            row = int(self.selector.select(1)[0])
            prior = self.policy.priors.prior_for(self.ids[row])
            if not self._is_skipped(prior):
                break
            self.selector.observe([GroupEvidence(self.ids[row], 0, 0, k, "unobserved", 0.0)])
        uid = str(len(self._rows))
        outcomes = self.rng.random(k) < self._rates[row]
        tokens = self.lengths.draw(self.rng, outcomes, self._rates[row])
        self._rows[uid], self._results[uid] = row, (outcomes.tolist(), tokens.tolist())
        return uid, self.ids[row], prior

    def rollout(self, uid: str, slot: int) -> tuple[bool, int]:
        """Returns (passed, tokens) of one rollout."""
        outcomes, tokens = self._results[uid]
        return outcomes[slot], tokens[slot]

    def end_step(self, groups: list[Group]) -> None:
        """Tells the selector what became of the prompts."""
        self.selector.observe(evidence_of(group) for group in groups if group.num_launched)
        self.selector.release([group.prompt_id for group in groups if not group.num_launched])
        self.selector.end_step()

    def _is_skipped(self, prior: BetaPrior) -> bool:
        policy = self.policy
        if policy.skip is None or not isinstance(policy.rule, RenewalOptimal):
            return False
        is_worth = policy.rule.root_value(prior, policy.settings.group_size) >= 0.0
        return not is_worth and self.rng.random() >= policy.skip


def run_exact(
    allocator: StepAllocator,
    fresh: Callable[[], tuple[str, str, BetaPrior]],
    rollout: Callable[[str, int], tuple[bool, int]],
) -> dict[str, Fate]:
    """Drives a streaming step prompt after prompt, so that it ends exactly at the B-th committed group.

    Like `verl_sara.core.run_step`, but of the prompts that are asked for it registers the next one only
    when the one before it is decided.
    """
    owed = 0
    while not (advice := allocator.advance()).is_done:
        owed += advice.refill
        for grant in advice.grants:
            for slot in grant.slots:
                allocator.record(grant.uid, slot, *rollout(grant.uid, slot))
        if not advice.grants and owed:
            allocator.register(*fresh())
            owed -= 1
    return allocator.finish()


def prob_mixed(group: Group, pass_rate: float) -> float:
    """Returns the probability, under the true pass rate, that an abandoned group would have been mixed."""
    same = pass_rate if group.reason is Reason.ALL_PASS else 1.0 - pass_rate
    return float(1.0 - same ** (group.group_size - (group.verdict_length or 0)))
