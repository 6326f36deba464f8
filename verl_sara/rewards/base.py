"""What a grader returns. Every grader is a pure function from text and gold to a `Grade`."""

from __future__ import annotations

from typing import NamedTuple

REASONS: dict[str, str] = {
    "ok": "the answer equals the gold answer",
    "wrong": "an answer was found and it is not equal to the gold answer",
    "wrong_numbers": "the expression does not use each given number exactly once",
    "ambiguous": "several untagged answers were found and they do not agree",
    "no_answer": "no answer was found in the text",
    "truncated": "the answer starts but the text ends before it is closed",
    "unparsed": "an answer was marked but it cannot be read",
    "timeout": "the symbolic comparison hit its deadline",
    "error": "the grader failed, or the gold answer is unusable",
}
"""Every reason a grade can carry, with what it means."""

FAILURE_REASONS = frozenset({"timeout", "error"})
"""Reasons that speak of the grader and not of the answer: such a rollout failed, it is not wrong."""

_PRED_LIMIT = 200


class Grade(NamedTuple):
    """The verdict on one answer.

    Attributes:
      acc: 1 if the answer is right, else 0.
      score: Reward handed to the trainer; equal to `acc` for every grader here.
      reason: A key of `REASONS`; `ok` exactly when `acc` is 1.
      pred: The answer that was read, in normal form where there is one; empty if none was found.
    """

    acc: int
    score: float
    reason: str
    pred: str = ""

    @classmethod
    def of(cls, reason: str, pred: str = "") -> Grade:
        """Returns the grade that belongs to a reason: right for `ok`, wrong for all others."""
        if reason not in REASONS:
            raise ValueError(f"unknown reason {reason!r}; allowed: {', '.join(REASONS)}")
        acc = int(reason == "ok")
        return cls(acc, float(acc), reason, pred[:_PRED_LIMIT])

    @property
    def is_failure(self) -> bool:
        """True when the grader failed, so that nothing is known about the answer."""
        return self.reason in FAILURE_REASONS

    def as_dict(self) -> dict[str, float | int | str]:
        """Returns the same four keys every time, in plain types and without `None`, as verl needs."""
        return {"score": self.score, "acc": self.acc, "reason": self.reason, "pred": self.pred}
