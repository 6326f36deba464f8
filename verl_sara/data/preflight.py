"""Checks of the rows a run is about to use: shape, data source, gold answer, and the rendered prompt."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_sara.rewards import Grader, UnknownDataSource, countdown, math_answer, symbolic
from verl_sara.rewards import grader_for as own_grader_for

from .rows import Problem, faults
from .sources import SUFFIXES, SourceError, numbered_rows

MAX_PROBLEMS = 20
"""Problems that are reported one by one for a file; the others are counted."""


def check_rows(
    files: Iterable[str | os.PathLike[str]],
    *,
    grader_for: Callable[[object], Grader] | None = own_grader_for,
    tokenizer: Any = None,
    max_prompt_length: int | None = None,
    prompt_key: str = "prompt",
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[Problem]:
    """Returns everything that is wrong with the rows of data files; empty if a run can use them.

    Args:
      files: Parquet, JSON or JSONL files in verl's row format.
      grader_for: Returns the grader of a data source, or raises `UnknownDataSource`; `None` if the user's own
        reward function grades, so that gold answers are not looked at.
      tokenizer: A Hugging Face tokenizer with a chat template; without one, rendered prompts are not checked.
      max_prompt_length: Longest rendered prompt, in tokens; `None` for no limit.
      prompt_key: Column of the messages.
      template_kwargs: Further arguments of the chat template.
    """
    problems: list[Problem] = []
    for file in files:
        found = _file_problems(Path(file), grader_for, prompt_key)
        if not found and tokenizer is not None:
            found = _rendered_problems(
                Path(file), tokenizer, max_prompt_length, prompt_key, template_kwargs or {}
            )
        problems += _shortened(found, str(file))
    return problems


def _shortened(problems: list[Problem], file: str) -> list[Problem]:
    if len(problems) <= MAX_PROBLEMS:
        return problems
    rest = len(problems) - MAX_PROBLEMS
    return [*problems[:MAX_PROBLEMS], Problem(file, 0, f"{rest} further problems", "none")]


def _file_problems(
    file: Path, grader_for: Callable[[object], Grader] | None, prompt_key: str
) -> list[Problem]:
    if not file.is_file() or file.suffix not in SUFFIXES:
        return [Problem(str(file), 0, "no such data file", f"an existing file, {', '.join(SUFFIXES)}")]
    problems: list[Problem] = []
    num_rows = 0
    uses_symbolic = False
    try:
        for number, row in numbered_rows(file):
            num_rows += 1
            if not isinstance(row, Mapping):
                problems.append(Problem(str(file), number, str(row), "one JSON object a line"))
                continue
            found = faults(row, prompt_key)
            if not found and grader_for is not None:
                found, is_math = _gold_faults(row, grader_for)
                uses_symbolic = uses_symbolic or is_math
            problems += [Problem(str(file), number, *fault) for fault in found]
    except SourceError as error:
        return [Problem(str(file), 0, str(error), "a readable file")]
    if num_rows == 0:
        problems.append(Problem(str(file), 0, "no rows", "at least 1"))
    if uses_symbolic and not symbolic.is_available():
        what = "answers need math-verify, which is not installed"
        problems.append(Problem(str(file), 0, what, "pip install 'verl-sara[math]'"))
    return problems


def _gold_faults(
    row: Mapping[str, Any], grader_for: Callable[[object], Grader]
) -> tuple[list[tuple[str, str]], bool]:
    """Returns what is wrong with data source and gold answer, and whether math-verify may be asked."""
    gold = row["reward_model"]["ground_truth"]
    try:
        grader = grader_for(row["data_source"])
    except UnknownDataSource as error:
        what, _, allowed = str(error).partition("; allowed: ")
        return [(what, allowed)], False
    try:
        if grader is countdown.grade:
            countdown.read_gold(gold)
        elif grader is math_answer.grade:
            text = math_answer.read_gold(gold)
            grade = grader(f"\\boxed{{{text}}}", gold)
            if not grade.acc:
                return [
                    (f"gold answer {text!r} is graded {grade.reason!r} against itself", "one equal to itself")
                ], True
    except ValueError as error:
        return [(str(error), "a gold answer the grader can read")], False
    return [], grader is math_answer.grade


def _rendered_problems(
    file: Path,
    tokenizer: Any,
    max_prompt_length: int | None,
    prompt_key: str,
    template_kwargs: Mapping[str, Any],
) -> list[Problem]:
    """Returns rows whose rendered prompt is too long or has the wrong number of special tokens."""
    problems = []
    for number, row in numbered_rows(file):
        assert isinstance(row, Mapping)
        try:
            ids = _render(tokenizer, row[prompt_key], template_kwargs)
        except Exception as error:  # a template may raise anything, also on purpose
            fault = (
                f"the chat template fails: {type(error).__name__}: {error}",
                "messages the template takes",
            )
            problems.append(Problem(str(file), number, *fault))
            continue
        if max_prompt_length is not None and len(ids) > max_prompt_length:
            fault = (
                f"the prompt has {len(ids)} tokens",
                f"at most {max_prompt_length} (data.max_prompt_length)",
            )
            problems.append(Problem(str(file), number, *fault))
        problems += [Problem(str(file), number, *fault) for fault in template_faults(tokenizer, ids)]
    return problems


def _render(tokenizer: Any, messages: Any, template_kwargs: Mapping[str, Any]) -> list[int]:
    ids = tokenizer.apply_chat_template(
        list(messages), tokenize=True, add_generation_prompt=True, **template_kwargs
    )
    ids = ids["input_ids"] if isinstance(ids, Mapping) else ids
    return list(ids[0]) if len(ids) and isinstance(ids[0], (list, tuple)) else list(ids)


def template_faults(tokenizer: Any, ids: list[int]) -> list[tuple[str, str]]:
    """Returns what is wrong with the special tokens of a rendered prompt.

    A template of the R1-Distill kind must give exactly one BOS and one `<think>`, at the end; any other
    template at most one of each. Templates on the hub change, so it is the installed one that counts.
    """
    template = str(getattr(tokenizer, "chat_template", None) or "")
    is_r1 = "<｜Assistant｜>" in template
    found = []
    bos = getattr(tokenizer, "bos_token_id", None)
    has_bos = bos is not None and bos != getattr(tokenizer, "eos_token_id", None)
    num_bos = Counter(ids)[bos] if has_bos else int(is_r1)
    text = tokenizer.decode(ids)
    num_think = text.count("<think>")
    allowed = "exactly 1 (R1-Distill template)" if is_r1 else "at most 1"
    for name, count in (("BOS", num_bos), ("<think>", num_think)):
        if count > 1 or (is_r1 and count != 1):
            found.append((f"the rendered prompt has {count} {name}", allowed))
    if is_r1 and num_think == 1 and not text.rstrip().endswith("<think>"):
        found.append(("the rendered prompt does not end in <think>", "the template's <think> last"))
    return found
