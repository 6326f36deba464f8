"""Real `main_ppo` on CPU: `+sara=paper` on a ranked stream, killed after step 3's checkpoint, resumed to step 6.

The ledger of the two attempts is replayed through a selector that never stopped: it has to choose the same
prompts, and to reach, bit for bit, the states in verl's checkpoints.
"""

import json
from itertools import product

import pytest
from killed_runs import TASK, kill_and_resume

from verl_sara.core import BetaPrior, prob_effective
from verl_sara.selection import GroupEvidence, build_selector

STEPS, KILLED_AFTER, PROMPTS, EXPLORE = 6, 3, 64, 0.5
pytestmark = [pytest.mark.verl, pytest.mark.e2e]


@pytest.fixture(scope="module", params=["dps", pytest.param("mopps", marks=pytest.mark.full)])
def run(request, tmp_path_factory):
    """(selection, folder) of a run on few prompts, half of them explored: a pass ends within it."""
    options = [
        f"+sara/selection={request.param}", f"data.custom_cls.sara.selection.explore_fraction={EXPLORE}",
        f"data.train_max_samples={PROMPTS}",
    ]  # fmt: skip
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, kill_and_resume("paper", folder, options, steps=STEPS, killed_after=KILLED_AFTER)


@pytest.fixture(scope="module")
def ledger(run):
    from verl_sara.ledger import read_ledger

    return read_ledger(run[1] / "sara")


@pytest.fixture(scope="module")
def loader(run):
    """verl's own data loader on the run's prompts, and the states that its checkpoints hold, by step."""
    import torch

    from tests.adapters.test_dataset import trainer

    selection, folder = run
    one = trainer(
        TASK / "train.parquet", TASK / "val.parquet", "+sara=paper", f"+sara/selection={selection}",
        f"data.custom_cls.sara.selection.explore_fraction={EXPLORE}", f"data.train_max_samples={PROMPTS}",
        "data.train_batch_size=8", "data.seed=1",
    )  # fmt: skip
    saved = {
        step: torch.load(folder / f"global_step_{step}/data.pt", weights_only=False) for step in (KILLED_AFTER, STEPS)
    }
    return one, saved


def groups_of(ledger, step):
    """The groups of a step that became history, in dispatch order."""
    key = (step["step"], step["attempt"])
    return sorted((g for g in ledger.groups if (g["step"], g["attempt"]) == key), key=lambda group: group["index"])


def evidence(group):
    """What the group's line in the ledger says about its prompt."""
    seen = [outcome for outcome in group["slots"]["outcome"] if outcome is not None]
    passed, k = sum(seen), group["group_size"]
    chance = prob_effective(len(seen), passed, group_size=k, prior=BetaPrior(*group["prior"]))
    verdict = "effective" if 0 < passed < len(seen) else "solved" if passed else "unsolved"
    if not seen or group["fate"] == "failed":
        verdict, seen, passed = "unobserved", [], 0
    elif verdict != "effective" and len(seen) < k:
        verdict = "abandoned"
    return GroupEvidence(group["prompt_id"], len(seen), passed, k, verdict, chance)


def test_the_killed_run_continues_after_its_checkpoint_as_one_history(run, ledger):
    expected = [(step, 1 if step <= KILLED_AFTER else 2) for step in range(1, STEPS + 1)]
    assert [(step["step"], step["attempt"]) for step in ledger.history()] == expected
    assert (run[1] / "latest_checkpointed_iteration.txt").read_text() == str(STEPS)
    restored = f"selection restored: RestoreReport(num_restored={PROMPTS}, num_new=0, num_vanished=0)"
    assert restored in (run[1] / "console.log").read_text(errors="replace")
    assert restored not in (run[1] / "console.attempt-1.log").read_text(errors="replace")


def test_the_selectors_numbers_reach_verls_log(run):
    from verl_sara.selection.evidence import CLASSES

    lines = [json.loads(line) for line in (run[1] / "verl.attempt-2.jsonl").read_text().splitlines()]
    by_step = {line["step"]: line["data"] for line in lines}
    names = ["accuracy", "mixed_precision", "mixed_recall", "mixed_f1", "predicted_entropy"]
    names += [f"confusion/{guess}_is_{truth}" for guess, truth in product(CLASSES, repeat=2)]
    for step in range(KILLED_AFTER + 1, STEPS + 1):
        numbers = {name: by_step[step][f"sara/selection/prediction/{name}"] for name in names}
        assert sum(value for name, value in numbers.items() if name.startswith("confusion/")) == pytest.approx(1.0)
        assert by_step[step]["sara/selection/stale_mixed_share"] == 0.0
        assert by_step[step]["sara/effective_fraction"] == 1.0


def test_a_restored_checkpoint_saves_the_same_bits_again(loader):
    from tests.selection.selection_builders import assert_same_state

    one, saved = loader
    for state in saved.values():
        one.train_dataloader.load_state_dict(state)
        iter(one.train_dataloader)
        assert_same_state(one.train_dataloader.state_dict(), state)


def test_selections_and_checkpoints_are_those_of_a_run_that_never_stopped(run, ledger, loader):
    from tests.selection.selection_builders import assert_same_state

    one, saved = loader
    ids, reached = one.train_dataset.ids, {}
    selector = build_selector(run[0], ids, explore_fraction=EXPLORE)
    for step in ledger.history():
        groups = groups_of(ledger, step)
        assert [ids[row] for row in selector.select(len(groups))] == [group["prompt_id"] for group in groups]
        selector.release([group["prompt_id"] for group in groups if not group["slots"]["outcome"]])
        selector.observe([evidence(group) for group in groups if group["slots"]["outcome"]])
        selector.end_step()
        reached[step["step"]] = selector.state_dict()
    for step, state in saved.items():
        assert_same_state(state["dataset_state"]["selection"], reached[step])


def test_no_prompt_of_a_pass_is_skipped_or_repeated(ledger, loader):
    one, saved = loader
    steps = ledger.history()
    for last, state in saved.items():
        state, visits = state["dataset_state"]["selection"], dict.fromkeys(one.train_dataset.ids, 0)
        for group in (group for step in steps[:last] for group in groups_of(ledger, step)):
            visits[group["prompt_id"]] += bool(group["slots"]["outcome"])
        by_number = [one.train_dataset.ids[row] for row in one.train_dataset.selector._index.rows]
        passes = state["passes"]
        owed = [by_number[number] for number in (*passes["order"], *passes["deferred"])]
        served = {prompt: passes["num_started"] - owed.count(prompt) for prompt in visits}
        assert all(0 <= served[prompt] <= visits[prompt] for prompt in visits), "a pass skipped a prompt"
        launched, drawn = sum(visits.values()), state["num_drawn"]
        assert launched == drawn - state["num_released"]
        assert int(drawn * EXPLORE) - state["num_released"] <= sum(served.values()) <= int(drawn * EXPLORE)
    assert passes["num_started"] >= 2, "no pass ended within the run"
