"""Whole steps through real Ray and TransferQueue with scripted answers."""

from collections import Counter

import pytest

pytestmark = pytest.mark.verl


def rows_of(batch):
    return Counter(key.split("_")[0] for key in batch.keys)


@pytest.mark.parametrize("schedule", ["rounds", "streaming"])
def test_paper_trains_complete_mixed_groups_and_leaves_nothing_behind(host, schedule):
    from tests.adapters.scripted import keys_left

    h = host("+sara=paper", options={"schedule": schedule})
    for _ in range(3):
        batch, metrics = h.run_step()
        assert set(rows_of(batch).values()) == {8} and len(rows_of(batch)) == 4
        assert metrics["sara/effective_fraction"] == 1.0
        assert set(keys_left()) == set(batch.keys)
        h.end_step(batch)
    assert keys_left() == []
    ledger = h.ledger()
    assert [s["step"] for s in ledger.history()] == [1, 2, 3] and ledger.problems == []
    for group in ledger.groups:
        outcomes = group["slots"]["outcome"]
        if group["fate"] == "trained":
            assert len(outcomes) == 8 and 0 < sum(outcomes) < 8
        if group["verdict"] == "abandon":
            assert len(set(outcomes)) == 1 and len(outcomes) == 5 and group["p_eff"] < 0.4
    assert {g["fate"] for g in ledger.groups} >= {"trained", "abandoned"}
