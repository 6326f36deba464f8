"""SARA's replay buffer, which also writes down the advantages that verl computes.

verl logs their mean and extremes over the batch only. The buffer is built in the trainer process before
the first step, so it can put a recorder around verl's function there; what verl does stays the same.
"""

import json
from pathlib import Path
from typing import Any

from verl.trainer.ppo.v1 import trainer_base

from verl_sara.adapters.replay_buffer import SaraReplayBuffer

FIELDS = ("advantages", "token_level_scores", "token_level_rewards", "values")


class RecordingReplayBuffer(SaraReplayBuffer):
    """Writes one `advantages.<step>.jsonl` a step into the run's folder: a line for every row of the batch."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        estimate = trainer_base.compute_advantage_for_multi_trajectories
        folder, step = Path(self.sara.run_dir).parent, 0

        def recorded(data: Any, batch_keys: list[str], **rest: Any) -> Any:
            nonlocal step
            result = estimate(data, batch_keys=batch_keys, **rest)
            step += 1
            with open(folder / f"advantages.{step}.jsonl", "w") as file:
                for row, key in enumerate(batch_keys):
                    mask = result.batch["response_mask"][row].bool()
                    line = {name: result.batch[name][row][mask].tolist() for name in FIELDS if name in result.batch}
                    file.write(json.dumps({"key": key, **line}) + "\n")
            return result

        trainer_base.compute_advantage_for_multi_trajectories = recorded
