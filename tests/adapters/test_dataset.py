"""The dataset under verl's own dataloader code: same prompts as plain verl, identity, state."""

import json

import pytest

pytestmark = pytest.mark.verl


@pytest.fixture
def files(tmp_path):
    from verl_sara.adapters.carried import CARRIED

    CARRIED.prompts_consumed = 0
    import pandas as pd

    def write(count, name="train"):
        rows = [
            {
                "data_source": "countdown",
                "prompt": [{"role": "user", "content": f"{name} {i}"}],
                "reward_model": {"style": "rule", "ground_truth": json.dumps({"target": i, "numbers": [i]})},
                "extra_info": {"index": i},
            }
            for i in range(count)
        ]
        path = tmp_path / f"{name}.parquet"
        pd.DataFrame(rows).to_parquet(path)
        return path

    return write


def trainer(train, val, *overrides):
    """verl's V1 trainer as far as its dataloader goes."""
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from tests.adapters.scripted import compose_config

    one = PPOTrainerSync.__new__(PPOTrainerSync)
    one.config = compose_config(
        f"data.train_files={train}", f"data.val_files={val}", "data.train_batch_size=4", "data.seed=5",
        "data.dataloader_num_workers=0", "trainer.total_epochs=9", *overrides,
    )  # fmt: skip
    one.trainer_mode, one.parameter_sync_step, one.tokenizer, one.processor = "sync", 1, None, None
    one.global_steps = 1
    one._init_dataloader()
    return one


def prompts(batch):
    return [messages[0]["content"] for messages in batch["raw_prompt"]]


@pytest.mark.parametrize(("size", "batches"), [(12, 7), (14, 3)])
def test_uniform_reads_the_same_prompts_as_plain_verl(files, size, batches):
    """Any number of passes if B divides the size, else to the end of the first (plain verl drops the rest)."""
    train, val = files(size), files(3, "val")
    plain, ours = trainer(train, val), trainer(train, val, "+sara=uniform")
    for _ in range(batches):
        expected = prompts(plain._next_train_batch())
        assert prompts(ours._next_train_batch()) == expected and len(expected) == 4


def test_training_rows_have_a_stable_identity_and_validation_rows_are_untouched(files):
    train, val = files(6), files(3, "val")
    one = trainer(train, val, "+sara=paper")
    batch = one._next_train_batch(6)
    assert len(set(batch["prompt_id"])) == 6
    other = trainer(train, val, "+sara=paper", "data.seed=9")._next_train_batch(6)
    pairs = dict(zip(prompts(batch), batch["prompt_id"], strict=True))
    assert dict(zip(prompts(other), other["prompt_id"], strict=True)) == pairs
    assert "prompt_id" not in one.val_dataset[0] and one.val_dataset.state_dict() == {}


@pytest.mark.parametrize("taken", [3, 6, 8], ids=["mid-pass", "at the boundary", "second pass"])
def test_position_and_state_survive_a_checkpoint(files, taken):
    from verl_sara.adapters.carried import CARRIED

    train, val = files(6), files(3, "val")
    one = trainer(train, val, "+sara=paper")
    one._next_train_batch(taken)
    CARRIED.coordinator = {"commit_rate": {"committed": 0.1 + 0.2, "decided": 1.0, "decay": 0.8}, "empty_steps": 1}
    saved = one.train_dataloader.state_dict()
    expected = prompts(one._next_train_batch(9))
    consumed = CARRIED.prompts_consumed

    again = trainer(train, val, "+sara=paper")
    CARRIED.coordinator, CARRIED.prompts_consumed = {}, 0
    again.train_dataloader.load_state_dict(saved)
    assert prompts(again._next_train_batch(9)) == expected
    assert CARRIED.prompts_consumed == consumed
    assert CARRIED.take_restored() == {
        "commit_rate": {"committed": 0.1 + 0.2, "decided": 1.0, "decay": 0.8},
        "empty_steps": 1,
    }
    assert CARRIED.take_restored() is None


def test_fewer_prompts_than_a_batch_are_refused(files):
    from verl_sara.core import ConfigError

    with pytest.raises(ConfigError, match=r"hold 3 prompts, data\.train_batch_size is 4"):
        trainer(files(3), files(3, "val"), "+sara=paper")


def test_state_of_another_schema_is_refused():
    from verl_sara.adapters.carried import CarriedState

    with pytest.raises(ValueError, match="schema 7; this version reads 1"):
        CarriedState().load_state_dict({"schema": 7})


def finish_step(one, batch, mixed):
    """What the buffer does after a step: evidence of every group of the batch."""
    from verl_sara.adapters.carried import CARRIED
    from verl_sara.selection.evidence import GroupEvidence

    def evidence(name):
        if name in mixed:
            return GroupEvidence(name, 8, 4, 8, "effective", 1.0)
        return GroupEvidence(name, 5, 0, 8, "abandoned", 1 / 3)

    return CARRIED.end_step({}, [evidence(name) for name in batch["prompt_id"]], [])


@pytest.mark.parametrize("selection", ["uniform", "dps", "mopps"])
def test_a_selector_chooses_the_rows_and_resumes_exactly(files, selection):
    from verl_sara.adapters.carried import CARRIED

    train, val, chosen = files(20), files(3, "val"), ["+sara=paper", f"+sara/selection={selection}"]
    one = trainer(train, val, *chosen)
    mixed = set(one.train_dataset.ids[::2])

    def step(who):
        batch = who._next_train_batch(6)
        assert len(set(batch["prompt_id"])) == 6, "a prompt is twice in flight"
        numbers = finish_step(who, batch, mixed)
        assert numbers["sara/selection/never_visited_share"] <= 1.0
        return prompts(batch)

    for _ in range(5):
        step(one)
    saved = one.train_dataloader.state_dict()
    expected = [step(one) for _ in range(4)]
    again = trainer(train, val, *chosen)
    CARRIED.prompts_consumed = 0
    again.train_dataloader.load_state_dict(saved)
    assert [step(again) for _ in range(4)] == expected
    assert CARRIED.prompts_consumed == 54


def test_an_unknown_selection_parameter_is_refused(files):
    from verl_sara.core import ConfigError

    with pytest.raises(ConfigError, match=r"sara\.selection: selection 'dps' has no parameter decoy"):
        trainer(
            files(6), files(3, "val"), "+sara=paper", "+sara/selection=dps", "+data.custom_cls.sara.selection.decoy=1"
        )
