"""Summary and table: a ledger typed by hand, runs of the real allocator, and what must be refused."""

import json
import math
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulated_runs import write_arms, write_run
from verl_sara.core import Fate
from verl_sara.ledger import LedgerError, LedgerWriter, balance, read_ledger
from verl_sara.summary import read_arm, summarise, summarise_arm, table
from verl_sara.summary.compare import why_not_comparable
from verl_sara.summary.numbers import wall_split
from verl_sara.verl_log import LogRow, VerlLog

OPTIONS = {"group_size": 4, "batch_size": 1, "tau_low": 0.3, "prior": [1.0, 1.0], "probe_size": 2, "increment": 1}

# (step, outcomes, tokens, fate, verdict, reason, p_eff)
DS_GROUPS = [
    (1, [0, 0, 0, 0], [10, 10, 10, 10], "abandoned", "abandon", "all_fail", 0.0),
    (1, [1, 0, 1, 1], [4, 8, 4, 4], "trained", "commit", "mixed", 1.0),
    (2, [1, 1, 1, 1], [3, 3, 3, 3], "abandoned", "abandon", "all_pass", 0.0),
    (2, [0, 1, 0, 0], [8, 4, 8, 8], "trained", "commit", "mixed", 1.0),
]
PAPER_GROUPS = [
    (1, [0, 0, 0], [10, 10, 10], "abandoned", "abandon", "all_fail", 0.2),
    (1, [1, 0, 1, 1], [4, 8, 4, 4], "trained", "commit", "mixed", 1.0),
    (2, [1, 1, 1], [3, 3, 3], "abandoned", "abandon", "all_pass", 0.2),
    (2, [0, 1, 0, 0], [8, 4, 8, 8], "trained", "commit", "mixed", 1.0),
]
DS_LOG = [
    {"step": 0, "data": {"val-core/x/acc/mean@4": 0.25}},
    {
        "step": 1,
        "data": {"timing_s/step": 10, "timing_s/gen": 6, "timing_s/update_actor": 2, "timing_s/update_weights": 1},
    },
    {
        "step": 2,
        "data": {
            "timing_s/step": 10,
            "timing_s/gen": 6,
            "timing_s/update_actor": 2,
            "timing_s/update_weights": 1,
            "val-core/x/acc/mean@4": 0.5,
        },
    },
]
PAPER_STEP = {
    "timing_s/step": 10,
    "timing_s/gen": 5,
    "timing_s/old_log_prob": 1,
    "timing_s/update_actor": 2,
    "timing_s/update_weights": 1,
    "timing_s/save_checkpoint": 0.5,
}
PAPER_LOG = [{"step": 1, "data": PAPER_STEP}, {"step": 2, "data": {**PAPER_STEP, "val-core/x/acc/mean@4": 0.625}}]

# by hand: rollouts 16 / 2 and 14 / 2; tokens 100 / 2 and 87 / 2; intervals 50 -+ 1.96 * 10, 43.5 -+ 1.96 * 6.5;
# saved 1 - 7/8 and 1 - 43.5/50, the latter times exp(-+ hypot(.392, .2929)); ideal DS between 16/2.4 and 16/2
GOLDEN = """\
| arm   | steps | prompts visited | groups trained | effective fraction | rollouts | generated tokens | rollouts / effective group | tokens / effective group | measured saving vs ds: rollouts, tokens | rollouts saved vs ideal DS (estimated bounds) | rounds / step | val. accuracy before, after | wall-clock s (generate + update + weights + wait) |
| ----- | ----: | --------------: | -------------: | -----------------: | -------: | ---------------: | -------------------------: | -----------------------: | --------------------------------------: | --------------------------------------------: | ------------: | --------------------------: | ------------------------------------------------: |
| ds    |     2 |               4 |              2 |              1.000 |       16 |              100 |             8.0 [8.0, 8.0] |        50.0 [30.4, 69.6] |                                       - |                                           0 % |           2.0 |                0.250, 0.500 |                               20 (12 + 4 + 2 + 2) |
| paper |     2 |               4 |              2 |              1.000 |       14 |               87 |             7.0 [7.0, 7.0] |        43.5 [30.8, 56.2] |  12 % [12 %, 12 %], 13 % [-42 %, 47 %] |                                  -5 % to 12 % |           2.0 |                  n/a, 0.625 |                               19 (10 + 6 + 2 + 1) |

- Replayed: the paper's rule on the 4 full groups of ds costs 0.88 [0.74, 1.03] of their rollouts and 0.87 [0.73, 1.04] of their tokens per effective group (paired; 95 % interval).
"""  # noqa: E501


def typed_run(folder, preset, groups, log, rounds, **options):
    """Writes a run that was typed by hand."""
    writer = LedgerWriter(folder / "sara", preset, {"options": {**OPTIONS, "preset": preset, **options}})
    for step, in_step in enumerate(rounds, start=1):
        lines = [group_line(index, *group) for index, group in enumerate(groups) if group[0] == step]
        numbers = {"step": step, "rounds": in_step, "commit_rate": 0.5, "is_exhausted": False, "collect_s": 1.0}
        writer.write_step(lines, numbers, sum(len(line["slots"]["tokens"]) for line in lines))
    writer.close()
    (folder / "verl.attempt-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in log))
    return folder


def group_line(index, step, outcomes, tokens, fate, verdict, reason, p_eff):
    n = len(outcomes)
    return {
        "kind": "group",
        "step": step,
        "index": index,
        "uid": f"u{index}",
        "prompt_id": f"p{index}",
        "group_size": 4,
        "prior": [1.0, 1.0],
        "n0": 4 if n == 4 else 3,
        "n1": 4 if n == 4 else 3,
        "slots": {"outcome": outcomes, "tokens": tokens, "status": ["ok"] * n, "round": [0] * n},
        "prompt_tokens": 5,
        "verdict": verdict,
        "reason": reason,
        "verdict_length": n,
        "p_eff": p_eff,
        "fate": fate,
        "times": {},
    }


@pytest.fixture
def typed(tmp_path):
    """The two runs typed by hand."""
    return {
        "ds": typed_run(tmp_path / "ds", "ds", DS_GROUPS, DS_LOG, (1, 3), rule="full"),
        "paper": typed_run(tmp_path / "paper", "paper", PAPER_GROUPS, PAPER_LOG, (2, 2), rule="threshold"),
    }


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The four arms of a simulated demo."""
    return write_arms(tmp_path_factory.mktemp("arms"), ("verl_ds", "ds", "uniform", "paper"))


# ---- by hand ----------------------------------------------------------------------------------


def test_a_ledger_typed_by_hand_gives_exactly_this_table(typed):
    got = [line.replace(" ", "") for line in table(summarise(typed)).splitlines()]
    assert got == [line.replace(" ", "") for line in GOLDEN.splitlines()]


def test_the_columns_of_the_table_are_aligned(typed):
    widths = {len(line) for line in table(summarise(typed)).splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_the_summary_of_one_run_has_these_fields_and_no_others_than_numbers(typed):
    found = summarise_arm(typed["paper"])
    assert list(found)[:13] == [
        "preset",
        "steps",
        "prompts_visited",
        "groups_trained",
        "effective_fraction",
        "rollouts",
        "generated_tokens",
        "rollouts_per_effective_group",
        "tokens_per_effective_group",
        "rounds_per_step",
        "val_before",
        "val_after",
        "wall_s",
    ]
    assert found["wall_s"] == {"total": 19, "generate": 10, "update": 6, "weights": 2, "wait": 1}
    assert found["problems"] == [] and found["lost"] == {"rollouts": 0, "tokens": 0}
    assert json.loads(json.dumps(found, allow_nan=False)) == found


def test_summary_of_several_runs(typed):
    found = summarise(typed)
    assert found["arms"]["paper"] == summarise_arm(typed["paper"])
    assert found["savings"]["paper"]["measured"]["ds"]["rollouts"][0] == 0.125
    assert found["replay"]["paper_vs_ds"] == pytest.approx(0.875) and found["replay"]["paper_vs_ds_groups"] == 4
    assert found["replay"]["paper_vs_ds_interval"] == pytest.approx([0.7444, 1.0285], abs=1e-4)
    assert found["rule"] == {"tau_low": 0.3, "prior": [1.0, 1.0], "probe_size": 2, "increment": 1}
    json.dumps(found, allow_nan=False)


def test_without_a_paper_arm_the_presets_own_rule_is_replayed(typed):
    found = summarise({"ds": typed["ds"]})
    assert found["rule"] == {"tau_low": 0.4, "prior": (1.0, 1.0), "probe_size": 4, "increment": 1}
    assert found["replay"]["paper_vs_ds"] == 1.0  # k = 4 and a probe of 4: nothing to stop


# ---- two routes -------------------------------------------------------------------------------


def test_savings_agree_with_the_raw_lines_of_both_ledgers(simulated):
    found = summarise(simulated)
    for name, unit in (("paper", "rollouts"), ("paper", "tokens"), ("uniform", "rollouts")):
        per_group = []
        for arm in (name, "ds"):
            groups = read_ledger(simulated[arm]).groups
            values = [len(g["slots"]["tokens"]) if unit == "rollouts" else sum(g["slots"]["tokens"]) for g in groups]
            mixed = [0 < sum(g["slots"]["outcome"]) < 8 and g["fate"] == "trained" for g in groups]
            per_group.append(sum(values) / sum(mixed))
        assert found["savings"][name]["measured"]["ds"][unit][0] == pytest.approx(1 - per_group[0] / per_group[1])


def test_the_numbers_of_an_arm_agree_with_its_lines(simulated):
    for name, folder in simulated.items():
        found, ledger = summarise_arm(folder), read_ledger(folder)
        totals = balance(ledger.groups)
        assert found["rollouts"] == totals["launched"]["rollouts"]
        assert found["generated_tokens"] == totals["launched"]["tokens"]
        assert found["groups_trained"] == totals["trained"]["groups"] + totals["saturated_trained"]["groups"]
        assert found["prompts_visited"] == len([g for g in ledger.groups if g["slots"]["tokens"]]), name


def test_the_paper_arm_trains_mixed_groups_only_and_replay_says_the_same_of_every_baseline(simulated):
    found = summarise(simulated)
    assert found["arms"]["paper"]["effective_fraction"] == 1.0 and found["arms"]["uniform"]["effective_fraction"] < 0.6
    for base in ("ds", "verl_ds", "uniform"):
        low, high = found["replay"][f"paper_vs_{base}_interval"]
        assert low < found["replay"][f"paper_vs_{base}"] < high
    assert found["arms"]["verl_ds"]["rounds_per_step"] is None


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["paper", "ds", "uniform", "verl_ds"]), st.integers(1, 4))
def test_costs_of_any_run_add_up_over_fates(tmp_path_factory, seed, preset, steps):
    arm = read_arm(preset, write_run(tmp_path_factory.mktemp("r"), preset, steps=steps, seed=seed))
    for line in arm.costs():
        for unit in ("rollouts", "tokens"):
            parts = [line["fates"].get(fate, {}).get(unit, 0) for fate in (*(f.value for f in Fate), "lost")]
            assert sum(parts) == line["fates"]["launched"][unit]


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {f"timing_s/{name}": st.floats(0, 100) for name in ("gen", "reward", "adv", "update_actor")},
            optional={
                f"timing_s/{name}": st.floats(0, 100) for name in ("update_weights", "save_checkpoint", "testing")
            },
        ),
        min_size=1,
        max_size=5,
    ),
    st.floats(0, 10),
)
def test_the_parts_of_the_wall_clock_add_up_to_its_total(rows, rest):
    for row in rows:
        row["timing_s/step"] = rest + sum(value for name, value in row.items() if name != "timing_s/testing")
    split = wall_split(VerlLog([LogRow(1, step, row) for step, row in enumerate(rows, start=1)]))
    total = split.pop("total")
    assert sum(split.values()) == pytest.approx(total, abs=1e-6) and split["wait"] == pytest.approx(
        rest * len(rows), abs=1e-6
    )
    if any("timing_s/save_checkpoint" in row for row in rows):
        assert total <= sum(row["timing_s/step"] for row in rows)


@pytest.mark.parametrize("rounds", [None, math.nan, "absent"], ids=str)
def test_rounds_that_a_schedule_does_not_have_are_null_and_a_dash(tmp_path, rounds):
    folder = write_run(tmp_path / "r", "paper", steps=2)
    ledger = folder / "sara" / "ledger.attempt-1.jsonl"
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    for line in lines:
        if line["kind"] == "step":
            line.pop("rounds") if rounds == "absent" else line.update(rounds=rounds)
    ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = summarise({"r": folder})
    assert (
        found["arms"]["r"]["rounds_per_step"] is None
        and found["arms"]["r"]["intervals"]["rounds_per_step"] == [None] * 2
    )
    json.dumps(found, allow_nan=False)
    head, _, row, *_ = (line.split("|") for line in table(found).splitlines())
    assert row[[cell.strip() for cell in head].index("rounds / step")].strip() == "-"
    assert found["arms"]["r"]["problems"] == []


# ---- killed, resumed, in progress -------------------------------------------------------------


def test_a_resumed_run_pays_for_all_attempts_and_trains_what_was_kept(tmp_path):
    whole = summarise_arm(write_run(tmp_path / "whole", "paper", steps=6))
    folder = write_run(tmp_path / "resumed", "paper", steps=4)
    write_run(folder, "paper", steps=6, first=4)
    found, steps = summarise_arm(folder), read_ledger(folder).steps
    assert found["steps"] == whole["steps"] == 6 and found["groups_trained"] == whole["groups_trained"]
    assert found["rollouts"] == sum(step["fates"]["launched"]["rollouts"] for step in steps) > whole["rollouts"]
    assert found["rollouts_per_effective_group"] == pytest.approx(found["rollouts"] / found["effective_groups"])


def test_rollouts_of_a_step_in_progress_are_cost_and_are_told(tmp_path):
    folder = write_run(tmp_path / "r", "paper", steps=3)
    before = summarise_arm(folder)
    (folder / "sara" / "journal.attempt-1.jsonl").write_text(
        '{"step": 4, "uid": "u", "launched": [0, 1, 2, 3]}\n{"step": 4, "uid": "u", "slot": 0, "tokens": 30}\n'
    )
    found = summarise_arm(folder)
    assert found["steps"] == 3 and found["lost"] == {"rollouts": 4, "tokens": 30}
    assert found["rollouts"] == before["rollouts"] + 4
    assert found["generated_tokens"] == before["generated_tokens"] + 30
    assert found["rollouts_per_effective_group"] == pytest.approx(found["rollouts"] / found["effective_groups"])
    assert "4 rollouts of unfinished steps are counted as cost" in table(summarise({"r": folder}))


def test_a_run_that_has_just_begun_has_no_ratios(tmp_path):
    LedgerWriter(tmp_path / "sara", "r", {"options": {"preset": "paper"}}).close()
    found = summarise_arm(tmp_path)
    assert found["steps"] == found["rollouts"] == found["groups_trained"] == 0
    assert found["rollouts_per_effective_group"] is None and found["wall_s"]["total"] is None
    assert "n/a" in table(summarise({"r": tmp_path}))


def test_steps_after_the_last_one_asked_for_are_left_out(simulated):
    found = summarise({"ds": simulated["ds"], "paper": simulated["paper"]}, last_step=5)
    assert [arm["steps"] for arm in found["arms"].values()] == [5, 5]
    lines = [g for g in read_ledger(simulated["paper"]).groups if g["step"] <= 5]
    assert found["arms"]["paper"]["rollouts"] == balance(lines)["launched"]["rollouts"]
    assert found["arms"]["paper"]["wall_s"]["total"] < summarise_arm(simulated["paper"])["wall_s"]["total"]


# ---- refused ----------------------------------------------------------------------------------


def refused(arms):
    (entry,) = [entry["measured"] for name, entry in summarise(arms)["savings"].items() if name != "ds"]
    return entry["ds"].get("refused", "")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"group_size": 4}, "group_size differs: 4 (other), 8 (ds)"),
        ({"batch_size": 4}, "batch_size differs: 4 (other), 8 (ds)"),
        ({"verdict_key": "correct"}, "verdict_key differs: 'correct' (other), None (ds)"),
        ({"success_threshold": 0.5}, "success_threshold differs: 0.5 (other), None (ds)"),
        (
            {"steps": 5},
            "steps differ: 5 steps, 1 to 5 (other), 12 steps, 1 to 12 (ds); --steps 5 compares what both have",
        ),
    ],
    ids=str,
)
def test_unfair_comparisons_are_refused_with_what_differs(simulated, tmp_path, changes, reason):
    other = write_run(tmp_path / "other", "paper", **changes)
    assert refused({"ds": simulated["ds"], "other": other}) == reason
    assert f"other is not compared with ds: {reason}" in table(summarise({"ds": simulated["ds"], "other": other}))


def test_runs_over_other_prompts_are_not_compared(typed, tmp_path):
    ledger = typed["paper"] / "sara" / "ledger.attempt-1.jsonl"
    ledger.write_text(ledger.read_text().replace('"prompt_id":"p', '"prompt_id":"q'))
    assert refused(typed) == "prompts differ: paper and ds have none in common"


def test_runs_of_another_task_are_not_compared(typed):
    ledger = typed["paper"] / "sara" / "ledger.attempt-1.jsonl"
    ledger.write_text(ledger.read_text().replace('"options":', '"task":{"grader":"g"},"options":', 1))
    assert refused(typed) == "grader differs: 'g' (paper), None (ds)"


def test_a_ledger_that_does_not_balance_gives_numbers_but_no_saving(typed):
    ledger = typed["paper"] / "sara" / "ledger.attempt-1.jsonl"
    lines = ledger.read_text().splitlines()
    ledger.write_text("\n".join([lines[0], *lines[2:]]) + "\n")
    assert "the ledger of paper does not balance: ledger.attempt-1.jsonl step 1" in refused(typed)
    assert summarise_arm(typed["paper"])["rollouts"] == 14


def test_a_plain_verl_run_gives_what_its_log_supports(typed, simulated):
    shutil.rmtree(typed["paper"] / "sara")
    found = summarise({"ds": typed["ds"], "plain": typed["paper"]})
    plain = found["arms"]["plain"]
    assert (plain["steps"], plain["val_after"], plain["wall_s"]["total"]) == (2, 0.625, 19)
    assert plain["rollouts"] is None and plain["groups_trained"] is None and "plain" not in found["savings"]
    assert "only what verl's log supports: no ledger" in plain["problems"][0]
    assert "n/a" in table(found)


def test_a_plain_run_with_dumped_rollouts_tells_its_effective_fraction(typed):
    shutil.rmtree(typed["paper"] / "sara")
    (typed["paper"] / "rollouts").mkdir()
    rows = [("a_0_0", 1.0), ("a_1_0", 0.0), ("b_0_0", 0.0), ("b_1_0", 0.0)]
    text = "".join(json.dumps({"uid": uid, "score": score}) + "\n" for uid, score in rows)
    (typed["paper"] / "rollouts" / "1.jsonl").write_text(text)
    found = summarise_arm(typed["paper"])
    assert (found["groups_trained"], found["effective_groups"], found["effective_fraction"]) == (2, 1, 0.5)


def test_neither_ledger_nor_log_is_an_error_that_names_both(tmp_path):
    with pytest.raises(LedgerError, match=r"no ledger in .*; and no log of verl in"):
        summarise_arm(tmp_path)


def test_an_unknown_baseline_is_refused_with_the_arms(typed):
    with pytest.raises(LedgerError, match="baseline 'dapo' is no arm; allowed: ds, paper"):
        summarise(typed, baselines=["dapo"])


def test_a_baseline_may_be_chosen(typed):
    found = summarise(typed, baselines=["paper"])["savings"]
    assert list(found["ds"]["measured"]) == ["paper"] and found["paper"]["measured"] == {}
    assert found["ds"]["measured"]["paper"]["rollouts"][0] == pytest.approx(1 - 8 / 7)


def test_a_saturated_group_that_is_called_trained_is_told(typed):
    ledger = typed["ds"] / "sara" / "ledger.attempt-1.jsonl"
    ledger.write_text(ledger.read_text().replace('"outcome":[1,0,1,1]', '"outcome":[1,1,1,1]'))
    assert any("saturated group that the ledger calls trained" in p for p in summarise_arm(typed["ds"])["problems"])


def test_a_last_validation_before_the_last_step_is_told(tmp_path):
    folder = write_run(tmp_path / "r", "paper", steps=3)
    log = folder / "verl.attempt-1.jsonl"
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    rows[2]["data"]["val-core/countdown/acc/mean@4"] = rows[3]["data"].pop("val-core/countdown/acc/mean@4")
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "the last validation was at step 2 of 3" in summarise_arm(folder)["problems"]


# ---- seeds ------------------------------------------------------------------------------------


def test_seeds_of_an_arm_are_pooled(tmp_path):
    runs = {f"{preset}/{seed}": tmp_path / f"{preset}{seed}" for preset in ("ds", "paper") for seed in (1, 2)}
    for name, folder in runs.items():
        write_run(folder, name.split("/")[0], steps=6, seed=int(name[-1]))
    found = summarise(runs)
    assert set(found["arms"]) == set(runs) and set(found["savings"]) == {"ds", "paper"}
    saved, low, high = found["savings"]["paper"]["measured"]["ds"]["rollouts"]
    totals = {
        label: [
            sum(found["arms"][f"{label}/{seed}"][key] for seed in (1, 2)) for key in ("rollouts", "effective_groups")
        ]
        for label in ("ds", "paper")
    }
    assert saved == pytest.approx(1 - (totals["paper"][0] / totals["paper"][1]) / (totals["ds"][0] / totals["ds"][1]))
    assert low < saved < high and not math.isnan(low)


def test_comparing_is_symmetric(simulated):
    ds, paper = (read_arm(name, simulated[name]) for name in ("ds", "paper"))
    assert why_not_comparable(ds, paper) == why_not_comparable(paper, ds) == ""
