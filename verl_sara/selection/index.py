"""Which row of the data set a prompt is, and how saved state finds it again in a changed data set.

Prompts are numbered in the order of a 64-bit key of their id. Everything a selector stores or draws is in
these numbers, so its choices do not depend on the order of the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np


def number_duplicates(prompt_ids: Sequence[str]) -> list[str]:
    """Returns the ids with `#2`, `#3`, ... appended to repeats, so that equal rows stay separate prompts."""
    seen: Counter[str] = Counter()
    unique = []
    for prompt_id in prompt_ids:
        seen[prompt_id] += 1
        unique.append(prompt_id if seen[prompt_id] == 1 else f"{prompt_id}#{seen[prompt_id]}")
    return unique


class PromptIndex:
    """Bijection between prompt ids, row indices and prompt numbers.

    Args:
      prompt_ids: One unique id per row, [P].

    Attributes:
      keys: Sorted 64-bit keys, uint64 [P].
      rows: Row index of each prompt number, int32 [P].

    Raises:
      ValueError: If there is no prompt, or an id occurs twice.
    """

    def __init__(self, prompt_ids: Sequence[str]) -> None:
        if not len(prompt_ids):
            raise ValueError("prompt_ids is empty; a selector needs at least one prompt")
        keys = _keys(prompt_ids)
        self.rows = np.argsort(keys).astype(np.int32)
        self.keys = keys[self.rows]
        repeats = np.flatnonzero(self.keys[1:] == self.keys[:-1])
        if len(repeats):
            example = prompt_ids[int(self.rows[repeats[0]])]
            raise ValueError(
                f"prompt_ids has {len(repeats)} repeated ids, e.g. {example!r}; "
                "number them apart (verl_sara.selection.number_duplicates) or drop the rows"
            )

    def __len__(self) -> int:
        return len(self.keys)

    def numbers(self, prompt_ids: Sequence[str]) -> np.ndarray:
        """Returns the prompt numbers, int64 [n].

        Raises:
          ValueError: If an id is not in the data set.
        """
        keys = _keys(prompt_ids)
        found = np.minimum(np.searchsorted(self.keys, keys), len(self) - 1)
        unknown = np.flatnonzero(self.keys[found] != keys)
        if len(unknown):
            raise ValueError(f"{len(unknown)} unknown prompt ids, e.g. {prompt_ids[int(unknown[0])]!r}")
        return found

    def remap(self, old_keys: np.ndarray) -> Remap:
        """Returns where the prompts of a saved state, given by its sorted keys, are now."""
        found = np.minimum(np.searchsorted(self.keys, old_keys), len(self) - 1)
        moved = np.where(self.keys[found] == old_keys, found, -1)
        is_new = np.ones(len(self), bool)
        is_new[moved[moved >= 0]] = False
        return Remap(moved=moved, new=np.flatnonzero(is_new))


@dataclass(frozen=True)
class Remap:
    """From the prompt numbers of a saved state to the present ones.

    Attributes:
      moved: Present number of each saved prompt, -1 if it has vanished, int64 [P_saved].
      new: Numbers of the prompts that the saved state does not know, int64.
    """

    moved: np.ndarray
    new: np.ndarray

    def keep(self, numbers: np.ndarray, *columns: np.ndarray) -> tuple[np.ndarray, ...]:
        """Returns present numbers and columns (last axis) of the prompts that still exist, in saved order."""
        moved = self.moved[numbers]
        alive = moved >= 0
        return moved[alive], *(column[..., alive] for column in columns)


def _keys(prompt_ids: Sequence[str]) -> np.ndarray:
    digests = (blake2b(prompt_id.encode(), digest_size=8).digest() for prompt_id in prompt_ids)
    return np.fromiter((int.from_bytes(d, "little") for d in digests), np.uint64, count=len(prompt_ids))
