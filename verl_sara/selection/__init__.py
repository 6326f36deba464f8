"""Which prompts enter a training step. Numpy only; knows nothing of verl.

    evidence   what is learned about a prompt in a step
    base       the protocol `PromptSelector` with the bookkeeping of all selectors
    index      prompt ids, rows and restoring by id          passes      shuffled passes over the data
    ranked     ranking, ties, exploration                    prediction  predicted against realised class
    uniform, dps (beliefs in hmm), mopps                     the selectors

A new selector is one file, one line in `SELECTORS` and one YAML file in the Hydra group `sara/selection`.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from verl_sara.selection.base import PromptSelector, PromptsExhausted, RestoreReport
from verl_sara.selection.dps import DpsSelector
from verl_sara.selection.evidence import GroupEvidence
from verl_sara.selection.index import number_duplicates
from verl_sara.selection.mopps import MoppsSelector
from verl_sara.selection.uniform import UniformSelector

SELECTORS: dict[str, type[PromptSelector]] = {
    selector.name: selector for selector in (UniformSelector, DpsSelector, MoppsSelector)
}


def build_selector(name: str, prompt_ids: Sequence[str], **params: Any) -> PromptSelector:
    """Returns the selector registered as `name`.

    Raises:
      ValueError: If the name or a parameter is unknown, or a value is out of range; the message says what is
        allowed.
    """
    if name not in SELECTORS:
        raise ValueError(f"selection {name!r} is unknown; allowed: {', '.join(SELECTORS)}")
    allowed = list(inspect.signature(SELECTORS[name]).parameters)[1:]
    unknown = sorted(set(params) - set(allowed))
    if unknown:
        raise ValueError(
            f"selection {name!r} has no parameter {', '.join(unknown)}; allowed: {', '.join(allowed)}"
        )
    return SELECTORS[name](prompt_ids, **params)


__all__ = [
    "SELECTORS",
    "GroupEvidence",
    "PromptSelector",
    "PromptsExhausted",
    "RestoreReport",
    "build_selector",
    "number_duplicates",
]
