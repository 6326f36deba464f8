"""The Countdown generator and solver."""

from __future__ import annotations

from verl_sara.data.countdown import generate_splits
from verl_sara.rewards import countdown


def test_splits_are_disjoint_reproducible_and_solved_by_their_own_solution():
    train, test = generate_splits(200, 50, seed=3)
    assert (train, test) == generate_splits(200, 50, seed=3)
    keys = [problem.key for problem in train + test]
    assert len(set(keys)) == 250
    for problem in train + test:
        assert countdown.grade(problem.solution, problem.ground_truth).acc == 1
