"""The running commit rate: estimate, decay across steps, state."""

import pytest

from verl_sara.core import CommitRate


def test_starts_at_the_guess_and_moves_to_the_counts():
    rate = CommitRate()
    assert rate.estimate(0.6) == pytest.approx(0.6)
    assert rate.estimate(0.6, committed=30, decided=100) == pytest.approx((30 + 2 * 0.6) / 102)


def test_steps_decay():
    rate = CommitRate(decay=0.5)
    rate.end_step(8, 10)
    rate.end_step(2, 10)
    assert (rate.committed, rate.decided) == (6.0, 15.0)


def test_state_is_restored_exactly():
    rate, other = CommitRate(decay=0.9), CommitRate()
    for i in range(7):
        rate.end_step(i, 3 * i + 1)
    other.load_state_dict(rate.state_dict())
    assert other == rate
    with pytest.raises(KeyError, match="allowed: committed, decided, decay"):
        other.load_state_dict({"committed": 1.0})
