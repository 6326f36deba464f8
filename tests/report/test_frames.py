"""Ledgers as frames: the fast path and the tolerant reader agree, and faults go to the latter."""

import shutil

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulated_runs import write_arms, write_run
from verl_sara.ledger import LedgerError, LedgerWriter, read_ledger
from verl_sara.report import frames
from verl_sara.summary import read_arm


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    return write_arms(tmp_path_factory.mktemp("arms"), ("verl_ds", "uniform", "paper"), steps=4)


def slowly(folder, monkeypatch):
    """The frame by way of the tolerant reader."""

    def refuse(path, attempt):
        raise frames._Faulty

    with monkeypatch.context() as patched:
        patched.setattr(frames, "_fast", refuse)
        return frames.group_frame(folder)


@pytest.mark.parametrize("name", ["verl_ds", "uniform", "paper"])
def test_both_ways_give_the_same_frame(arms, name, monkeypatch):
    pd.testing.assert_frame_equal(frames.group_frame(arms[name]), slowly(arms[name], monkeypatch))


def test_a_frame_holds_what_the_ledger_says(arms):
    frame, groups = frames.group_frame(arms["paper"]), read_ledger(arms["paper"]).groups
    assert len(frame) == len(groups)
    for column, of_group in {
        "step": lambda g: g["step"],
        "prompt_id": lambda g: g["prompt_id"],
        "num_rollouts": lambda g: len(g["slots"]["tokens"]),
        "num_passed": lambda g: sum(x or 0 for x in g["slots"]["outcome"]),
        "num_tokens": lambda g: sum(g["slots"]["tokens"]),
        "fate": lambda g: g["fate"],
        "prior_beta": lambda g: g["prior"][1],
        "n0": lambda g: g["n0"],
    }.items():
        assert frame[column].tolist() == [of_group(group) for group in groups], column


def test_several_attempts_stand_one_after_the_other(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "r", "paper", steps=3)
    write_run(folder, "paper", steps=4, first=3)
    frame = frames.group_frame(folder)
    assert frame.groupby("attempt")["step"].unique().map(list).to_dict() == {1: [1, 2, 3], 2: [3, 4]}
    pd.testing.assert_frame_equal(frame, slowly(folder, monkeypatch))


def test_the_attempt_is_that_of_the_file(tmp_path, monkeypatch):
    folder = write_run(tmp_path / "r", "paper", steps=2)
    (folder / "sara" / "ledger.attempt-1.jsonl").rename(folder / "sara" / "ledger.attempt-3.jsonl")
    frame = frames.group_frame(folder)
    assert frame["attempt"].unique().tolist() == [3]
    pd.testing.assert_frame_equal(frame, slowly(folder, monkeypatch))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 300), st.sampled_from(["drop", "tear", "glue", "foreign", "blank", "negative", "fate", "bom"]))
def test_a_damaged_ledger_gives_the_rows_of_the_tolerant_reader(tmp_path_factory, arms, at, damage):
    folder = shutil.copytree(arms["paper"], tmp_path_factory.mktemp("damaged") / "paper")
    path = folder / "sara" / "ledger.attempt-1.jsonl"
    lines = path.read_text().splitlines()
    at = 1 + at % (len(lines) - 1)
    if damage == "drop":
        del lines[at]
    elif damage == "tear":
        lines[at] = lines[at][:40]
    elif damage == "glue":
        lines[at - 1 : at + 1] = [lines[at - 1] + lines[at]]
    elif damage == "bom":
        lines[0] = "\ufeff" + lines[0]
    elif damage in ("foreign", "blank"):
        lines.insert(at, '{"step": 1, "data": {}}' if damage == "foreign" else "")
    elif damage == "negative":
        lines[at] = lines[at].replace('"tokens":[', '"tokens":[-')
    else:
        lines[at] = lines[at].replace('"fate":"', '"fate":"x')
    path.write_text("\n".join(lines) + "\n")
    groups = read_ledger(folder, is_strict=False).groups
    frame = frames.group_frame(folder)
    assert frame["index"].tolist() == [g["index"] for g in groups]
    assert frame["num_tokens"].tolist() == [sum(g["slots"]["tokens"]) for g in groups]


def test_rollouts_without_an_outcome_and_groups_without_a_rollout_are_kept(tmp_path):
    writer = LedgerWriter(tmp_path, "r", {"options": {}})
    base = read_ledger(write_run(tmp_path / "sound", "ds", steps=1)).groups[0]
    other = {"fate": "failed", "verdict": "none", "p_eff": None, "times": {}}
    empty = {"outcome": [], "tokens": [], "status": [], "round": []}
    lost = {"outcome": [1, None], "tokens": [5, 7], "status": ["ok", "lost"], "round": [0, 0]}
    lines = [{**base, **other, "slots": slots} for slots in (empty, lost)]
    writer.write_step(lines, {"step": 1}, 2)
    writer.close()
    frame = frames.group_frame(tmp_path)
    assert frame[["num_rollouts", "num_known", "num_passed", "num_tokens"]].values.tolist() == [
        [0, 0, 0, 0],
        [2, 1, 1, 12],
    ]
    assert frame["p_eff"].isna().all() and frame["granted_s"].isna().all()


def test_an_empty_run_gives_an_empty_frame_and_none_an_error(tmp_path, arms):
    LedgerWriter(tmp_path, "r", {"options": {}}).close()
    frame = frames.group_frame(tmp_path)
    assert len(frame) == 0 and list(frame) == list(frames.group_frame(arms["paper"]))
    with pytest.raises(LedgerError, match="no ledger"):
        frames.group_frame(tmp_path / "none")


def test_another_version_is_refused(tmp_path):
    folder = write_run(tmp_path / "r", "paper", steps=1)
    path = folder / "sara" / "ledger.attempt-1.jsonl"
    path.write_text(path.read_text().replace('"schema":1', '"schema":2'))
    with pytest.raises(LedgerError, match="schema 2; this version reads 1"):
        frames.group_frame(folder)


def test_frames_of_steps_and_of_verls_log(arms):
    arm = read_arm("paper", arms["paper"])
    steps, log = frames.step_frame(arm), frames.log_frame(arm)
    assert steps["step"].tolist() == [1, 2, 3, 4] and log["step"].tolist() == [0, 1, 2, 3, 4]
    assert steps["rollouts_launched"].sum() == len_rollouts(arms["paper"])
    fates = [name for name in steps if name.startswith("rollouts_") and name != "rollouts_launched"]
    assert (steps[fates].sum(axis=1) == steps["rollouts_launched"]).all()
    assert log["timing_s/gen"].notna().sum() == 4


def len_rollouts(folder):
    return sum(len(group["slots"]["tokens"]) for group in read_ledger(folder).groups)
