"""Graders: text in, `Grade` out. Pure, bounded, and they never raise on an answer.

`base` the result, `text` where the answer stands in a response, `countdown` and `math_answer` the
graders, `equivalence` the normal form of mathematical answers, `symbolic` math-verify in a killable
worker. `compute_score` is the entry for verl:

    reward.custom_reward_function.path=pkg://verl_sara.rewards
    reward.custom_reward_function.name=compute_score

Importing this package needs the standard library only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import countdown, math_answer
from .base import FAILURE_REASONS, REASONS, Grade

Grader = Callable[[str, Any], Grade]

GRADERS: dict[str, Grader] = {
    "countdown": countdown.grade,
    "countdown4": countdown.grade,
    "Jiayi-Pan/Countdown-Tasks-3to4": countdown.grade,
    "Jiayi-Pan/Countdown-Tasks-4": countdown.grade,
    "math": math_answer.grade,
    "math_dapo": math_answer.grade,
    "math_dapo_reasoning": math_answer.grade,
    "lighteval/MATH": math_answer.grade,
    "DigitalLearningGmbH/MATH-lighteval": math_answer.grade,
    "HuggingFaceH4/MATH-500": math_answer.grade,
    "HuggingFaceH4/aime_2024": math_answer.grade,
}
"""Grader by data source. Names that begin with `aime` are graded as mathematics too, as verl does."""


class UnknownDataSource(ValueError):
    """A data source has no grader: a fault of the configuration, not of an answer."""


def grader_for(data_source: object) -> Grader:
    """Returns the grader of a data source.

    Args:
      data_source: Name of the data source; any string type, also `numpy.str_`.

    Raises:
      UnknownDataSource: If no grader has this name; the message lists those that have one.
    """
    name = str(data_source)
    if name in GRADERS:
        return GRADERS[name]
    if name.lower().startswith("aime"):
        return math_answer.grade
    allowed = ", ".join(sorted(GRADERS))
    raise UnknownDataSource(f"no grader for data_source {name!r}; allowed: {allowed}, and aime*")


def compute_score(
    data_source: object, solution_str: str, ground_truth: Any, extra_info: Any = None, **kwargs: Any
) -> dict[str, float | int | str]:
    """Returns verl's reward dictionary for one response: `score`, `acc`, `reason`, `pred`, always all four.

    Args:
      data_source: See `grader_for`.
      solution_str: The decoded response.
      ground_truth: `reward_model.ground_truth` of the row: text for mathematics, a mapping for Countdown.
      extra_info: Ignored; part of verl's signature, as are further keywords.

    Raises:
      UnknownDataSource: If no grader has this name. No answer, however malformed, raises.
    """
    return grader_for(data_source)(solution_str, ground_truth).as_dict()


__all__ = [
    "FAILURE_REASONS",
    "GRADERS",
    "REASONS",
    "Grade",
    "Grader",
    "UnknownDataSource",
    "compute_score",
    "grader_for",
]
