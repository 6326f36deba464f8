"""The data sets: what is written, what is left out and reported, and what verl reads back."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from verl_sara.data import build, sources
from verl_sara.data.identity import prompt_id
from verl_sara.data.parquet import SchemaError, write_split
from verl_sara.data.rows import make_row

SAMPLES = Path(__file__).parent / "samples"
MATH = str(SAMPLES / "math.jsonl")
AIME24 = str(SAMPLES / "aime24.jsonl")
COUNTDOWN = str(SAMPLES / "countdown.jsonl")


def rows_of(path):
    return pq.read_table(path).to_pylist()


def jsonl(path, rows):
    path.write_text("".join(row if isinstance(row, str) else json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_math_from_one_file_holds_out_a_test_set(tmp_path):
    built = build.build_math(MATH, test_size=3)
    build.write(built, tmp_path)
    train, test = rows_of(tmp_path / "train.parquet"), rows_of(tmp_path / "test.parquet")
    assert (len(train), len(test)) == (9, 3)
    golds = {row["reward_model"]["ground_truth"] for row in train + test}
    assert {r"\frac{3}{4}", "1{,}024", r"25\%", r"[2,\infty)", r"\text{Wednesday}"} < golds
    assert build.build_math(MATH, test_size=3).splits["test"].rows == built.splits["test"].rows
    assert build.build_math(MATH, test_size=3, seed=1).splits["test"].rows != built.splits["test"].rows


def test_rows_have_verls_schema_without_chat_markup(tmp_path):
    build.write(build.build_math(MATH, test_size=3), tmp_path)
    for index, row in enumerate(rows_of(tmp_path / "train.parquet")):
        assert list(row) == ["data_source", "prompt", "ability", "reward_model", "extra_info"]
        assert row["data_source"] == "DigitalLearningGmbH/MATH-lighteval"
        [message] = row["prompt"]
        assert message["role"] == "user"
        assert message["content"].endswith("output the final answer within \\boxed{}.")
        assert row["reward_model"]["style"] == "rule"
        info = row["extra_info"]
        assert (info["split"], info["index"]) == ("train", index)
        assert info["prompt_id"] == prompt_id(
            row["prompt"], row["data_source"], row["reward_model"]["ground_truth"]
        )


def test_all_files_of_mathematics_have_one_schema(tmp_path):
    build.write(build.build_math(MATH, test_size=3), tmp_path / "math")
    build.write(build.build_aime24(AIME24), tmp_path / "aime")
    schemas = [
        pq.read_schema(tmp_path / name)
        for name in ("math/train.parquet", "math/test.parquet", "aime/test.parquet")
    ]
    assert schemas[0] == schemas[1] == schemas[2]


@pytest.mark.verl
def test_verls_loader_reads_and_concatenates_the_files(tmp_path):
    import datasets
    build.write(build.build_math(MATH, test_size=3), tmp_path / "math")
    build.write(build.build_aime24(AIME24), tmp_path / "aime")
    files = [str(tmp_path / name) for name in ("math/test.parquet", "aime/test.parquet")]
    parts = [
        datasets.load_dataset("parquet", data_files=file, cache_dir=str(tmp_path))["train"] for file in files
    ]
    merged = datasets.concatenate_datasets(parts)
    assert len(merged) == 33
    assert merged[0]["prompt"][0]["role"] == "user"


def test_sidecar_records_source_revision_and_checksums(tmp_path):
    build.write(build.build_math(MATH, test_size=3), tmp_path)
    facts = json.loads((tmp_path / "source.json").read_text())
    assert facts["dataset"] == "math"
    for name in ("train.parquet", "test.parquet"):
        entry = facts["files"][name]
        assert entry["sha256"] == sources.sha256(tmp_path / name)
        assert entry["source"]["source"] == MATH
        assert entry["source"]["sha256"] == {"math.jsonl": sources.sha256(Path(MATH))}


def test_repeats_are_counted_and_left_out(tmp_path):
    rows = [json.loads(line) for line in Path(AIME24).read_text().splitlines()]
    spaced = [{**row, "Problem": row["Problem"].replace(" ", "  ") + "\n"} for row in rows]
    built = build.build_aime24(jsonl(tmp_path / "aime.jsonl", (rows + spaced) * 16))
    prepared = built.splits["test"]
    assert (prepared.num_read, len(prepared.rows), prepared.num_repeats) == (960, 30, 930)
    assert (built.faults, built.problems) == ([], [])


@pytest.mark.parametrize("num_rows", [29, 31])
def test_aime24_has_thirty_problems(tmp_path, num_rows):
    rows = [{"problem": f"Number {n}?", "answer": n} for n in range(num_rows)]
    built = build.build_aime24(jsonl(tmp_path / "aime.jsonl", rows))
    assert built.faults == [f"AIME 2024 has 30 problems, this source has {num_rows} different ones"]
    with pytest.raises(build.DataError, match="AIME 2024 has 30 problems"):
        build.write(built, tmp_path / "out", is_strict=True)
    assert not (tmp_path / "out").exists()


def test_a_known_wrong_gold_answer_is_corrected_and_told(tmp_path):
    problem = (
        r"Define $f$ and $g$. Find the number of intersections of $y=4 g(f(\sin (2 \pi x)))$ and its mirror."
    )
    built = build.build_aime24(jsonl(tmp_path / "aime.jsonl", [{"problem": problem, "answer": "384"}]))
    [row] = built.splits["test"].rows
    assert row["reward_model"]["ground_truth"] == "385"
    assert "384" in str(built.splits["test"].notes[0])


FAULTY = [
    ({"problem": "No gold"}, "gold answer is missing"),
    ({"problem": "Null", "answer": None}, "gold answer is missing"),
    ('{"problem": "NaN", "answer": NaN}\n', "gold answer is missing"),
    ({"problem": "Blank", "answer": "  "}, "gold answer is missing"),
    ({"problem": "List", "answer": ["1"]}, r"gold answer is \['1'\]"),
    ({"problem": "Bool", "answer": True}, "gold answer is True"),
    ({"problem": "", "answer": "1"}, "problem is missing or empty"),
    ({"problem": None, "answer": "1"}, "problem is missing or empty"),
    ({"problem": 5, "answer": "1"}, "problem is 5"),
    ({"answer": "1"}, "the problem is missing"),
    ({"problem": "Unboxed", "solution": "It is 5."}, r"no \\boxed"),
    ({"prompt": [], "answer": "1"}, "prompt is missing or empty"),
    ({"prompt": [{"role": "human", "content": "x"}], "answer": "1"}, "role 'human'"),
    ({"prompt": [{"role": "user", "content": ""}], "answer": "1"}, "empty or non-text content"),
    ({"prompt": [{"role": "user", "content": "<|im_start|>user\nx"}], "answer": "1"}, "chat markup"),
    ({"prompt": [{"role": "user", "content": "<｜User｜>x"}], "answer": "1"}, "chat markup"),
    ("not json\n", "not JSON"),
    ("[1, 2]\n", "not an object"),
    ({"problem": "Good", "answer": "2"}, "after '1' for one prompt"),
]


def test_every_kind_of_bad_row_is_reported_with_its_number(tmp_path):
    good = {"problem": "Good", "answer": "1"}
    path = jsonl(tmp_path / "bad.jsonl", [good] + [row for row, _ in FAULTY])
    built = build.build_math(path, test_size=0)
    assert len(built.splits["train"].rows) == 1
    found = {problem.row: str(problem) for problem in built.problems}
    assert sorted(found) == list(range(2, len(FAULTY) + 2))
    for number, (_, expected) in enumerate(FAULTY, start=2):
        assert re.search(expected, found[number]), (number, found[number])


def test_strict_writes_nothing_if_a_row_is_faulty(tmp_path):
    path = jsonl(tmp_path / "bad.jsonl", [{"problem": "Good", "answer": "1"}, {"problem": "No gold"}])
    built = build.build_math(path, test_size=0)
    with pytest.raises(build.DataError, match="1 faulty row"):
        build.write(built, tmp_path / "out", is_strict=True)
    assert not (tmp_path / "out").exists()
    build.write(built, tmp_path / "out")
    assert (
        len(json.loads((tmp_path / "out/source.json").read_text())["files"]["train.parquet"]["faulty"]) == 1
    )


def test_test_prompts_are_taken_out_of_the_training_rows(tmp_path):
    folder = tmp_path / "source"
    folder.mkdir()
    jsonl(folder / "train.jsonl", [{"problem": f"Number {n}?", "answer": n} for n in range(10)])
    jsonl(folder / "test.jsonl", [{"problem": f"Number  {n}?", "answer": n} for n in range(8, 12)])
    built = build.build_math(str(folder))
    assert [len(built.splits[split].rows) for split in ("train", "test")] == [8, 4]
    assert "2 training prompts left out" in built.notes[0]
    assert [row["extra_info"]["index"] for row in built.splits["train"].rows] == list(range(8))


def test_a_column_split_decides_what_is_held_out(tmp_path):
    rows = [
        {"problem": f"Number {n}?", "answer": n, "split": "test" if n < 2 else "train"} for n in range(10)
    ]
    built = build.build_math(jsonl(tmp_path / "m.jsonl", rows))
    assert [row["reward_model"]["ground_truth"] for row in built.splits["test"].rows] == ["0", "1"]


def test_files_written_by_us_are_a_source_too(tmp_path):
    build.write(build.build_math(MATH, test_size=3), tmp_path / "first")
    build.write(build.build_math(str(tmp_path / "first")), tmp_path / "second")
    for name in ("train.parquet", "test.parquet"):
        first, second = rows_of(tmp_path / "first" / name), rows_of(tmp_path / "second" / name)
        assert [row["extra_info"]["prompt_id"] for row in first] == [
            row["extra_info"]["prompt_id"] for row in second
        ]


def test_countdown_has_the_published_sizes_and_disjoint_splits():
    built = build.build_countdown()
    train, test = built.splits["train"].rows, built.splits["test"].rows
    assert (len(train), len(test)) == (2000, 512)
    keys = [
        (tuple(sorted(gold["numbers"])), gold["target"])
        for row in train + test
        for gold in [row["reward_model"]["ground_truth"]]
    ]
    assert len(set(keys)) == 2512
    assert {len(numbers) for numbers, _ in keys} == {3, 4}
    assert all("every number exactly once" in row["prompt"][0]["content"] for row in train)


def test_countdown_from_a_source_proves_every_problem(tmp_path):
    lines = [
        *Path(COUNTDOWN).read_text().splitlines(keepends=True),
        '{"target": 97, "nums": [1, 1, 1]}\n',
        '{"target": 3}\n',
    ]
    built = build.build_countdown(jsonl(tmp_path / "c.jsonl", lines), train_size=6, test_size=2)
    build.write(built, tmp_path)
    assert len(rows_of(tmp_path / "train.parquet")) == 6
    assert len(rows_of(tmp_path / "test.parquet")) == 2
    assert {problem.row: problem.what[:9] for problem in built.problems} == {9: "[1, 1, 1]", 10: "Countdown"}


def test_gold_against_gold_counts_what_does_not_equal_itself():
    good = make_row(prompt="p", data_source="math", ground_truth="1/2", ability="math", split="test", index=0)
    bad = make_row(prompt="q", data_source="math", ground_truth="", ability="math", split="test", index=1)
    unsolvable = {"target": 97, "numbers": [1, 1, 1]}
    game = make_row(
        prompt="r", data_source="countdown", ground_truth=unsolvable, ability="x", split="test", index=2
    )
    assert build.gold_against_gold([good, bad, game]) == 1


def test_write_split_refuses_rows_of_another_shape(tmp_path):
    row = make_row(prompt="p", data_source="math", ground_truth="1", ability="math", split="test", index=0)
    path = tmp_path / "x.parquet"
    for broken, match in [
        ([], "no rows"),
        ([{**row, "extra_info": None}], "extra_info is missing"),
        ([{**row, "extra_info": {**row["extra_info"], "prompt_id": "0"}}], "prompt_id is '0'"),
        ([row, row], "same problem as row 1"),
        ([{**row, "prompt": "text"}], "non-empty list of messages"),
        (
            [{**row, "reward_model": {"style": "rule", "ground_truth": float("nan")}}],
            "ground_truth is missing",
        ),
    ]:
        with pytest.raises(SchemaError, match=match):
            write_split(broken, path)
    assert list(tmp_path.iterdir()) == []
    assert write_split([row], path) == 1


@pytest.mark.parametrize("source", ["nowhere.jsonl", "./folder", "/a/b/c", "a/b/c"])
def test_a_missing_file_is_not_taken_for_a_hub_id(source):
    with pytest.raises(sources.SourceError, match="no such file or folder"):
        sources.read(source, "train")


@pytest.mark.verl
def test_without_network_the_hub_path_says_what_to_pass(monkeypatch):
    import datasets
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(sources.SourceError, match="pass --source with a local parquet or JSONL file"):
        sources.read("verl-sara/no-such-data-set", "train")


@pytest.mark.verl
def test_the_hub_path_reads_rows_and_records_the_commit(monkeypatch):
    import datasets
    data = datasets.Dataset.from_list(
        [{"problem": "One?", "answer": "1"}, {"problem": "Two?", "answer": "2"}]
    )
    data.info.download_checksums = {
        "hf://datasets/owner/name@c0ffee/data.parquet": {"num_bytes": 1, "checksum": "ab"}
    }
    asked = []

    def load_dataset(name, *, split, revision):
        asked.append((name, split, revision))
        return datasets.DatasetDict(train=data) if split is None else data

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    built = build.build_math("owner/name", test_source=MATH, revision="main")
    assert len(built.splits["train"].rows) == 2
    assert built.provenance["train"]["revision"] == "c0ffee"
    assert len(build.build_aime24("owner/name").splits["test"].rows) == 2
    assert asked == [("owner/name", "train", "main"), ("owner/name", None, None)]
