"""Raw rows to rows of a split: finds prompt and gold, checks both, and counts what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_sara.rewards import grader_for
from verl_sara.rewards.countdown import read_gold
from verl_sara.rewards.text import last_boxed

from .countdown import CountdownProblem, prompt_text, solve
from .identity import normalise_prompt
from .rows import Problem, is_missing, make_row, prompt_faults
from .sources import RawRows

INSTRUCTION = "Let's think step by step and output the final answer within \\boxed{}."
"""What follows the problem text in a prompt of mathematics, as in verl's own preprocessing."""

_PROMPT_KEYS = ("problem", "question", "prompt", "input")
_GOLD_KEYS = ("answer", "gold", "ground_truth", "final_answer", "target")

# NVIDIA-NeMo/Skills#115: AIME 2024 I, problem 12, circulates with the gold answer 384.
_KNOWN_WRONG_GOLD = ((re.compile(r"4\s*g\s*\(\s*f\s*\(\s*\\sin"), "384", "385"),)


@dataclass
class Prepared:
    """The rows of one split, and what was left out.

    Attributes:
      rows: Rows in verl's schema, unique by normalised prompt.
      problems: Rows that were left out because something is wrong with them.
      notes: Rows that were corrected.
      num_read: Rows in the source.
      num_repeats: Rows left out because their prompt came before, with the same gold answer.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    notes: list[Problem] = field(default_factory=list)
    num_read: int = 0
    num_repeats: int = 0

    @property
    def prompts(self) -> set[str]:
        """The normalised prompts of the rows."""
        return {normalise_prompt(row["prompt"]) for row in self.rows}


class RowFault(ValueError):
    """A raw row lacks something; the arguments are what is wrong and what is allowed."""


def prepare(raw: RawRows, split: str, convert: Callable[[Mapping[str, Any]], dict[str, Any]]) -> Prepared:
    """Returns the checked, unique rows of a split.

    Args:
      raw: Rows of the source.
      split: `train` or `test`.
      convert: Raw row to the arguments `prompt`, `data_source`, `ground_truth` and `ability` of `make_row`,
        and `note` if it corrected something; raises `RowFault` for a row that cannot be used.
    """
    prepared = Prepared(problems=list(raw.problems), num_read=len(raw.rows) + len(raw.problems))
    first_gold: dict[str, Any] = {}
    for number, source_row in raw.rows:
        try:
            parts = convert(source_row)
            note = parts.pop("note", None)
            for fault in prompt_faults(parts["prompt"]) if not isinstance(parts["prompt"], str) else ():
                raise RowFault(*fault)
        except RowFault as fault:
            prepared.problems.append(Problem(raw.name, number, *fault.args))
            continue
        if note:
            prepared.notes.append(Problem(raw.name, number, *note))
        key = normalise_prompt(parts["prompt"])
        if key in first_gold:
            if first_gold[key] == parts["ground_truth"]:
                prepared.num_repeats += 1
            else:
                what = f"gold answer {parts['ground_truth']!r} after {first_gold[key]!r} for one prompt"
                prepared.problems.append(Problem(raw.name, number, what, "one gold answer a prompt"))
            continue
        first_gold[key] = parts["ground_truth"]
        row = make_row(**parts, split=split, index=len(prepared.rows), source_row=number)
        prepared.rows.append(row)
    prepared.problems.sort(key=lambda problem: problem.row)
    return prepared


def math_parts(row: Mapping[str, Any], *, data_source: str, instruction: str = INSTRUCTION) -> dict[str, Any]:
    """Returns prompt and gold of a raw row of mathematics, in any of the usual column names.

    Raises:
      RowFault: If the problem or its gold answer is missing, or the gold answer does not equal itself.
    """
    prompt = _prompt_of(row)
    if isinstance(prompt, str) and instruction:
        prompt = f"{prompt.strip()} {instruction}"
    gold = _math_gold(row)
    note = None
    text = normalise_prompt(prompt)
    for pattern, wrong, right in _KNOWN_WRONG_GOLD:
        if gold == wrong and pattern.search(text):
            gold, note = right, (f"gold answer {wrong} is a known error", f"{right}, which is used")
    grade = grader_for(data_source)(f"\\boxed{{{gold}}}", gold)
    if not grade.acc:
        raise RowFault(
            f"gold answer {gold!r} is graded {grade.reason!r} against itself",
            "a gold answer that equals itself",
        )
    parts = {"prompt": prompt, "data_source": data_source, "ground_truth": gold, "ability": "math"}
    return parts | {"note": note}


def _lowered(row: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key).lower(): value for key, value in row.items()}


def _prompt_of(row: Mapping[str, Any]) -> str | list[dict[str, str]]:
    columns = _lowered(row)
    name = next((key for key in _PROMPT_KEYS if key in columns), None)
    prompt = columns[name] if name else None
    if is_missing(prompt) or prompt == []:
        raise RowFault(
            f"{name or 'the problem'} is missing or empty", f"one of the columns {', '.join(_PROMPT_KEYS)}"
        )
    if not isinstance(prompt, (str, list)):
        raise RowFault(f"{name} is {prompt!r:.60}", "text, or a list of messages")
    return prompt


def _math_gold(row: Mapping[str, Any]) -> str:
    columns = _lowered(row)
    reward_model = columns.get("reward_model")
    gold = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else None
    for key in _GOLD_KEYS:
        gold = columns.get(key) if is_missing(gold) else gold
    if is_missing(gold) and isinstance(columns.get("solution"), str):
        gold, _ = last_boxed(columns["solution"])
        if is_missing(gold):
            raise RowFault("solution holds no \\boxed{} answer", "a solution with one, or a column answer")
    if is_missing(gold):
        raise RowFault(
            "the gold answer is missing", f"one of the columns {', '.join(_GOLD_KEYS)}, or solution"
        )
    if isinstance(gold, bool) or not isinstance(gold, (str, int, float)):
        raise RowFault(f"the gold answer is {gold!r:.60}", "text or a number")
    if isinstance(gold, float) and gold.is_integer():
        gold = int(gold)
    text = str(gold).rpartition("####")[2].strip()
    boxed, _ = last_boxed(text)
    return boxed.strip() if boxed is not None else text


def countdown_parts(
    row: Mapping[str, Any], *, template: str = "prose", ops: str = "+-*/", data_source: str = "countdown"
) -> dict[str, Any]:
    """Returns prompt and gold of a raw Countdown row, which must be solvable.

    Raises:
      RowFault: If target or numbers are missing or of the wrong type, or there is no solution.
    """
    columns = _lowered(row)
    reward_model = columns.get("reward_model")
    gold = reward_model.get("ground_truth") if isinstance(reward_model, Mapping) else columns
    try:
        target, numbers = read_gold(gold)
    except ValueError as error:
        raise RowFault(str(error), "integers target and numbers (or nums)") from error
    if len(numbers) > 6:
        raise RowFault(f"{len(numbers)} numbers", "at most 6, so that solvability can be proved")
    solution = solve(numbers, target, ops)
    if solution is None:
        raise RowFault(f"{list(numbers)} cannot reach {target} with {ops}", "a solvable problem")
    problem = CountdownProblem(list(numbers), target, solution)
    return countdown_row_parts(problem, template=template, ops=ops, data_source=data_source)


def countdown_row_parts(
    problem: CountdownProblem, *, template: str, ops: str, data_source: str = "countdown"
) -> dict[str, Any]:
    """Returns the arguments of `make_row` for a Countdown problem."""
    return {
        "prompt": prompt_text(problem.numbers, problem.target, template=template, ops=ops),
        "data_source": data_source,
        "ground_truth": problem.ground_truth,
        "ability": "arithmetic",
    }
