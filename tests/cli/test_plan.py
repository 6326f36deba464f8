"""`sara plan`: from a file to numbers, sentences and refusals."""

import argparse
import json
import random
import re

import pytest

from verl_sara.cli import plan
from verl_sara.core import ConfigError

QUICK = ("--steps", "1", "--replicates", "2", "--batch-size", "8")


def run(*arguments):
    parser = argparse.ArgumentParser()
    plan.add_parser(parser.add_subparsers())
    args = parser.parse_args(["plan", *map(str, arguments)])
    return args.func(args)


@pytest.fixture
def rollouts(tmp_path):
    rng, path = random.Random(0), tmp_path / "rollouts.jsonl"
    rows = []
    for number in range(600):
        rate = (0.005, 0.995, 0.5)[number % 3]
        rows += [
            {"prompt_id": f"p{number}", "correct": rng.random() < rate, "num_tokens": rng.randint(50, 300)}
            for _ in range(8)
        ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_json(rollouts, capsys):
    assert run(rollouts, *QUICK, "--json") == 0
    numbers = json.loads(capsys.readouterr().out)
    assert list(numbers) == ["observed", "options", "costs", "replayed", "recommendation", "verdict"]
    assert numbers["observed"]["groups"] == 600 and numbers["observed"]["length_unit"] == "tokens"
    assert numbers["verdict"] == "saves"
    assert set(numbers["recommendation"]) == {"group_size", "tau_low", "probe_size"}
    assert 0.25 < numbers["observed"]["mixed"] < 0.40
    assert all(low < value < high < 1.0 for value, low, high in numbers["replayed"].values())


def test_text(rollouts, capsys):
    assert run(rollouts, *QUICK, "--slots", "32", "--prompts", "900") == 0
    out = capsys.readouterr().out
    assert "600 groups of up to 8 from 600 prompts" in out
    assert "B = 8, 900 prompts, 32 slots" in out
    assert "pays on these prompts" in out and "Suggested k:" in out
    assert re.search(r"relative to theirs:\npaper 0\.\d\d \[.*\], tuned 0\.\d\d \[.*\]\.\n", out)


def test_the_same_seed_prints_the_same(rollouts, capsys):
    outputs = []
    for _ in range(2):
        run(rollouts, *QUICK, "--seed", "4")
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_refusals(rollouts, tmp_path):
    with pytest.raises(ConfigError, match="does not exist"):
        run(tmp_path / "nothing")
    with pytest.raises(ConfigError, match="num_prompts is 5; allowed"):
        run(rollouts, *QUICK, "--prompts", "5")
    with pytest.raises(ConfigError, match="group_size is 1"):
        run(rollouts, *QUICK, "--group-size", "1")
