"""Ranked selection through verl's own loading code, real Ray and TransferQueue, with scripted answers.

A run that is interrupted after a checkpoint and resumed from verl's `data.pt` selects what a run does that
never stopped.
"""

import json
from collections import Counter
from functools import partial

import pytest

from tests.adapters.test_dataset import trainer

pytestmark = pytest.mark.verl

STEPS, SAVED_AFTER, PROMPTS = 6, 3, 20


@pytest.fixture
def files(tmp_path):
    """Training and validation file."""
    import pandas as pd

    rows = [
        {
            "data_source": "scripted",
            "prompt": [{"role": "user", "content": f"prompt {i}"}],
            "reward_model": {"style": "rule", "ground_truth": json.dumps({"target": i})},
            "extra_info": {"index": i},
        }
        for i in range(PROMPTS)
    ]
    paths = tmp_path / "train.parquet", tmp_path / "val.parquet"
    for path in paths:
        pd.DataFrame(rows).to_parquet(path)
    return paths


class Run:
    """A process's part of a run: verl's trainer with its data loader, and the scripted host in vLLM's place."""

    def __init__(self, host, files, run_dir, overrides):
        from verl_sara.adapters.carried import CARRIED

        self.host = host("+sara=paper", run_dir=run_dir)  # forgets what a run before it carried
        CARRIED.prompts_consumed = 0
        self.trainer = trainer(*files, "+sara=paper", *overrides)
        self.trainer.agent_loop_manager = self.host.manager
        self.host.submit = self.host.buffer.refill_fn = self.trainer._add_prompts_to_generate

    def run_until(self, last, checkpoints):
        """Runs steps up to `last`, saving verl's data.pt after each."""
        import torch

        while self.host.step < last:
            self.trainer.global_steps = self.host.step + 1
            batch, _ = self.host.run_step()
            self.host.end_step(batch)
            torch.save(self.trainer.train_dataloader.state_dict(), checkpoints / f"{self.host.step}.pt")

    def resume(self, checkpoint, step):
        """verl's own restoring of the data loader."""
        self.host.step = step
        self.trainer.train_dataloader.load_state_dict(load(checkpoint))


def load(checkpoint):
    import torch

    return torch.load(checkpoint, weights_only=False)


def selections(run):
    """The prompts of each step of the history, in dispatch order, with the outcomes of their rollouts."""
    ledger = run.host.ledger()
    steps = [(step["step"], step["attempt"]) for step in ledger.history()]
    groups = sorted(ledger.groups, key=lambda group: group["index"])
    return [
        [(g["prompt_id"], g["slots"]["outcome"]) for g in groups if (g["step"], g["attempt"]) == step]
        for step in steps
    ]


@pytest.fixture(params=[("dps", 0.5), ("mopps", 0.5), ("dps", 1.0)], ids=["dps", "mopps", "passes alone"])
def runs(request, host, files, tmp_path):
    """(whole run, resumed run, folders of their checkpoints)."""
    name, explore = request.param
    overrides = [f"+sara/selection={name}", f"data.custom_cls.sara.selection.explore_fraction={explore}"]
    folders = tmp_path / "whole", tmp_path / "killed"
    for folder in folders:
        folder.mkdir()
    start = partial(Run, host, files, overrides=overrides)
    whole = start(folders[0])
    whole.run_until(STEPS, folders[0])
    whole.host.close()
    killed = start(folders[1])
    killed.run_until(SAVED_AFTER, folders[1])
    killed.host.step += 1
    killed.host.submit(4)  # step 4 has begun when the run dies
    killed.host.close()
    resumed = start(folders[1])
    resumed.resume(folders[1] / f"{SAVED_AFTER}.pt", SAVED_AFTER)
    return whole, resumed, *folders


def test_a_resumed_run_selects_what_an_uninterrupted_one_does(runs):
    from tests.selection.selection_builders import assert_same_state

    whole, resumed, whole_folder, folder = runs
    saved = load(folder / f"{SAVED_AFTER}.pt")
    iter(resumed.trainer.train_dataloader)
    assert_same_state(resumed.trainer.train_dataset.state_dict(), saved["dataset_state"])
    resumed.resume(folder / f"{SAVED_AFTER}.pt", SAVED_AFTER)
    assert_same_state(resumed.trainer.train_dataloader.state_dict(), saved)

    resumed.run_until(STEPS, folder)
    assert selections(resumed) == selections(whole)
    assert [step["attempt"] for step in resumed.host.ledger().history()] == [1] * 3 + [2] * 3
    for step in range(1, STEPS + 1):
        assert_same_state(load(folder / f"{step}.pt"), load(whole_folder / f"{step}.pt"))

    state = resumed.trainer.train_dataset.state_dict()["selection"]
    by_number = [resumed.trainer.train_dataset.ids[row] for row in resumed.trainer.train_dataset.selector._index.rows]
    passes = state["passes"]
    owed = Counter(by_number[number] for number in (*passes["order"], *passes["deferred"]))
    visits = Counter(prompt for step in selections(resumed) for prompt, outcomes in step if outcomes)
    served = {prompt: passes["num_started"] - owed[prompt] for prompt in by_number}
    assert passes["num_started"] > 1, "no pass ended within the run"
    if state["params"]["explore_fraction"] == 1.0:
        assert served == {prompt: visits[prompt] for prompt in by_number}
    assert all(served[prompt] <= visits[prompt] for prompt in by_number), "a pass skipped a prompt"
