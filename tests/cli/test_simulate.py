"""`sara simulate`: options, JSON, and refusals."""

import argparse
import json

import pytest

from verl_sara.cli import simulate
from verl_sara.core import ConfigError


def run(*arguments):
    parser = argparse.ArgumentParser()
    simulate.add_parser(parser.add_subparsers())
    args = parser.parse_args(["simulate", *arguments])
    return args.func(args)


SMALL = ("--steps", "2", "--batch-size", "16")
TINY = ("--steps", "1", "--batch-size", "8")


def test_headline_as_json(capsys):
    assert run("--table", "headline", *SMALL, "--json") == 0
    numbers = json.loads(capsys.readouterr().out)
    assert set(numbers) == {"saving_alone", "saving_with_ranked", "rounds_alone", "rounds_with_ranked"}


def test_history_as_json(capsys):
    assert run("--table", "history", *SMALL, "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"paper", "eb_dp", "history_dp", "history_dp_skip"}


def test_server_as_json_and_as_text(capsys):
    assert run("--table", "server", *TINY, "--json") == 0
    assert set(json.loads(capsys.readouterr().out)) == {"ds_streamed", "rounds", "streaming"}
    assert run("--table", "server", *TINY) == 0
    out = capsys.readouterr().out
    assert "SARA streaming, probe 2, n* 3" in out and "3: 512 slots, latency-bound" in out


def test_robustness_as_json(capsys):
    assert run("--table", "robustness", "--steps", "4", "--batch-size", "8", "--json") == 0
    numbers = json.loads(capsys.readouterr().out)
    assert set(numbers) == {"dps", "sara", "sara_dps"}
    assert set(numbers["dps"]) == {"before", "right_after", "later"}


def test_the_same_seed_prints_the_same(capsys):
    outputs = []
    for _ in range(2):
        run(*SMALL, "--pool", "A", "--seed", "5")
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert "pool A" in outputs[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--steps", "0"), "--steps is 0; allowed: >= 1"),
        (("--batch-size", "-3"), "--batch-size is -3; allowed: >= 1"),
        (("--table", "guarantees", "--pool", "A"), "guarantees takes no"),
        (("--table", "guarantees", "--steps", "5"), "guarantees takes no"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        run(*arguments)


def test_an_unknown_table_is_refused(capsys):
    with pytest.raises(SystemExit):
        run("--table", "figures")
    assert "headline" in capsys.readouterr().err


def test_guarantees_have_a_name_each(capsys, monkeypatch):
    from verl_sara.simulate import guarantees

    quick = {"reliability": 200, "order_of_arrival": 2000, "expected_rollouts": 50}
    for name, num_prompts in quick.items():
        claim = getattr(guarantees, name)
        monkeypatch.setattr(guarantees, name, lambda claim=claim, n=num_prompts, **given: claim(num_prompts=n, **given))
    assert run("--table", "guarantees", "--json") == 0
    numbers = json.loads(capsys.readouterr().out)
    assert list(numbers) == [
        "abandonment_reliability",
        "order_of_arrival",
        "expected_rollouts",
        "yield_dominance",
        "gradient_link",
    ]
    assert all(numbers.values())
