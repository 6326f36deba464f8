"""`sara status`: real ledgers, an unfinished run, a queue."""

import argparse

import pytest

from tests.simulated_runs import write_run
from verl_sara.cli import status
from verl_sara.cli.launch.progress import check_finished, next_attempt, progress, runs_below
from verl_sara.core import ConfigError
from verl_sara.ledger import LedgerError, LedgerWriter


@pytest.fixture
def runs(tmp_path):
    """Runs of a recipe: a finished one in two attempts, and one that is in its first step."""
    folder = tmp_path / "runs/countdown_tiny"
    done = folder / "paper/seed0"
    write_run(done, "paper", steps=3)
    write_run(done, "paper", steps=12, first=4)
    (done / "latest_checkpointed_iteration.txt").write_text("12")
    (done / ".job").write_text("17\n")
    begun = folder / "ds/seed1"
    writer = LedgerWriter(begun / "sara", "ds", {"options": {}, "versions": {}})
    writer.launched(1, "u", [0, 1, 2])
    writer.close()
    (begun / ".job").write_text("18\n")
    return tmp_path / "runs"


def parse(*arguments):
    parser = argparse.ArgumentParser()
    status.add_parser(parser.add_subparsers(required=True))
    return parser.parse_args(["status", *map(str, arguments)])


def test_the_table_shows_step_attempt_savings_and_job(runs, monkeypatch, capsys):
    monkeypatch.setattr(status, "_queue", lambda: "18|RUNNING|None\n99|PENDING|Priority\n")
    assert status.run(parse(runs)) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split("  ")[0] == "run" and len(lines) == 2
    begun, done = (next(line for line in lines if name in line) for name in ("ds/seed1", "paper/seed0"))
    cells = [cell for cell in done.split("  ") if cell.strip()]
    assert [cell.strip() for cell in cells[1:4]] == ["12/12", "12", "2"]
    assert "%" in done and done.endswith("-")
    assert "0/12" in begun and begun.endswith("18 RUNNING")


def test_progress_counts_every_attempt_and_what_was_lost(runs):
    from verl_sara.ledger import read_ledger

    one = progress(runs / "countdown_tiny/paper/seed0", steps=12)
    steps = read_ledger(one.run).steps
    assert one.rollouts == sum(step["fates"]["launched"]["rollouts"] for step in steps)
    assert (one.step, one.steps, one.attempt, one.checkpoint, one.lost) == (12, 12, 2, 12, 0)
    assert one.saved is not None and one.saved[0] <= one.saved[1] < 1
    begun = progress(runs / "countdown_tiny/ds/seed1")
    assert (begun.step, begun.rollouts, begun.lost, begun.saved) == (0, 3, 3, None)


def test_runs_are_found_at_any_depth(runs):
    names = [path.relative_to(runs).as_posix() for path in runs_below(runs)]
    assert names == ["countdown_tiny/ds/seed1", "countdown_tiny/paper/seed0"]
    assert runs_below(runs / names[0]) == [runs / names[0]]


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="no run in"):
        status.run(parse(tmp_path))


def test_the_queue_is_read_by_job_number():
    text = "4_1|RUNNING|None\n5|PENDING|Dependency\n\n6|COMPLETING\n"
    assert {k: v for k, v in status.parse_queue(text).items() if k} == {
        "4_1": "4_1 RUNNING",
        "5": "5 PENDING (Dependency)",
        "6": "6 COMPLETING",
    }


def test_an_attempt_is_checked_for_the_steps_that_were_asked_for(runs):
    run = runs / "countdown_tiny/paper/seed0"
    assert "attempt 2: steps 4 to 12" in check_finished(run, 2, 12)
    with pytest.raises(LedgerError, match="at step 12 of 20"):
        check_finished(run, 2, 20)
    with pytest.raises(LedgerError, match="attempt 1 ended without an error at step 3 of 12"):
        check_finished(run, 1, 12)
    with pytest.raises(LedgerError, match="its ledger has no step"):
        check_finished(runs / "countdown_tiny/ds/seed1", 1, None)


def test_the_next_attempt_is_the_number_that_the_ledger_takes(runs, tmp_path):
    run = runs / "countdown_tiny/paper/seed0"
    expected = next_attempt(run)
    writer = LedgerWriter(run / "sara", "paper", {})
    writer.close()
    assert writer.attempt == expected == 3 and next_attempt(tmp_path / "new") == 1
