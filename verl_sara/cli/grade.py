"""`sara grade`: grades a verl rollout dump or a JSONL of answers, and compares with verl's own graders."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_sara.data.sources import numbered_rows
from verl_sara.rewards import REASONS, Grade, UnknownDataSource, grader_for

VERL_GRADERS = {
    "math_reward": "HuggingFaceH4/MATH-500",
    "math_dapo": "aime",
}
"""verl's graders for mathematics, each with a data source that verl routes to it."""

_PADDING_UID = re.compile(r"pad[0-9a-f]{32}(?:_|$)")


@dataclass(frozen=True)
class Answer:
    """One answer to grade.

    Attributes:
      id: Identity given in the file: `id`, else `uid`, else the row number.
      data_source: Selects the grader.
      text: The response.
      gold: The gold answer.
    """

    id: Any
    data_source: str
    text: str
    gold: Any


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Adds the subcommand."""
    parser = subparsers.add_parser("grade", help="grade a verl rollout dump or a JSONL of answers")
    parser.add_argument(
        "file",
        metavar="FILE",
        help="JSONL with id, data_source, answer, gold; or a dump of verl with output and gts",
    )
    parser.add_argument(
        "--data-source", metavar="NAME", help="for rows without one; else told from the gold answer"
    )
    parser.add_argument(
        "--json", action="store_true", help="print id, acc, score and reason as JSON, one a line"
    )
    parser.add_argument("--against", choices=["verl"], help="show where verl's own graders differ")
    parser.add_argument(
        "--show", type=int, default=20, metavar="N", help="disagreements to print, default 20"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Grades; returns 0, 1 if a row cannot be read, 2 if the file or a data source is unknown."""
    try:
        rows, num_unreadable = _rows(Path(args.file))
        answers = [read_answer(row, number, args.data_source) for number, row in rows]
        grades = [grader_for(answer.data_source)(answer.text, answer.gold) for answer in answers]
    except (OSError, UnknownDataSource) as error:
        print(f"sara grade: {error}", file=sys.stderr)
        return 2
    if args.json:
        for answer, grade in zip(answers, grades, strict=True):
            line = {"id": answer.id, "acc": grade.acc, "score": grade.score, "reason": grade.reason}
            print(json.dumps(line, ensure_ascii=False))
    else:
        print(table(grades))
    if args.against:
        print(against_verl(answers, grades, args.show), file=sys.stderr if args.json else sys.stdout)
    return 1 if num_unreadable else 0


def _rows(file: Path) -> tuple[list[tuple[int, dict[str, Any]]], int]:
    """Returns the rows to grade, and how many are no record; a torn last line is told but not counted.

    verl pads batches with synthetic rows and dumps them too; they hold no answer and are left out.
    """
    if not file.is_file():
        raise FileNotFoundError(f"no such file: {file}")
    numbered = list(numbered_rows(file))
    is_torn = file.suffix != ".parquet" and not file.read_bytes().endswith(b"\n")
    num_unreadable = 0
    for number, row in numbered:
        if not isinstance(row, dict):
            is_last = is_torn and number == numbered[-1][0]
            num_unreadable += not is_last
            print(f"row {number} left out: {'torn last line' if is_last else row}", file=sys.stderr)
    records = [(number, row) for number, row in numbered if isinstance(row, dict)]
    rows = [(number, row) for number, row in records if not _PADDING_UID.match(str(row.get("uid")))]
    if len(rows) < len(records):
        print(f"{len(records) - len(rows)} padding rows of verl left out", file=sys.stderr)
    return rows, num_unreadable


def read_answer(row: Mapping[str, Any], number: int, default_source: str | None = None) -> Answer:
    """Returns the answer in a row of any of the two formats.

    A row without `data_source` has the default one, else the one its gold answer tells: `countdown` for a
    mapping with a target, `math` for anything else.
    """
    gold = _first(row, "gold", "gts", "ground_truth")
    text = _first(row, "answer", "output", "response")
    source = row.get("data_source") or default_source
    if source is None:
        source = "countdown" if isinstance(gold, Mapping) and "target" in gold else "math"
    identity = _first(row, "id", "uid")
    return Answer(
        number if identity is None else identity, str(source), "" if text is None else str(text), gold
    )


def _first(row: Mapping[str, Any], *keys: str) -> Any:
    return next((row[key] for key in keys if row.get(key) is not None), None)


def table(grades: Iterable[Grade]) -> str:
    """Returns the table of reasons: count, share, meaning; then the share of right answers."""
    counts = Counter(grade.reason for grade in grades)
    total = sum(counts.values())
    if not total:
        return "no answers"
    lines = [f"{'reason':<14} {'answers':>8} {'share':>7}  meaning"]
    for reason, meaning in REASONS.items():
        if counts[reason]:
            lines.append(f"{reason:<14} {counts[reason]:>8} {counts[reason] / total:>7.1%}  {meaning}")
    lines.append(f"{'acc':<14} {counts['ok']:>8} {counts['ok'] / total:>7.1%}  of {total} answers are right")
    return "\n".join(lines)


def against_verl(
    answers: list[Answer],
    grades: list[Grade],
    num_shown: int,
    compute_score: Callable[..., Any] | None = None,
) -> str:
    """Returns where verl's graders agree with ours, and the first disagreements.

    Answers in mathematics are given to both of verl's graders, whichever one their data source would get,
    because verl grades the same answer differently by data source.

    Args:
      answers: What was graded.
      grades: Our grades, in the same order.
      num_shown: Disagreements to list for each grader.
      compute_score: verl's `default_compute_score`, imported if not given.
    """
    if compute_score is None:
        try:
            from verl.utils.reward_score import default_compute_score as compute_score
        except ImportError as error:
            return f"verl cannot be imported ({error}); pip install 'verl-sara[cpu]' or 'verl-sara[gpu]'"
    maths = grader_for("math")
    pairs = [(a, g) for a, g in zip(answers, grades, strict=True) if grader_for(a.data_source) is maths]
    lines = []
    if len(pairs) < len(answers):
        lines.append(f"{len(answers) - len(pairs)} answers left out: verl has no grader for Countdown")
    for name, source in VERL_GRADERS.items() if pairs else ():
        verdicts = [_verl_acc(compute_score, source, answer) for answer, _ in pairs]
        differing = [(*pair, acc) for pair, acc in zip(pairs, verdicts, strict=True) if acc != pair[1].acc]
        num_ours = sum(grade.acc for _, grade, _ in differing)
        lines.append(
            f"verl {name}: agrees on {len(pairs) - len(differing)} of {len(pairs)}; "
            f"right only for us {num_ours}, right only for verl {len(differing) - num_ours}"
        )
        for answer, grade, acc in differing[:num_shown]:
            verdicts_shown = f"ours {grade.acc} ({grade.reason}), verl {acc}"
            lines.append(f"  {answer.id}: {verdicts_shown}; gold {answer.gold!r}; ...{answer.text[-60:]!r}")
    return "\n".join(lines)


def _verl_acc(compute_score: Callable[..., Any], source: str, answer: Answer) -> int | str:
    try:
        result = compute_score(source, answer.text, str(answer.gold))
    except Exception as error:  # verl's graders raise on some answers
        return f"raises {type(error).__name__}"
    return int(bool(result["acc"])) if isinstance(result, Mapping) else int(result > 0)
