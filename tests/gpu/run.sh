#!/usr/bin/env bash
# Proves the GPU path in at most ten minutes on one GPU: the stock verl[vllm] stack, `paper` against `verl_ds`.
#
#   pip install -r requirements/gpu.txt && pip install -e ".[gpu]"
#   tests/gpu/run.sh [FOLDER]
#
# Trains the tiny Countdown model of recipes/countdown_tiny for a few steps an arm and checks both ledgers.
# MODEL=<path> takes another model (chat template and end token set), STEPS another number of steps.
set -Eeuo pipefail
cd "$(dirname "$0")/../.."

out=${1:-runs/gpu}
steps=${STEPS:-4}
task=$PWD/.cache/countdown_tiny
python recipes/countdown_tiny/prepare.py --out "$task"
export COUNTDOWN_TINY=$task

for arm in verl_ds paper; do
  rm -rf "${out:?}/$arm"
  mkdir -p "$out/$arm"
  VERL_FILE_LOGGER_PATH=$out/$arm/verl.attempt-1.jsonl timeout 270 \
    python -m verl.trainer.main_ppo --config-dir . +recipes/countdown_tiny=config "+sara=$arm" \
    trainer.nnodes=1 trainer.n_gpus_per_node=1 "trainer.total_training_steps=$steps" "trainer.test_freq=$steps" \
    "trainer.default_local_dir=$out/$arm" "trainer.experiment_name=$arm" \
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 actor_rollout_ref.rollout.agent.num_workers=2 \
    "actor_rollout_ref.model.path=${MODEL:-$task/model}" "hydra.run.dir=$out/$arm/hydra"
done

python - "$out" "$steps" <<'PY'
import sys
from pathlib import Path

from verl_sara.ledger import read_ledger

out, steps = Path(sys.argv[1]), int(sys.argv[2])
for arm in ("verl_ds", "paper"):
    ledger = read_ledger(out / arm)
    assert [step["step"] for step in ledger.history()] == list(range(1, steps + 1)), ledger.problems
    for group in ledger.groups:
        if group["fate"] == "trained":
            assert len(set(group["slots"]["outcome"])) == 2 and len(group["slots"]["outcome"]) == group["group_size"]
print("GPU path: both ledgers balance, every trained group is complete and mixed")
PY
sara report "$out/verl_ds" "$out/paper" --baseline verl_ds --out "$out/report"
