"""verl's logs as its backends write them, damaged as they are found."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_sara.verl_log import LogRow, VerlLog, find_dump, number, read_dump, read_verl_log

STEP = {"timing_s/gen": 2.5, "actor/lr": 2e-4, "val-core/countdown/acc/mean@4": 0.25, "training/global_step": 1}
PREFIX = "\x1b[36m(TaskRunnerV1 pid=7546)\x1b[0m "


def file_line(step, **data):
    return json.dumps({"step": step, "data": data or STEP}) + "\n"


def console_line(step, data=STEP, form=repr):
    return f"step:{step} - " + " - ".join(f"{key}:{form(value)}" for key, value in data.items())


# ---- values -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (3, 3.0),
        (True, 1.0),
        ("0.5", 0.5),
        (" 2e-4 ", 2e-4),
        ("np.float64(0.5)", 0.5),
        ("np.int64(3)", 3.0),
        ("np.float32(0.25, dtype=float32)", 0.25),
        ("tensor(1.5)", 1.5),
        ("np.True_", None),
        ("words", None),
        ("", None),
        ([1], None),
        ({}, None),
    ],
)
def test_what_is_a_number(raw, value):
    assert number(raw) == value


@pytest.mark.parametrize("raw", [None, "nan", "np.float64(nan)", "None"])
def test_what_is_not_known_is_nan(raw):
    assert math.isnan(number(raw))


@given(st.floats(allow_nan=False))
def test_every_form_of_a_float_is_the_same_number(value):
    assert number(value) == number(repr(value)) == number(f"np.float64({value!r})") == value


# ---- file logger ------------------------------------------------------------------------------


def test_the_file_logger_reads_back(tmp_path):
    (tmp_path / "verl.attempt-1.jsonl").write_text(file_line(0) + file_line(1))
    log = read_verl_log(tmp_path)
    assert log.source == "file" and log.problems == []
    assert [(row.step, row.data) for row in log.rows] == [(0, STEP), (1, STEP)]


def test_null_is_nan_and_sums_leave_it_out(tmp_path):
    (tmp_path / "verl.attempt-1.jsonl").write_text(
        file_line(1, x=None) + file_line(2, x=2) + '{"step": 3, "data": {"x": NaN}}\n'
    )
    log = read_verl_log(tmp_path)
    assert math.isnan(log.rows[0].data["x"]) and math.isnan(log.rows[2].data["x"]) and log.total("x") == 2


def test_faults_of_a_file_log_are_counted(tmp_path):
    text = file_line(1).rstrip() + file_line(2) + '"x"\n{"step": 3}\n{"step": 4, "data": {"a": "word", "b": 1}}\n{"st'
    (tmp_path / "verl.attempt-1.jsonl").write_text(text)
    log = read_verl_log(tmp_path)
    assert [row.step for row in log.rows] == [1, 2, 4] and log.rows[-1].data == {"b": 1.0}
    assert [problem.partition(" (")[0] for problem in log.problems] == [
        "1 x line with several objects, split",
        "1 x line that is not an object, skipped",
        "1 x line that is not of verl's file logger, skipped",
        "1 x value that is no number, skipped",
        "1 x line that is not JSON, skipped",
    ]


def test_attempts_count_in_full_for_cost_and_the_last_one_for_curves(tmp_path):
    (tmp_path / "verl.attempt-1.jsonl").write_text(file_line(1, t=1) + file_line(2, t=1) + file_line(2, t=1, u=5))
    (tmp_path / "verl.attempt-2.jsonl").write_text(file_line(2, t=10))
    (tmp_path / "verl.attempt-10.jsonl").write_text(file_line(3, t=100))
    log = read_verl_log(tmp_path)
    assert [(row.attempt, row.step, row.data["t"]) for row in log.history()] == [(1, 1, 1), (2, 2, 10), (10, 3, 100)]
    assert log.total("t") == 113 and "1 x step logged twice in one attempt (first: step 2)" in log.problems


def test_a_resumed_run_in_one_console_log_is_told_and_its_last_numbers_count(tmp_path):
    lines = [console_line(step, {"t": time}) for step, time in ((1, 1), (2, 1), (2, 10), (3, 10))]
    (tmp_path / "run.log").write_text("\n".join([*lines, console_line(3, {"val": 0.5})]))
    log = read_verl_log(tmp_path)
    assert log.problems == ["1 x step logged twice in one attempt (first: step 2)"]
    assert [row.data for row in log.history()] == [{"t": 1}, {"t": 10}, {"t": 10, "val": 0.5}] and log.total("t") == 22


def test_a_log_whose_beginning_was_wiped_is_told(tmp_path):
    (tmp_path / "run.jsonl").write_text(file_line(7) + file_line(8))
    assert read_verl_log(tmp_path).problems == ["1 x the log begins at step 7, not 1"]


def test_verls_own_layout_is_found_and_the_ledger_is_not_taken_for_a_log(tmp_path):
    (tmp_path / "sara").mkdir()
    (tmp_path / "sara" / "ledger.attempt-1.jsonl").write_text('{"schema": 1, "kind": "run"}\n')
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "experiment.jsonl").write_text(file_line(1))
    assert [row.step for row in read_verl_log(tmp_path).rows] == [1]
    assert read_verl_log(tmp_path / "sara").problems == [f"no log of verl in {tmp_path / 'sara'}"]
    (tmp_path / "verl.attempt-1.jsonl").write_text(file_line(7))
    assert [row.step for row in read_verl_log(tmp_path / "sara").rows] == [7]


def test_of_several_unnumbered_logs_one_counts_and_the_others_are_named(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text(file_line(1))
    assert read_verl_log(tmp_path).problems == ["not read, one log counts: b.jsonl"]


# ---- console ----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [repr, lambda value: f"np.float64({value!r})"])
def test_a_console_log_with_prefixes_colours_and_numpy_gives_the_same_numbers(tmp_path, form):
    lines = ["INFO starting", PREFIX + console_line(0, form=form), "(WorkerDict pid=1) working: hard"]
    lines += [f"Training:  10%|#1 | 1/10\r{console_line(1, form=form)} [repeated 2x across cluster]"]
    (tmp_path / "run.log").write_text("\n".join(lines))
    log = read_verl_log(tmp_path)
    assert log.source == "console" and log.problems == []
    assert [(row.step, row.data) for row in log.rows] == [(0, STEP), (1, STEP)]


@pytest.mark.parametrize("at", range(10, len(console_line(1))))
def test_a_line_that_was_wrapped_when_copied_is_put_together(tmp_path, at):
    text = console_line(1)
    (tmp_path / "run.log").write_text(f"{text[:at]}\n{text[at:]}\n(WorkerDict pid=1) done: all\n")
    log = read_verl_log(tmp_path)
    assert [row.data for row in log.rows] == [STEP]
    assert [problem.partition(" (")[0] for problem in log.problems] == ["1 x step line that was wrapped, put together"]


def test_other_lines_do_not_become_metrics(tmp_path):
    text = f"{console_line(1)}\nINFO:root\nhttp://host:8265\nval: 3 - x\nstep 5 - nothing\nfootstep:3 - y:1\n"
    (tmp_path / "log").write_text(text)
    log = read_verl_log(tmp_path)
    assert [(row.step, row.data) for row in log.rows] == [(1, STEP)] and log.problems == []


# ---- tensorboard ------------------------------------------------------------------------------


@pytest.mark.verl
def test_tensorboard_events_of_two_attempts_with_a_torn_end(tmp_path):
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    for suffix, steps in (("1", (1, 2)), ("2", (2, 3))):
        writer = EventFileWriter(str(tmp_path), filename_suffix=f".{suffix}")
        for step in steps:
            value = Summary.Value(tag="timing_s/gen", simple_value=float(suffix))
            writer.add_event(Event(wall_time=step, step=step, summary=Summary(value=[value])))
        writer.close()
    last = sorted(tmp_path.glob("events.out.tfevents.*"))[-1]
    last.write_bytes(last.read_bytes()[:-3])
    log = read_verl_log(tmp_path)
    assert log.source == "tensorboard"
    assert [(row.attempt, row.step, row.data["timing_s/gen"]) for row in log.rows] == [(1, 1, 1), (1, 2, 1), (2, 2, 2)]


# ---- validation -------------------------------------------------------------------------------


def test_validation_takes_the_core_accuracy_of_every_source():
    data = {
        "val-core/a/acc/mean@4": 0.5,
        "val-core/a/reward/mean@8": 0.1,
        "val-core/a/acc/best@4/mean": 0.9,
        "val-core/math/algebra/acc/mean@1": 0.0,
        "val-core/math/algebra/acc/mean@16": 0.25,
        "val-aux/a/acc/mean@4": 1.0,
        "val-core/b/acc/mean@4": math.nan,
    }
    log = VerlLog([LogRow(1, 5, data), LogRow(1, 6, {"x": 1.0})])
    assert log.validation_by_source() == {"a": [(5, 0.5)], "math/algebra": [(5, 0.25)]}
    assert log.validation() == [(5, 0.375)]


# ---- dumps ------------------------------------------------------------------------------------


def dump_line(uid, score):
    return json.dumps({"input": "q\u2028", "output": "a", "gts": "1", "score": score, "step": 1, "uid": uid}) + "\n"


def test_a_dump_tells_which_trained_groups_are_mixed(tmp_path):
    folder = tmp_path / "rollouts"
    folder.mkdir()
    rows = [("g1_0_0", 1.0), ("g1_1_0", 0.0), ("g2_0_0", 1.0), ("g2_1_0", 1.0), ("pad3_0_0", 0.0)]
    (folder / "2.jsonl").write_text("".join(dump_line(*row) for row in rows) + '{"score": 1}\n')
    (folder / "10.jsonl").write_text(dump_line("g9_0_0", 0.0) + dump_line("g9_1_0", 1.0))
    (tmp_path / "log").write_text("nothing")
    assert find_dump(tmp_path) == folder and find_dump(tmp_path / "none") is None
    dump = read_dump(folder)
    assert dump.mixed_groups() == {2: (1, 2), 10: (1, 1)}
    assert [problem.partition(" (")[0] for problem in dump.problems] == [
        "1 x padding row, left out",
        "1 x dumped row without uid or score, skipped",
    ]


def test_shaped_scores_do_not_tell_right_from_wrong(tmp_path):
    (tmp_path / "1.jsonl").write_text(dump_line("g_0_0", 0.1) + dump_line("g_1_0", 0.0))
    with pytest.raises(ValueError, match="not binary; allowed: 0 and 1, or -1 and 1"):
        read_dump(tmp_path).mixed_groups()
