"""Reads the rollouts that verl dumps with `trainer.rollout_data_dir`: trained rows only, without `acc`."""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from verl_sara.ledger import Problems, open_lines, parse_lines
from verl_sara.verl_log.table import number

_STEP_FILE = re.compile(r"(\d+)\.jsonl")
_KEY = re.compile(r"(.+)_(\d+)_(\d+)")


@dataclass
class RolloutDump:
    """Scores of trained rollouts.

    Attributes:
      scores: By (step, uid of the group), in the order of the file.
      problems: What was skipped, one sentence per kind.
    """

    scores: dict[tuple[int, str], list[float]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def is_binary(self) -> bool:
        """Whether the scores are 0 and 1, or -1 and 1, so that they tell right from wrong."""
        found = {score for group in self.scores.values() for score in group}
        return bool(found) and (found <= {0.0, 1.0} or found <= {-1.0, 1.0})

    def mixed_groups(self) -> dict[int, tuple[int, int]]:
        """Returns (mixed groups, groups) by step.

        Raises:
          ValueError: If the scores are not binary.
        """
        if not self.is_binary():
            raise ValueError("scores are not binary; allowed: 0 and 1, or -1 and 1")
        counts: dict[int, tuple[int, int]] = {}
        for (step, _), group in sorted(self.scores.items()):
            mixed, total = counts.get(step, (0, 0))
            counts[step] = (mixed + (len(set(group)) > 1), total + 1)
        return counts


def find_dump(run_dir: str | os.PathLike[str]) -> Path | None:
    """Returns the folder under a run folder that holds `<step>.jsonl` files, None if there is none."""
    root = Path(run_dir)
    folders = [root, *sorted(path for path in root.glob("*") if path.is_dir())] if root.is_dir() else []
    return next((f for f in folders if any(_STEP_FILE.fullmatch(path.name) for path in f.iterdir())), None)


def read_dump(folder: str | os.PathLike[str]) -> RolloutDump:
    """Reads every `<step>.jsonl` of a folder; padding rows are left out and counted."""
    dump, problems = RolloutDump(), Problems()
    files = ((match, path) for path in Path(folder).iterdir() if (match := _STEP_FILE.fullmatch(path.name)))
    for match, path in sorted(files, key=lambda pair: int(pair[0][1])):
        with open_lines(path) as lines:
            for line_number, record in parse_lines(lines, path.name, problems):
                where, key = f"{path.name}:{line_number}", _KEY.fullmatch(str(record.get("uid", "")))
                score = number(record.get("score", ""))
                if key is None or score is None or score != score:
                    problems.add("dumped row without uid or score, skipped", where)
                elif key[1].startswith("pad"):
                    problems.add("padding row, left out", where)
                else:
                    dump.scores.setdefault((int(match[1]), key[1]), []).append(score)
    dump.problems = problems.sentences()
    return dump
