"""The tables, on fewer steps and smaller pools: what they contain and in which order the arms come."""

import json
from pathlib import Path

import pytest

import verl_sara.config
from verl_sara.simulate import guarantees, tables
from verl_sara.simulate.arms import DS, PAPER, TUNED, UNIFORM
from verl_sara.simulate.gradient import gradient_link

SMALL = {"batch_size": 64, "num_prompts": 1875}


@pytest.mark.parametrize(("name", "options"), [("ds", DS), ("paper", PAPER), ("tuned", TUNED), ("uniform", UNIFORM)])
def test_arms_have_the_options_of_their_presets(name, options):
    import yaml
    folder = Path(verl_sara.config.__file__).parent / "sara"
    base, preset = (
        yaml.safe_load((folder / f"{file}.yaml").read_text())["trainer"]["v1"]["sampler"]["sampler_kwargs"]
        for file in ("base", name)
    )
    decisions = (
        "rule", "tau_low", "prior_source", "probe_size", "increment", "schedule", "history_decay", "keep_saturated",
    )  # fmt: skip
    resolved = {key: preset.get(key, base[key]) for key in decisions}
    assert {key: resolved[key] for key in options} == dict(options)
    if options.get("rule") != "full":
        rest = {key: resolved[key] for key in decisions if key not in options}
        assert rest == {key: base[key] for key in rest}


def test_headline():
    table = tables.headline(num_steps=25, **SMALL)
    assert set(table.numbers) == {"saving_alone", "saving_with_ranked", "rounds_alone", "rounds_with_ranked"}
    assert 0.14 < table.numbers["saving_alone"] < 0.30
    assert 0.45 < table.numbers["saving_with_ranked"] < 0.70
    assert 2 <= table.numbers["rounds_with_ranked"] <= table.numbers["rounds_alone"] < 6
    assert [row[0] for row in table.rows] == ["DS", "ideal DS", "SARA", "SARA, ranked"]
    json.dumps(table.numbers)


def test_history():
    numbers = tables.history(num_steps=24, **SMALL).numbers
    assert list(numbers) == ["paper", "eb_dp", "history_dp", "history_dp_skip"]
    assert 0.05 < numbers["paper"] < numbers["eb_dp"] < numbers["history_dp"] - 0.08
    assert numbers["history_dp"] < numbers["history_dp_skip"] < 0.6


def test_server():
    table = tables.server(num_steps=3, batch_size=64)
    numbers = table.numbers
    assert list(numbers) == ["ds_streamed", "rounds", "streaming"]
    assert numbers["streaming"] < 0.75
    assert numbers["streaming"] < numbers["ds_streamed"] < 1.0
    assert numbers["streaming"] < numbers["rounds"]
    assert all(len(row) == len(table.header) for row in table.rows)


def test_reliability_holds_under_the_prior_and_fails_on_the_bell():
    numbers = guarantees.reliability(num_prompts=4000).numbers
    assert not numbers["Beta(4, 4), uniform"]["holds"]
    assert all(row["holds"] for key, row in numbers.items() if key != "Beta(4, 4), uniform")
    for key, row in numbers.items():
        assert row["q_sampled"] == pytest.approx(row["q"], abs=0.06), key
    # an identity where prior and population agree
    for key in ("Beta(1, 1), uniform", "Beta(.35, .35), fitted", "Beta(4, 4), fitted"):
        assert numbers[key]["q"] == pytest.approx(numbers[key]["p_eff"], abs=2e-3)


def test_completion_order_breaks_the_bound():
    numbers = guarantees.order_of_arrival(num_prompts=100_000).numbers
    for n in (3, 5):
        launch, completion = numbers[f"launch, n = {n}"], numbers[f"completion, n = {n}"]
        assert completion["all_pass"] > 1.5 * launch["all_pass"]
        assert completion["all_fail"] < 0.6 * launch["all_fail"]
        assert completion["both"] > launch["both"]


def test_expected_rollouts_agree_with_sampled_groups():
    for row in guarantees.expected_rollouts(num_prompts=1500).numbers.values():
        assert row["prefix_sampled"] == pytest.approx(row["prefix"], rel=0.08)
        assert row["filled_sampled"] == pytest.approx(row["filled"], rel=0.04)


def test_yield_dominance():
    numbers = guarantees.yield_dominance().numbers
    assert numbers.pop("condition_violations") == 0
    filled = {name: round(row["filled"], 3) for name, row in numbers.items()}
    assert filled == {
        "Beta(1, 1)": 0.980,
        "Beta(.35, .35)": 1.058,
        "Beta(.25, .6)": 1.073,
        "25 % hard, 35 % easy, 40 % mid": 1.137,
        "25 % hard, 50 % easy, 25 % mid": 1.173,
        "Beta(4, 4)": 0.956,
    }
    for row in numbers.values():
        assert min(row["prefix"], row["prefix_worst"], row["guarded"] + 1e-12) >= 1.0
        assert (row["filled"] >= 1.0) == (row["q"] <= row["condition"])


def test_gradient_link():
    numbers = list(gradient_link(num_repeats=300).numbers.values())
    for row in numbers:
        assert row["identity_error"] < 1e-12
        assert row["ratio"] > 1.3
    assert [row["squared_norm"] for row in numbers] == sorted(row["squared_norm"] for row in numbers)
    shrinking = [row["mean_squared_norm"] for row in numbers]
    assert shrinking == sorted(shrinking, reverse=True)


def test_text_is_aligned():
    lines = guarantees.yield_dominance().text().splitlines()
    assert lines[3] == "-" * len(lines[3])
    assert max(map(len, lines[2:10])) == len(lines[3])
