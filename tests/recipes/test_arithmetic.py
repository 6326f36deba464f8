"""The arithmetic recipe's problems: different, right, graded in the form that its examples show."""

import importlib.util
from pathlib import Path

import pytest

from verl_sara.rewards import compute_score

FILE = Path(__file__).parents[2] / "recipes/arithmetic_smollm2/prepare.py"


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("arithmetic_prepare", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_problems_are_different_and_their_results_right(recipe):
    found = recipe.sums(144, 0)
    assert len({question for question, _ in found}) == 144 and found == recipe.sums(144, 0)
    for question, result in found:
        a, sign, b = question.removeprefix("What is ").removesuffix("?").split()
        expected = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
        assert result == expected


def test_an_answer_in_the_form_of_the_examples_is_graded(recipe):
    for question, result in recipe.sums(20, 1):
        asked = question.removeprefix("What is ").removesuffix("?")
        for answer, acc in ((result, 1), (result + 1, 0)):
            text = f"{asked} = {answer}. The answer is {answer}."
            assert compute_score("math", text, str(result))["acc"] == acc, text


def test_rows_of_the_splits_have_no_question_in_common(recipe, tmp_path):
    import pandas as pd

    recipe.write_rows(tmp_path, train=30, val=10, seed=3)
    train, val = (pd.read_parquet(tmp_path / f"{split}.parquet") for split in ("train", "val"))
    questions = [[row[-1]["content"] for row in frame["prompt"]] for frame in (train, val)]
    assert [len(set(part)) for part in questions] == [30, 10] and not set(questions[0]) & set(questions[1])
    assert all(len(row) == 5 and row[0]["role"] == "user" for row in train["prompt"])
