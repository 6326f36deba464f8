"""Builders and a deterministic world for the selection tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from verl_sara.selection import GroupEvidence, PromptSelector

NAMES = ("uniform", "dps", "mopps")

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("uniform", {}),
    ("dps", {"explore_fraction": 0.25}),
    ("dps", {"decay": 1.0, "abandoned_evidence": "hard", "explore_fraction": 0.1}),
    ("dps", {"decay": 0.0, "prior_alpha": [[3, 1, 1], [1, 3, 1], [1, 1, 3]], "prior_pi": [0.5, 0.3, 0.2]}),
    ("mopps", {"decay": 0.5}),
    ("mopps", {"interval": [0.3, 0.7], "num_candidates": 5, "prior": [2.0, 1.0]}),
]


def make_ids(num_prompts: int, prefix: str = "p") -> list[str]:
    return [f"{prefix}{i}" for i in range(num_prompts)]


def make_evidence(prompt_id: str, kind: str, prob_effective: float = 0.0) -> GroupEvidence:
    """One group of 8; `kind` is a verdict, or abandoned-fail / abandoned-pass (after 4 rollouts)."""
    counts = {
        "effective": (8, 3),
        "solved": (8, 8),
        "unsolved": (8, 0),
        "abandoned-fail": (4, 0),
        "abandoned-pass": (4, 4),
        "unobserved": (0, 0),
    }[kind]
    return GroupEvidence(prompt_id, *counts, 8, kind.split("-")[0], prob_effective)


KINDS = ("effective", "solved", "unsolved", "abandoned-fail", "abandoned-pass", "unobserved")


def outcome(prompt_id: str, step: int) -> GroupEvidence:
    """The outcome of a prompt at a step: a fixed function of both."""
    draw = sum(map(ord, prompt_id)) * 7 + step * 3 + len(prompt_id)
    return make_evidence(prompt_id, KINDS[draw % len(KINDS)], prob_effective=0.4)


def run_steps(
    selector: PromptSelector, ids: list[str], num_steps: int, batch: int, first_step: int = 0
) -> list[list[str]]:
    """Runs whole training steps; returns the prompt ids selected in each."""
    trace = []
    for step in range(first_step, first_step + num_steps):
        chosen = [ids[row] for row in selector.select(batch)]
        selector.observe([outcome(prompt_id, step) for prompt_id in chosen])
        selector.end_step()
        trace.append(chosen)
    return trace


def assert_same_state(left: Any, right: Any) -> None:
    """Bitwise equality of nested states, types and dtypes included."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert left.keys() == right.keys()
        for key in left:
            assert_same_state(left[key], right[key])
    elif hasattr(left, "numpy"):  # a torch tensor
        assert_same_state(left.numpy(), right.numpy())
    elif isinstance(left, np.ndarray):
        assert left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    else:
        assert left == right
