"""A stopping rule run over full groups that another arm generated: paired, on the same outcomes."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from verl_sara.core import BetaPrior, StopLengths, StoppingRule, align_lengths, stage_boundaries
from verl_sara.metrics.estimates import Estimate, RatioOfRatios, proportion

Record = dict[str, Any]
SIDES = ("all_fail", "all_pass")


def is_full(group: Record) -> bool:
    """Whether all k outcomes of a group are known."""
    outcomes = group["slots"]["outcome"]
    return len(outcomes) == group["group_size"] and None not in outcomes


@dataclass(frozen=True, slots=True)
class Replayed:
    """A rule's cost per effective group relative to full groups on the same outcomes; below 1 it saves.

    Attributes:
      rollouts: Ratio of rollouts per effective group.
      tokens: Ratio of tokens per effective group.
      num_groups: Full groups that were replayed.
      num_mixed: Those of them that are mixed.
      num_abandoned: Groups that the rule would abandon, by side ("all_fail", "all_pass").
      num_wrong: Those of them that are mixed, by side.
    """

    rollouts: Estimate
    tokens: Estimate
    num_groups: int
    num_mixed: int
    num_abandoned: dict[str, int]
    num_wrong: dict[str, int]

    def wrong_rate(self) -> Estimate:
        """Returns q, the share of the abandoned groups that would have been mixed."""
        return proportion(sum(self.num_wrong.values()), sum(self.num_abandoned.values()))

    def effective_share(self) -> Estimate:
        """Returns pbar, the share of full groups that are mixed."""
        return proportion(self.num_mixed, self.num_groups)

    def recall(self) -> Estimate:
        """Returns the share of the mixed groups that the rule keeps."""
        return proportion(self.num_mixed - sum(self.num_wrong.values()), self.num_mixed)


class Replay:
    """Runs a rule over full groups, in their launch order, one by one.

    An abandoned group costs its stop length, any other k. A renewal ratio: waves, surplus and budget
    play no part. The intervals treat the groups as independent.
    """

    def __init__(self, rule: StoppingRule, *, prior: BetaPrior, probe_size: int, increment: int) -> None:
        self._rule, self._prior, self._probe_size, self._increment = rule, prior, probe_size, increment
        self._lengths: dict[int, StopLengths] = {}
        self._rollouts, self._tokens = RatioOfRatios(), RatioOfRatios()
        self._mixed, self._abandoned, self._wrong = 0, Counter[str](), Counter[str]()

    def add(self, group: Record) -> None:
        """Takes one group; those that are not full are passed over."""
        if not is_full(group):
            return
        outcomes, tokens, k = group["slots"]["outcome"], group["slots"]["tokens"], group["group_size"]
        lengths = self._stop_lengths(k)
        is_abandoned = not any(outcomes[: lengths.fail]) or all(outcomes[: lengths.passed])
        is_mixed = 0 < sum(outcomes) < k
        stop = (lengths.passed if outcomes[0] else lengths.fail) if is_abandoned else k
        is_kept = is_mixed and not is_abandoned
        self._rollouts.add(stop, is_kept, k, is_mixed)
        self._tokens.add(sum(tokens[:stop]), is_kept, sum(tokens), is_mixed)
        self._mixed += is_mixed
        if is_abandoned:
            side = "all_pass" if outcomes[0] else "all_fail"
            self._abandoned[side] += 1
            self._wrong[side] += is_mixed

    def _stop_lengths(self, group_size: int) -> StopLengths:
        if group_size not in self._lengths:
            boundaries = stage_boundaries(group_size, self._probe_size, self._increment)
            lengths = self._rule.lengths(self._prior, group_size)
            self._lengths[group_size] = align_lengths(lengths, boundaries)
        return self._lengths[group_size]

    def result(self) -> Replayed:
        """Returns the ratios over the groups that were taken."""
        return Replayed(
            rollouts=self._rollouts.estimate(),
            tokens=self._tokens.estimate(),
            num_groups=self._rollouts.count,
            num_mixed=self._mixed,
            num_abandoned={side: self._abandoned[side] for side in SIDES},
            num_wrong={side: self._wrong[side] for side in SIDES},
        )


def replay(
    groups: Iterable[Record], rule: StoppingRule, *, prior: BetaPrior, probe_size: int, increment: int
) -> Estimate:
    """Returns the rule's rollouts per effective group relative to full groups on the same outcomes.

    Raises:
      ValueError: If no full group is there.
    """
    runner = Replay(rule, prior=prior, probe_size=probe_size, increment=increment)
    for group in groups:
        runner.add(group)
    result = runner.result()
    if not result.num_groups:
        raise ValueError("no full group to replay; needed: a ledger of the preset ds, verl_ds or uniform")
    return result.rollouts
