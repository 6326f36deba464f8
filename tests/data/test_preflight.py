"""Preflight of rows: shape, data source, gold answer, rendered prompt."""

from __future__ import annotations

import json

import pytest

from verl_sara.data import preflight
from verl_sara.data.rows import make_row
from verl_sara.rewards import symbolic

BOS, THINK = "<｜begin▁of▁sentence｜>", "<think>"
R1 = "{{ bos_token }}<｜User｜>...<｜Assistant｜><think>"


class Tokenizer:
    """One token a word; the template writes what the test says around the user's text."""

    bos_token_id, eos_token_id = 0, 1

    def __init__(self, before="", after="", chat_template="plain"):
        self.before, self.after, self.chat_template = before, after, chat_template
        self.words = {BOS: 0}

    def apply_chat_template(self, messages, *, tokenize, add_generation_prompt, **kwargs):
        assert tokenize
        assert add_generation_prompt
        if kwargs.get("broken"):
            raise ValueError("no such role")
        text = " ".join([self.before, *(message["content"] for message in messages), self.after])
        return [self.words.setdefault(word, len(self.words) + 1) for word in text.split()]

    def decode(self, ids):
        names = {number: word for word, number in self.words.items()}
        return " ".join(names[number] for number in ids)


def row(prompt="What is 1+1 ?", data_source="math", ground_truth="2"):
    return make_row(
        prompt=prompt, data_source=data_source, ground_truth=ground_truth, ability="x", split="train", index=0
    )


def write(path, rows):
    path.write_text("".join(item if isinstance(item, str) else json.dumps(item) + "\n" for item in rows))
    return path


GOOD = [
    row(),
    row(data_source="aime24", ground_truth="033"),
    row(data_source="countdown", ground_truth={"target": 8, "numbers": [3, 5]}),
]

BAD = [
    (row(data_source="gsm9k"), "no grader for data_source 'gsm9k'", "countdown"),
    (row(ground_truth=None), "ground_truth is missing", "gold answer"),
    (row(ground_truth=["2"]), "gold answer must be text or a number", "can read"),
    (row(data_source="countdown", ground_truth="22"), "Countdown gold must be", "can read"),
    (
        row(data_source="countdown", ground_truth={"target": 8, "numbers": [3.5]}),
        "must hold integers",
        "can read",
    ),
    ({**row(), "data_source": ""}, "data_source is ''", "name of a data source"),
    ({**row(), "prompt": "text"}, "prompt is 'text'", "list of messages"),
    ({**row(), "prompt": [{"role": "user", "content": " "}]}, "empty or non-text", "text"),
    ({**row(), "reward_model": None}, "reward_model is missing", "ground_truth"),
    (
        '{"prompt": NaN, "data_source": "math", "reward_model": {"ground_truth": "2"}}\n',
        "prompt is nan",
        "messages",
    ),
    ('{"data_source": "math"\n', "not JSON", "one JSON object"),
]


def test_good_rows_have_no_problem(tmp_path):
    assert preflight.check_rows([write(tmp_path / "a.jsonl", GOOD)]) == []


@pytest.mark.parametrize(("bad", "what", "allowed"), BAD)
def test_a_bad_row_is_named_with_number_fault_and_what_is_allowed(tmp_path, bad, what, allowed):
    file = write(tmp_path / "a.jsonl", [row(), bad, row()])
    [problem, *_] = preflight.check_rows([file])
    assert (problem.file, problem.row) == (str(file), 2)
    assert what in problem.what
    assert allowed in problem.allowed
    assert f"{file} row 2: " in str(problem)


def test_parquet_is_read_too(tmp_path):
    from verl_sara.data.parquet import write_split

    write_split([row(data_source="gsm9k")], tmp_path / "a.parquet")
    assert [problem.row for problem in preflight.check_rows([tmp_path / "a.parquet"])] == [1]


def test_a_users_own_reward_function_keeps_its_data_sources(tmp_path):
    file = write(tmp_path / "a.jsonl", [row(data_source="gsm9k", ground_truth=["any", "thing"])])
    assert preflight.check_rows([file], grader_for=None) == []


def test_files_that_are_missing_empty_or_unreadable(tmp_path):
    (tmp_path / "broken.parquet").write_text("no parquet")
    files = [tmp_path / "none.parquet", write(tmp_path / "empty.jsonl", []), tmp_path / "broken.parquet"]
    whats = [problem.what for problem in preflight.check_rows(files)]
    assert whats[:2] == ["no such data file", "no rows"]
    assert "cannot be read as parquet" in whats[2]


def test_many_problems_are_shortened_and_counted(tmp_path):
    file = write(tmp_path / "a.jsonl", [row(data_source="gsm9k")] * 50)
    problems = preflight.check_rows([file])
    assert len(problems) == preflight.MAX_PROBLEMS + 1
    assert problems[-1].what == "30 further problems"


def test_mathematics_needs_math_verify(tmp_path, monkeypatch):
    monkeypatch.setattr(symbolic, "is_available", lambda: False)
    [problem] = preflight.check_rows([write(tmp_path / "a.jsonl", GOOD)])
    assert (problem.row, "math-verify" in problem.what) == (0, True)
    assert preflight.check_rows([write(tmp_path / "b.jsonl", GOOD[2:])]) == []


def test_prompts_are_measured_as_rendered(tmp_path):
    file = write(tmp_path / "a.jsonl", [row(prompt="one two three"), row(prompt="one two three four")])
    tokenizer = Tokenizer(before="<user>", after="<assistant>")
    assert preflight.check_rows([file], tokenizer=tokenizer, max_prompt_length=6) == []
    [problem] = preflight.check_rows([file], tokenizer=tokenizer, max_prompt_length=5)
    assert (problem.row, problem.what) == (2, "the prompt has 6 tokens")
    [first, _] = preflight.check_rows([file], tokenizer=tokenizer, template_kwargs={"broken": True})
    assert "the chat template fails: ValueError: no such role" in first.what


@pytest.mark.parametrize(
    ("before", "after", "template", "whats"),
    [
        (BOS, THINK, R1, []),
        ("", "", "plain", []),
        (BOS, "", "plain", []),
        ("", THINK, "plain", []),
        (f"{BOS} {BOS}", THINK, R1, ["the rendered prompt has 2 BOS"]),
        ("", THINK, R1, ["the rendered prompt has 0 BOS"]),
        (BOS, "", R1, ["the rendered prompt has 0 <think>"]),
        (BOS, f"{THINK} {THINK}", R1, ["the rendered prompt has 2 <think>"]),
        (f"{BOS} {THINK}", "", R1, ["the rendered prompt does not end in <think>"]),
        (f"{BOS} {BOS}", "", "plain", ["the rendered prompt has 2 BOS"]),
        ("", f"{THINK} {THINK}", "plain", ["the rendered prompt has 2 <think>"]),
    ],
)
def test_special_tokens_of_the_rendered_prompt(tmp_path, before, after, template, whats):
    file = write(tmp_path / "a.jsonl", [row()])
    tokenizer = Tokenizer(before=before, after=after, chat_template=template)
    assert [problem.what for problem in preflight.check_rows([file], tokenizer=tokenizer)] == whats


@pytest.mark.verl
def test_a_tokenizer_of_transformers_is_rendered_as_verl_does(tmp_path):
    """The return type of `apply_chat_template` differs between versions of transformers."""
    import tokenizers
    import transformers
    words = [BOS, "<eos>", "<unk>", "<｜User｜>", "<｜Assistant｜>", THINK, "What", "is", "1+1", "?"]
    model = tokenizers.models.WordLevel(
        {word: number for number, word in enumerate(words)}, unk_token="<unk>"
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token=BOS, eos_token="<eos>", unk_token="<unk>"
    )
    file = write(tmp_path / "a.jsonl", [row()])
    body = "{{ bos_token }} <｜User｜> {{ messages[0]['content'] }} <｜Assistant｜>"
    tokenizer.chat_template = f"{body} {THINK}"
    assert preflight.check_rows([file], tokenizer=tokenizer, max_prompt_length=8) == []
    assert len(preflight.check_rows([file], tokenizer=tokenizer, max_prompt_length=7)) == 1
    tokenizer.chat_template = body
    [problem] = preflight.check_rows([file], tokenizer=tokenizer)
    assert problem.what == "the rendered prompt has 0 <think>"
    tokenizer.chat_template = f"{{{{ bos_token }}}} {body} {THINK}"
    [problem] = preflight.check_rows([file], tokenizer=tokenizer)
    assert problem.what == "the rendered prompt has 2 BOS"
