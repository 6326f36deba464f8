"""Stopping rules run over full groups that another arm generated: paired, on the same outcomes."""

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from operator import add
from typing import Any

from verl_sara.core import BetaPrior, StoppingRule, align_lengths, stage_boundaries
from verl_sara.metrics.estimates import Estimate, RatioOfRatios, clopper_pearson, proportion

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
        """Returns q, the share of the abandoned groups that would have been mixed, with its exact interval."""
        return clopper_pearson(sum(self.num_wrong.values()), sum(self.num_abandoned.values()))

    def effective_share(self) -> Estimate:
        """Returns pbar, the share of full groups that are mixed."""
        return proportion(self.num_mixed, self.num_groups)

    def recall(self) -> Estimate:
        """Returns the share of the mixed groups that the rule keeps."""
        return proportion(self.num_mixed - sum(self.num_wrong.values()), self.num_mixed)


@dataclass(slots=True)
class _Alike:
    """Full groups of one size that begin alike, with sums over their tokens.

    Attributes:
      count: Groups.
      tokens: Sum of a group's tokens.
      squares: Sum of its square.
      prefixes: By n - 1 for every n < k up to which the outcomes are equal: sum of the tokens of the first n
        rollouts, of its square, of its product with the group's tokens.
    """

    count: int = 0
    tokens: int = 0
    squares: int = 0
    prefixes: list[list[int]] = field(default_factory=list)


class FullGroups:
    """Full groups, taken one by one; any rule can be replayed on them afterwards.

    What a rule does to a group depends on how many equal outcomes it begins with, in launch order. So
    sums by that number are kept: memory does not grow with the groups, and a rule costs no further reading.
    """

    def __init__(self) -> None:
        self._alike: dict[tuple[int, int, int], _Alike] = {}

    def add(self, group: Record) -> None:
        """Takes one group; those that are not full are passed over."""
        if not is_full(group) or not group["group_size"]:
            return
        outcomes, tokens, k = group["slots"]["outcome"], group["slots"]["tokens"], group["group_size"]
        first = outcomes[0]
        num_equal = outcomes.index(1 - first) if 1 - first in outcomes else k
        alike = self._alike_to(k, first, num_equal)
        total = sum(tokens)
        alike.count += 1
        alike.tokens += total
        alike.squares += total * total
        for sums, spent in zip(alike.prefixes, accumulate(tokens), strict=False):
            sums[0] += spent
            sums[1] += spent * spent
            sums[2] += spent * total

    def update(self, other: "FullGroups") -> None:
        """Takes the groups that another one has taken: the seeds of an arm together."""
        for (k, first, num_equal), more in other._alike.items():
            alike = self._alike_to(k, first, num_equal)
            alike.count += more.count
            alike.tokens += more.tokens
            alike.squares += more.squares
            for sums, terms in zip(alike.prefixes, more.prefixes, strict=True):
                sums[:] = map(add, sums, terms)

    def _alike_to(self, k: int, first: int, num_equal: int) -> _Alike:
        found = self._alike.get((k, first, num_equal))
        if found is None:
            prefixes = [[0, 0, 0] for _ in range(min(num_equal, k - 1))]
            found = self._alike[k, first, num_equal] = _Alike(prefixes=prefixes)
        return found

    def replay(self, rule: StoppingRule, *, prior: BetaPrior, probe_size: int, increment: int) -> Replayed:
        """Returns what a rule would have spent and kept.

        An abandoned group costs its stop length, any other k. A renewal ratio: waves, surplus and
        budget play no part. The intervals treat the groups as independent.
        """
        rollouts, tokens = RatioOfRatios(), RatioOfRatios()
        num_mixed, abandoned, wrong = 0, Counter[str](), Counter[str]()
        for (k, first, num_equal), alike in sorted(self._alike.items()):
            lengths = align_lengths(rule.lengths(prior, k), stage_boundaries(k, probe_size, increment))
            length = lengths.passed if first else lengths.fail
            is_mixed, is_abandoned = num_equal < k, num_equal >= length
            is_kept, count = is_mixed and not is_abandoned, alike.count
            stop, spent = k, [alike.tokens, alike.squares, alike.squares]
            if is_abandoned and length < k:
                stop, spent = length, alike.prefixes[length - 1]
            rollouts.add_sums(
                count,
                is_kept,
                is_mixed,
                a=stop * count,
                c=k * count,
                aa=stop**2 * count,
                cc=k**2 * count,
                ac=stop * k * count,
            )
            tokens.add_sums(
                count, is_kept, is_mixed, a=spent[0], c=alike.tokens, aa=spent[1], cc=alike.squares, ac=spent[2]
            )
            num_mixed += is_mixed * count
            if is_abandoned:
                abandoned[SIDES[first]] += count
                wrong[SIDES[first]] += is_mixed * count
        return Replayed(
            rollouts=rollouts.estimate(),
            tokens=tokens.estimate(),
            num_groups=rollouts.count,
            num_mixed=num_mixed,
            num_abandoned={side: abandoned[side] for side in SIDES},
            num_wrong={side: wrong[side] for side in SIDES},
        )
