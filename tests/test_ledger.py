"""The ledger: written and read back, killed anywhere, damaged in every way seen in practice."""

import json
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.simulated_runs import write_run
from verl_sara.core import Fate, SlotStatus
from verl_sara.ledger import (
    LedgerError,
    LedgerWriter,
    Problems,
    balance,
    check_balance,
    ledger_folder,
    parse_lines,
    read_ledger,
)

HEADER = {"options": {"preset": "paper"}}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of three steps."""
    return write_run(tmp_path_factory.mktemp("run") / "paper", "paper", steps=3)


@pytest.fixture
def copy(run, tmp_path):
    """Folder of a copy of the ledger, to be damaged."""
    return shutil.copytree(run / "sara", tmp_path / "sara")


def path_of(folder):
    return folder / "ledger.attempt-1.jsonl"


def lines_of(folder):
    return path_of(folder).read_text().splitlines()


def rewrite(folder, lines, end="\n"):
    path_of(folder).write_text("\n".join(lines) + end)


def group_line(**changes):
    """One group of four rollouts, as `group_record` gives it."""
    slots = {"outcome": [0, 1, 0, 0], "tokens": [1, 2, 3, 4], "status": ["ok"] * 4, "round": [0] * 4}
    numbers = {"step": 1, "index": 0, "group_size": 4, "n0": 4, "n1": 4, "prompt_tokens": 5, "verdict_length": 4}
    texts = {"kind": "group", "uid": "u", "prompt_id": "p", "verdict": "commit", "reason": "mixed", "fate": "trained"}
    return {**numbers, **texts, "prior": [1.0, 1.0], "slots": slots, "p_eff": 1.0, "times": {}, **changes}


# ---- written and read back --------------------------------------------------------------------


def test_a_run_reads_back_as_it_was_written(run):
    ledger = read_ledger(run)
    assert ledger.problems == [] and ledger.unbalanced == [] and ledger.lost == {}
    assert [step["step"] for step in ledger.history()] == [1, 2, 3]
    assert ledger.runs[0]["options"]["preset"] == "paper"
    totals = balance(ledger.groups)
    assert totals["launched"]["rollouts"] == sum(s["fates"]["launched"]["rollouts"] for s in ledger.steps) > 0
    assert {group["attempt"] for group in ledger.groups} == {1}


def test_the_folder_of_the_ledger_may_be_given_itself(run):
    assert ledger_folder(run) == run / "sara" == ledger_folder(run / "sara")


def test_groups_can_be_taken_one_by_one_without_being_kept(run):
    taken = []
    ledger = read_ledger(run, on_group=taken.append)
    assert ledger.groups == [] and taken == read_ledger(run).groups


def test_a_step_that_does_not_balance_is_not_written(tmp_path):
    writer = LedgerWriter(tmp_path, "r", HEADER)
    with pytest.raises(LedgerError, match="step 1: groups hold 4 rollouts, launched 5"):
        writer.write_step([group_line()], {"step": 1}, 5)
    writer.close()
    assert len(lines_of(tmp_path)) == 1


def test_fates_that_do_not_add_up_are_told():
    totals = balance([group_line()])
    totals["abandoned"]["tokens"] += 1
    with pytest.raises(LedgerError, match="here: fates hold 11 tokens, launched 10"):
        check_balance(totals, 4, "here")


def test_every_attempt_has_a_file_of_its_own(tmp_path):
    writers = [LedgerWriter(tmp_path, "r", HEADER) for _ in range(3)]
    assert [writer.attempt for writer in writers] == [1, 2, 3]
    for writer in writers:
        writer.close()
    assert len(read_ledger(tmp_path).runs) == 3


# ---- killed and resumed -----------------------------------------------------------------------


def test_a_killed_step_is_lost_and_counted(tmp_path):
    writer = LedgerWriter(tmp_path, "r", HEADER)
    writer.launched(1, "u", range(4))
    writer.returned(1, "u", 0, 30, SlotStatus.OK)
    writer.flush()
    ledger = read_ledger(tmp_path)
    assert (ledger.lost_rollouts, ledger.lost_tokens) == (4, 30)
    assert ledger.lost == {1: {"rollouts": 4, "tokens": 30}} and "not finished" in ledger.problems[0]
    writer.write_step([group_line()], {"step": 1}, 4)
    assert read_ledger(tmp_path).lost == {}
    writer.close()


def test_a_finished_step_is_not_lost_though_its_journal_was_not_emptied(run, copy):
    step = read_ledger(run).steps[-1]["step"]
    (copy / "journal.attempt-1.jsonl").write_text(json.dumps({"step": step, "uid": "u", "launched": [0, 1]}) + "\n")
    assert read_ledger(copy).lost == {}


def test_a_resumed_run_reads_as_one_history_and_every_rollout_counts(tmp_path):
    folder = write_run(tmp_path / "r", "paper", steps=4)
    first = read_ledger(folder)
    write_run(folder, "paper", steps=6, first=3)  # back to the checkpoint after step 2
    ledger = read_ledger(folder)
    assert [(s["step"], s["attempt"]) for s in ledger.history()] == [(1, 1), (2, 1), (3, 2), (4, 2), (5, 2), (6, 2)]
    assert len(ledger.steps) == 8 and len(ledger.groups) > len(first.groups)
    assert balance(ledger.groups)["launched"]["rollouts"] == sum(
        step["fates"]["launched"]["rollouts"] for step in ledger.steps
    )


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1))
def test_cut_anywhere_nothing_is_lost_from_the_count_and_nothing_counts_twice(run, tmp_path_factory, share):
    folder = tmp_path_factory.mktemp("cut")
    text = path_of(run / "sara").read_bytes()
    cut = text[: int(share * len(text))]
    path_of(folder).write_bytes(cut)
    whole = [json.loads(line) for line in cut.decode().split("\n")[:-1]]
    launched = sum(len(record["slots"]["tokens"]) for record in whole if record["kind"] == "group")
    try:
        ledger = read_ledger(folder)
    except LedgerError as error:
        assert "no line of a ledger" in str(error) and not whole
        return
    counted = sum(s["fates"]["launched"]["rollouts"] for s in ledger.steps) + ledger.lost_rollouts
    last = cut.decode().split("\n")[-1]
    is_torn = bool(last) and not last.endswith("}")
    # a whole last line without its newline counts as well
    assert launched <= counted <= launched + 8
    assert is_torn == any("not JSON" in problem for problem in ledger.problems) or last.endswith("}")


# ---- damaged ----------------------------------------------------------------------------------


def test_a_torn_last_line_is_counted_and_its_step_is_lost(run, copy):
    lines = lines_of(copy)
    rewrite(copy, [*lines[:-1], lines[-1][:50]], end="")
    ledger = read_ledger(copy)
    assert [step["step"] for step in ledger.steps] == [1, 2]
    assert ledger.lost_rollouts == read_ledger(run).steps[-1]["fates"]["launched"]["rollouts"]
    assert any("1 x line that is not JSON" in problem for problem in ledger.problems)


def test_appending_to_a_torn_line_costs_that_line_only(copy, run):
    lines = lines_of(copy)
    at = next(i for i, line in enumerate(lines) if '"kind":"step"' in line)
    rewrite(copy, [*lines[:at], lines[at] + lines[at + 1], *lines[at + 2 :]])
    ledger = read_ledger(copy)
    assert ledger.groups == read_ledger(run).groups
    assert ledger.problems == [f"1 x line with several objects, split (first: ledger.attempt-1.jsonl:{at + 1})"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("not json at all", "not JSON"),
        ("[1, 2]", "not an object"),
        ('"text"', "not an object"),
        ('{"step": 3, "data": {"x": 1}}', "line of something else"),
        ('{"schema": 1, "kind": "other"}', "unknown kind 'other'"),
        ("[" * 100_000, "not JSON"),
        ("1" * 5000, "not"),
        ('{"schema": 1, "kind": "group"}', "lacks or misuses 'slots'"),
        ('{"schema": 1, "kind": "step", "step": 1}', "lacks or misuses 'fates'"),
        ('{"schema": 1, "kind": "step", "step": "1"}', "lacks or misuses step"),
        ('{"schema": 1, "kind": "run", "options": 3}', "lacks or misuses options, task or setup"),
    ],
    ids=lambda value: value[:20],
)
def test_a_foreign_line_is_skipped_and_counted(copy, run, text, problem):
    lines = lines_of(copy)
    rewrite(copy, [lines[0], text, *lines[1:]])
    ledger = read_ledger(copy)
    assert ledger.groups == read_ledger(run).groups
    assert len(ledger.problems) == 1 and problem in ledger.problems[0] and ":2" in ledger.problems[0]


@pytest.mark.parametrize(
    "change",
    [
        {"fate": "eaten"},
        {"verdict": "maybe"},
        {"slots": {"outcome": [0], "tokens": [1, 2], "status": ["ok"], "round": [0]}},
        {"slots": {"outcome": [2], "tokens": [1], "status": ["ok"], "round": [0]}},
        {"slots": {"outcome": [0], "tokens": [-1], "status": ["ok"], "round": [0]}},
        {"slots": {"outcome": [0], "tokens": ["7"], "status": ["ok"], "round": [0]}},
        {"slots": {"outcome": [0], "tokens": [True], "status": ["ok"], "round": [0]}},
        {"group_size": "8"},
        {"prior": [0.0, 1.0]},
        {"prompt_id": ["p"]},
        {"step": None},
    ],
    ids=str,
)
def test_a_group_with_a_value_that_cannot_be_is_skipped_and_counted(copy, run, change):
    lines = lines_of(copy)
    bad = {**json.loads(lines[1]), **group_line(), **change}
    rewrite(copy, [lines[0], json.dumps(bad), *lines[1:]])
    ledger = read_ledger(copy)
    assert ledger.groups == read_ledger(run).groups
    assert len(ledger.problems) == 1 and "group line that lacks or misuses" in ledger.problems[0]


@pytest.mark.parametrize("filler", ["", "   ", "\x00\x00", "\r"])
def test_blank_lines_carriage_returns_and_a_byte_order_mark_do_no_harm(copy, run, filler):
    lines = lines_of(copy)
    rewrite(copy, ["\ufeff" + lines[0] + "\r", filler, *lines[1:], filler])
    ledger = read_ledger(copy)
    assert ledger.groups == read_ledger(run).groups and ledger.problems == [] and ledger.runs


def test_line_separators_of_unicode_and_broken_bytes_do_not_split_a_line(tmp_path):
    writer = LedgerWriter(tmp_path, "r", HEADER)
    writer.write_step([group_line(prompt_id="a\u2028b\u0085c")], {"step": 1}, 4)
    writer.close()
    raw = path_of(tmp_path).read_text().replace("a\\u2028b\\u0085c", "a\u2028b\u0085c").encode()
    path_of(tmp_path).write_bytes(raw + b'{"schema": 1, "kind": "\xff"}\n')
    ledger = read_ledger(tmp_path)
    assert ledger.groups[0]["prompt_id"] == "a\u2028b\u0085c" and "unknown kind" in ledger.problems[0]


def test_a_step_whose_group_is_missing_is_refused_or_told(copy):
    lines = lines_of(copy)
    rewrite(copy, [lines[0], *lines[2:]])
    with pytest.raises(LedgerError, match=r"ledger\.attempt-1\.jsonl step 1: groups hold"):
        read_ledger(copy)
    ledger = read_ledger(copy, is_strict=False)
    assert len(ledger.unbalanced) == 1 and len(ledger.steps) == 3


def test_the_attempt_is_that_of_the_file(copy, run):
    path_of(copy).rename(copy / "ledger.attempt-7.jsonl")
    ledger = read_ledger(copy)
    assert {line["attempt"] for line in (*ledger.groups, *ledger.steps)} == {7}


def test_a_ledger_of_another_version_is_refused_with_file_line_and_versions(copy):
    lines = lines_of(copy)
    rewrite(copy, [lines[0], lines[1].replace('"schema":1', '"schema":2'), *lines[2:]])
    with pytest.raises(LedgerError, match=r"attempt-1\.jsonl:2: schema 2; this version reads 1"):
        read_ledger(copy)


def test_no_empty_or_foreign_ledger_says_what_was_found(tmp_path):
    with pytest.raises(LedgerError, match=r"no ledger in .*expected files named ledger\.attempt-<n>\.jsonl"):
        read_ledger(tmp_path)
    path_of(tmp_path).write_text("")
    with pytest.raises(LedgerError, match=r"no line of a ledger in .*: the files are empty"):
        read_ledger(tmp_path)
    path_of(tmp_path).write_text('{"step": 1, "data": {}}\nhello\n')
    with pytest.raises(LedgerError, match=r"1 x line of something else.*1 x line that is not JSON"):
        read_ledger(tmp_path)


def test_a_run_that_has_just_begun_has_no_steps(tmp_path):
    LedgerWriter(tmp_path, "r", HEADER).close()
    ledger = read_ledger(tmp_path)
    assert ledger.history() == [] and ledger.problems == [] and len(ledger.runs) == 1


def test_a_history_that_does_not_begin_at_step_1_is_flagged(copy):
    lines = lines_of(copy)
    at = next(i for i, line in enumerate(lines) if '"kind":"step"' in line)
    rewrite(copy, [lines[0], *lines[at + 1 :]])
    assert any("begins at step 2, not 1" in problem for problem in read_ledger(copy).problems)


def test_a_damaged_journal_is_counted(copy):
    (copy / "journal.attempt-1.jsonl").write_text('{"step": 9, "launched": [0, 1]}\n{"step": 9}{"uid": 1}\n{"st')
    ledger = read_ledger(copy)
    assert ledger.lost == {9: {"rollouts": 2, "tokens": 0}}
    assert len([p for p in ledger.problems if "journal" in p]) == 3


# ---- lines ------------------------------------------------------------------------------------

OBJECTS = st.lists(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5), max_size=3), max_size=5)


@given(OBJECTS, st.sampled_from(["\n", "", " ", "\n\n", "\x00\n"]))
def test_whole_objects_come_back_however_they_are_glued(objects, glue):
    problems = Problems()
    text = glue.join(json.dumps(each, ensure_ascii=False) for each in objects)
    assert [record for _, record in parse_lines(text.split("\n"), "f", problems)] == objects
    assert problems.count("line that is not JSON, skipped") == 0


@given(st.text(max_size=200))
def test_any_text_is_read_or_counted(text):
    problems = Problems()
    found = list(parse_lines(text.split("\n"), "f", problems))
    assert all(isinstance(record, dict) for _, record in found)
    visible = [line for line in text.split("\n") if line.strip(" \t\r\n\x00\ufeff")]
    assert not visible or found or problems.sentences()


def test_problems_are_counted_by_kind_with_the_first_place():
    problems = Problems()
    problems.add("odd line", "a:1")
    problems.add("odd line", "a:9", count=2)
    problems.add("other")
    assert problems.sentences() == ["3 x odd line (first: a:1)", "1 x other"] and problems.count("odd line") == 3


def test_every_fate_is_in_a_balance():
    assert set(balance([])) == {fate.value for fate in Fate} | {"launched"}


def test_what_the_fast_encoder_refuses_is_written_all_the_same(tmp_path):
    writer = LedgerWriter(tmp_path, "r", {"options": {"big": 2**70, "torn": "\ud800"}})
    header = json.loads(writer.path.read_text().splitlines()[0])
    assert header["options"] == {"big": 2**70, "torn": "\ud800"}
