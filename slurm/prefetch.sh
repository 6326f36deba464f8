#!/usr/bin/env bash
# Fetches model and data of recipes, on a node with network (a login node): slurm/prefetch.sh [RECIPE...]
# What is there already is kept. Jobs then run offline.
set -Eeuo pipefail
root=${SARA_ROOT:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)}
export SARA_ROOT=$root HF_HUB_OFFLINE=0 TRANSFORMERS_OFFLINE=0 HF_DATASETS_OFFLINE=0
cd "$root"
# shellcheck source=slurm/env.sh
. "$root/slurm/env.sh"
if (($# == 0)); then set -- math_r1_distill_1.5b countdown_qwen2.5_3b; fi

model() { # HUB_ID
  echo "sara: model $1 to $HF_HOME"
  sara_python -c 'import sys; from huggingface_hub import snapshot_download; print(snapshot_download(sys.argv[1]))' "$1"
}
data() { # FOLDER DATASET OPTIONS...
  local folder=$SARA_DATA/$1
  shift
  if [[ -e $folder/source.json ]]; then
    echo "sara: data $folder is there"
  else
    sara_python -m verl_sara.cli data "$@" --out "$folder"
  fi
}

for recipe in "$@"; do
  case ${recipe%%/*} in
    math_r1_distill_1.5b)
      model deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B
      data math math --test-source HuggingFaceH4/MATH-500
      data aime24 aime24
      ;;
    countdown_qwen2.5_3b | algorithms | ablations)
      model Qwen/Qwen2.5-3B
      data countdown countdown --train-size 2000 --test-size 512
      data countdown4 countdown --data-source countdown4 --sizes 4 --train-size 1 --test-size 512 --seed 1
      ;;
    countdown_tiny | arithmetic_smollm2) sara_python "recipes/${recipe%%/*}/prepare.py" ;;
    *) sara_die "recipe $recipe is unknown (allowed: $(cd recipes && printf '%s ' */))" 2 ;;
  esac
done
