"""The tiny Countdown task: its problems, its tokenizer and model, and how its pool is measured."""

import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parents[1] / "recipes/countdown_tiny"


@pytest.fixture(scope="module")
def recipe():
    sys.path.insert(0, str(RECIPE))
    try:
        import measure
        import prepare
    finally:
        sys.path.remove(str(RECIPE))
    return prepare, measure


def test_problems_have_the_sizes_asked_for_and_share_none(recipe):
    prepare, _ = recipe
    settings = prepare.Settings()
    problems = prepare.make_problems(settings)
    assert {part: len(problems[part]) for part in ("train", "val", "held_out")} == {
        "train": settings.train_prompts,
        "val": settings.val_prompts,
        "held_out": settings.held_out_prompts,
    }
    pool = [problem.key for part in ("train", "val", "held_out") for problem in problems[part]]
    assert len(set(pool)) == len(pool)
    assert problems == prepare.make_problems(settings)


def test_fingerprint_follows_settings_and_problems(recipe):
    prepare, _ = recipe
    settings = prepare.Settings(train_prompts=64)
    problems = prepare.make_problems(settings)
    stamp = prepare.fingerprint(settings, problems)
    assert stamp == prepare.fingerprint(settings, problems)
    assert stamp != prepare.fingerprint(prepare.Settings(train_prompts=64, steps=1), problems)
    assert stamp != prepare.fingerprint(settings, problems | {"val": problems["val"][1:]})


def test_shares_and_stopping_condition(recipe):
    _, measure = recipe
    groups = [[0] * 8, [0] * 8, [1] * 8, [0, 0, 0, 0, 0, 1, 0, 0], [1, 0, 1, 0, 1, 0, 1, 0]]
    assert measure.shares(groups) == {"all_fail": 0.4, "mixed": 0.4, "all_pass": 0.2}
    found = measure.stopping_condition(groups, probe=5)
    # 4 of the 5 are abandoned after five equal outcomes, and one of them is mixed
    assert (found["pbar"], found["q"]) == (0.4, 0.25)
    assert found["bound"] == pytest.approx(0.4 * 3 / 8)
    assert found["margin"] == pytest.approx(0.15 - 0.25)


@pytest.mark.verl
def test_tokenizer_and_model_agree(recipe, tmp_path):
    from transformers import AutoTokenizer

    prepare, _ = recipe
    prepare.build_tokenizer().save_pretrained(tmp_path)
    model = prepare.build_model(prepare.Settings(), prepare.build_tokenizer())
    model.config.save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == model.config.vocab_size
    assert sum(p.numel() for p in model.parameters()) <= 1_000_000
    assert len(tokenizer.encode("\n", add_special_tokens=False)) == 1
    assert tokenizer.eos_token == "<|im_end|>"
    text = "12 3 = 36\n(1+2)*3"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert len(ids) == len(text) and tokenizer.decode(ids) == text
    chat = [{"role": "user", "content": "1 2 = 3\n"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    assert prompt == "<|im_start|>1 2 = 3\n<|im_end|><|im_start|>"
