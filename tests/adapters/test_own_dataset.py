"""A user's own dataset class beneath ours, through verl's own loading code."""

import asyncio
import copy
import pickle
from functools import partial

import pytest

from tests.adapters.test_dataset import files, prompts, trainer  # noqa: F401  (a fixture)

pytestmark = pytest.mark.verl

OWN = '''
from verl.utils.dataset.rl_dataset import RLHFDataset

class Mine(RLHFDataset):
    """Keeps even targets, adds a column, counts what was read, and reads images its own way."""

    def maybe_filter_out_long_prompts(self, dataframe=None):
        return dataframe.filter(lambda row: row["extra_info"]["index"] % 2 == 0)

    def __init__(self, *args, **kwargs):
        self.num_read = 0
        super().__init__(*args, **kwargs)
        self.first = self[0]["extra_info"]["index"]

    def __getitem__(self, item):
        self.num_read += 1
        return {**super().__getitem__(item), "hint": f"hint {item}"}

    def state_dict(self):
        return {"num_read": self.num_read}

    def load_state_dict(self, state):
        self.num_read = state["num_read"]

    @classmethod
    async def process_multi_modal_info(cls, messages, image_patch_size, config):
        return cls.__name__, None, None

class OwnRows(RLHFDataset):
    """Every prompt twice."""

    def __len__(self):
        return 2 * len(self.dataframe)

    def __getitem__(self, item):
        row = super().__getitem__(item // 2)
        return {**row, "raw_prompt": row.pop("prompt")}

class NotOne:
    pass
'''


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(OWN)
    return path


def based(path, name="Mine"):
    return [f"data.custom_cls.sara.base.path={path}", f"data.custom_cls.sara.base.name={name}"]


@pytest.mark.parametrize("arm", ["uniform", "paper"])
def test_its_rows_filter_and_columns_are_kept(files, own, arm):  # noqa: F811
    train, val = files(24), files(4, "val")
    plain = trainer(train, val, f"data.custom_cls.path={own}", "data.custom_cls.name=Mine")
    ours = trainer(train, val, f"+sara={arm}", *based(own))
    assert len(ours.train_dataset) == 12 and len(ours.val_dataset) == 2
    assert ours.train_dataset.first == 0
    for _ in range(6):  # two passes
        expected, batch = plain._next_train_batch(), ours._next_train_batch()
        assert prompts(batch) == prompts(expected) and list(batch["hint"]) == list(expected["hint"])
        assert len(set(batch["prompt_id"])) == 4
    row = ours.val_dataset[1]
    assert row["hint"] == "hint 1" and "prompt_id" not in row


@pytest.mark.parametrize("selection", [[], ["+sara/selection=dps"]], ids=["verl", "dps"])
def test_its_state_is_resumed_beside_ours(files, own, selection):  # noqa: F811
    train, val = files(24), files(4, "val")
    start = partial(trainer, train, val, "+sara=paper", *based(own), *selection)
    one = start()
    one._next_train_batch()
    saved = one.train_dataloader.state_dict()
    num_read = one.train_dataset.num_read
    expected = prompts(one._next_train_batch(7))
    again = start()
    again.train_dataloader.load_state_dict(saved)
    iter(again.train_dataloader)
    assert again.train_dataset.num_read == num_read
    again.train_dataloader.load_state_dict(saved)
    assert prompts(again._next_train_batch(7)) == expected


def test_its_state_from_a_run_without_sara_is_resumed(files, own, capfd):  # noqa: F811
    train, val = files(24), files(4, "val")
    plain = trainer(train, val, f"data.custom_cls.path={own}", "data.custom_cls.name=Mine")
    plain._next_train_batch()
    ours = trainer(train, val, "+sara=paper", *based(own))
    ours.train_dataloader.load_state_dict(plain.train_dataloader.state_dict())
    ours._next_train_batch()
    assert ours.train_dataset.num_read == plain.train_dataset.num_read + 4
    said = capfd.readouterr().out
    assert "the checkpoint holds no SARA state" in said and "the pass over the data starts again" in said


def test_a_class_whose_rows_are_not_those_of_the_file(files, own):  # noqa: F811
    one = trainer(files(6), files(2, "val"), "+sara=paper", *based(own, "OwnRows"))
    ids = list(one._next_train_batch(12)["prompt_id"])
    assert len(set(ids)) == 12 and {i + "#2" for i in ids if "#" not in i} == {i for i in ids if "#" in i}


def test_a_class_derived_from_ours_is_taken_as_it_is(files, tmp_path):  # noqa: F811
    path = tmp_path / "derived.py"
    path.write_text(
        "from verl_sara.adapters.dataset import SaraDataset\n"
        "class Derived(SaraDataset):\n"
        "    def __getitem__(self, item):\n"
        "        return {**super().__getitem__(item), 'mark': 1}\n"
    )
    named = [f"data.custom_cls.path={path}", "data.custom_cls.name=Derived"]
    for overrides in (named, based(path, "Derived")):
        batch = trainer(files(6), files(2, "val"), "+sara=paper", *overrides)._next_train_batch()
        assert set(batch["mark"]) == {1} and len(set(batch["prompt_id"])) == 4


def test_the_joined_class_is_pickled_by_what_it_is_joined_of(files, own):  # noqa: F811
    one = trainer(files(12), files(2, "val"), "+sara=paper", *based(own))
    for other in (pickle.loads(pickle.dumps(one.train_dataset)), copy.copy(one.train_dataset)):
        assert type(other) is type(one.train_dataset) and other.ids == one.train_dataset.ids
    plain = trainer(files(12), files(2, "val"), "+sara=paper").train_dataset
    assert type(pickle.loads(pickle.dumps(plain))) is type(plain)


def test_the_rollout_workers_read_images_as_the_class_does(own):
    from verl.utils.dataset.rl_dataset import get_dataset_class

    from tests.adapters.scripted import compose_config
    from verl_sara.adapters.own_dataset import with_base

    data = compose_config("+sara=paper", *based(own)).data
    images, *_ = asyncio.run(with_base(get_dataset_class(data), data).process_multi_modal_info([], 14, data))
    assert images == "SaraDatasetOfMine"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NotOne", r"base is .*mine\.py:NotOne, which does not derive from RLHFDataset; allowed: path, a file or pkg"),
        ("Absent", r"base is .*mine\.py:Absent \(AttributeError: .*\); allowed"),
        ("null", r"base is .*mine\.py:None \(AttributeError"),
    ],
)
def test_a_base_that_is_none_is_named(files, own, name, message):  # noqa: F811
    from verl_sara.core import ConfigError

    with pytest.raises(ConfigError, match=r"data\.custom_cls\.sara\." + message):
        trainer(files(6), files(2, "val"), "+sara=paper", *based(own, name))


def test_a_group_size_of_its_own_per_prompt_is_refused(files, tmp_path):  # noqa: F811
    from verl_sara.core import ConfigError

    path = tmp_path / "sized.py"
    path.write_text(
        "from verl.utils.dataset.rl_dataset import RLHFDataset\n"
        "class Sized(RLHFDataset):\n"
        "    def __getitem__(self, item):\n"
        "        return {**super().__getitem__(item), '__rollout_n__': 4}\n"
    )
    one = trainer(files(6), files(2, "val"), "+sara=paper", *based(path, "Sized"))
    with pytest.raises(ConfigError, match="__rollout_n__ 4, which has no effect with SARA"):
        one._next_train_batch()
