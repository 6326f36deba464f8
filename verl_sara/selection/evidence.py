"""What a selector learns about one prompt in one step. No numpy, for any layer to build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from verl_sara.core import Group, Phase, prob_effective

Verdict = Literal["effective", "solved", "unsolved", "abandoned", "unobserved"]
VERDICTS: tuple[str, ...] = get_args(Verdict)

CLASSES = ("unsolved", "mixed", "solved")
UNSOLVED, MIXED, SOLVED = range(3)


@dataclass(frozen=True)
class GroupEvidence:
    """The outcome of one prompt's group.

    Attributes:
      prompt_id: Stable content hash of the prompt.
      num_rollouts: Graded rollouts, 0 or more.
      num_successes: Successes among them, 0 to `num_rollouts`.
      group_size: Rollouts in the completed group (k), at least 1.
      verdict: `effective` (both outcomes seen), `solved` or `unsolved` (a group left to its end with equal
        outcomes), `abandoned` (stopped early with equal outcomes), `unobserved` (no usable outcome, e.g.
        lost).
      prob_effective: Probability in [0, 1] that the completed group would have been effective, as it stood at
        the verdict. Read for abandoned groups only.

    Raises:
      ValueError: If a field is out of range or the counts contradict the verdict.
    """

    prompt_id: str
    num_rollouts: int
    num_successes: int
    group_size: int
    verdict: Verdict
    prob_effective: float

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict {self.verdict!r} is unknown; allowed: {', '.join(VERDICTS)}")
        if self.group_size < 1 or not 0 <= self.num_successes <= self.num_rollouts:
            raise ValueError(
                f"impossible counts: 0 <= num_successes <= num_rollouts, 1 <= group_size; got {self}"
            )
        if not 0.0 <= self.prob_effective <= 1.0:
            raise ValueError(f"prob_effective {self.prob_effective} is not in [0, 1]; got {self}")
        all_fail, all_pass = self.num_successes == 0, self.num_successes == self.num_rollouts
        consistent = {
            "effective": not all_fail and not all_pass,
            "solved": all_pass and not all_fail,
            "unsolved": all_fail and not all_pass,
            "abandoned": all_fail != all_pass,
            "unobserved": True,
        }
        if not consistent[self.verdict]:
            raise ValueError(f"the counts contradict the verdict {self.verdict!r}: {self}")

    @property
    def realised_class(self) -> int | None:
        """Index into `CLASSES`, an abandoned group counting as its saturated side; None when unobserved."""
        if self.verdict == "unobserved":
            return None
        if self.verdict == "effective":
            return MIXED
        return SOLVED if self.num_successes else UNSOLVED

    def class_weights(self, *, is_hard: bool = False) -> tuple[float, float, float]:
        """Returns the distribution over `CLASSES` that the outcome supports.

        A finished group is certain. An abandoned one is a censored observation: `prob_effective` on mixed and
        the rest on its saturated side, or all of it on that side when `is_hard`.

        Raises:
          ValueError: If the group is unobserved.
        """
        side = self.realised_class
        if side is None:
            raise ValueError(f"an unobserved group supports no class: {self}")
        weights = [0.0, 0.0, 0.0]
        censored = self.prob_effective if self.verdict == "abandoned" and not is_hard else 0.0
        weights[MIXED] = censored
        weights[side] += 1.0 - censored
        return weights[0], weights[1], weights[2]


def evidence_of(group: Group) -> GroupEvidence:
    """Returns what a closed group says about its prompt.

    A group that failed or was never started says nothing: what it has was selected by its failure.
    """
    seen, passed, k = group.num_successes + group.num_failures, group.num_successes, group.group_size
    chance = prob_effective(seen, passed, group_size=k, prior=group.prior)
    if seen == 0 or group.phase is Phase.FAILED:
        return GroupEvidence(group.prompt_id, 0, 0, k, "unobserved", chance)
    if group.is_mixed:
        return GroupEvidence(group.prompt_id, seen, passed, k, "effective", 1.0)
    if seen < k:
        return GroupEvidence(group.prompt_id, seen, passed, k, "abandoned", chance)
    return GroupEvidence(group.prompt_id, seen, passed, k, "solved" if passed else "unsolved", 0.0)
