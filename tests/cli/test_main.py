"""The command `sara` itself, and `sara explain`."""

import json

import pytest

from verl_sara.cli.__main__ import main


def test_explain_json_shows_the_rule(capsys):
    assert main(["explain", "--group-size", "8", "--tau-low", "0.4", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["p_eff"]["all_fail"] == pytest.approx([(8 - n) / 9 for n in range(1, 9)])
    assert facts["p_eff"]["all_pass"] == pytest.approx(facts["p_eff"]["all_fail"])
    assert facts["abandon_after"] == {"all_fail": 5, "all_pass": 5}
    assert facts["expected_rollouts"]["until_verdict"] == pytest.approx(2 * sum(1 / n for n in range(1, 6)) - 1)
    assert facts["expected_rollouts"]["group_filled"] == pytest.approx(8 - 2 * 3 / 6)
    assert facts["reliability_bound"] == pytest.approx(1 / 3)


def test_explain_with_another_prior_is_asymmetric(capsys):
    assert main(["explain", "--group-size", "8", "--tau-low", "0.3", "--prior", "0.25,0.6", "--json"]) == 0
    after = json.loads(capsys.readouterr().out)["abandon_after"]
    assert after == {"all_fail": 2, "all_pass": 5}


def test_explain_says_in_words_when_it_never_abandons(capsys):
    assert main(["explain", "--group-size", "4", "--tau-low", "0.1"]) == 0
    assert "never abandoned before it is full (4)" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--group-size", "1"], "group-size is 1; allowed: >= 2"),
        (["--group-size", "8", "--tau-low", "1.2"], "tau_low is 1.2; allowed: a number in [0, 1]"),
        (["--group-size", "8", "--increment", "0"], "increment is 0; allowed: >= 1"),
    ],
)
def test_explain_refuses_bad_input(arguments, message, capsys):
    assert main(["explain", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("prior", ["1", "1,0", "a,b", "1,2,3"])
def test_explain_refuses_a_bad_prior(prior, capsys):
    with pytest.raises(SystemExit):
        main(["explain", "--group-size", "8", "--prior", prior])
    assert "allowed: two numbers > 0" in capsys.readouterr().err


def test_an_unknown_command_lists_the_known_ones(capsys):
    with pytest.raises(SystemExit):
        main(["explode"])
    assert "explain" in capsys.readouterr().err
