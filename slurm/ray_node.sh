#!/usr/bin/env bash
# Ray on one node of a job, until it is stopped: ray_node.sh INDEX HEAD_ADDRESS, run by srun.
# Every port is given: Ray's own defaults are fixed numbers, and another job may be on the node.
set -Eeuo pipefail
# shellcheck source=slurm/env.sh
. "$SARA_ROOT/slurm/env.sh"
index=$1 address=$2
sara_temp "-$index"
read -ra free < <(sara_python -m verl_sara.cli.launch ports "$SLURM_JOB_ID" "$((index + 1))" 7)
options=(
  --node-ip-address="$(sara_ip)" --num-cpus="${SARA_RAY_CPUS:-$SARA_CPUS}"
  --num-gpus="${SARA_RAY_GPUS:-$(sara_python -m verl_sara.cli.launch gpus)}"
  --node-manager-port="${free[0]}" --object-manager-port="${free[1]}" --dashboard-agent-listen-port="${free[2]}"
  --dashboard-agent-grpc-port="${free[3]}" --runtime-env-agent-port="${free[4]}" --metrics-export-port="${free[5]}"
  --min-worker-port=0 --max-worker-port=0 --temp-dir="$temp" --disable-usage-stats --block
)
if ((index == 0)); then
  options+=(--head --port="${address##*:}" --ray-client-server-port="${free[6]}" --include-dashboard=false)
  attempts=3 # on a busy machine Ray gives up on its own agents
else
  options+=(--address="$address")
  attempts=10
fi
ray=0
trap 'if ((ray)); then kill -TERM "$ray" 2>/dev/null || true; wait "$ray" || true; fi; rm -rf "$temp"' EXIT
trap 'exit 143' TERM INT
for ((try = 1; try <= attempts; try++)); do
  began=$SECONDS
  sara_python -m ray.scripts.scripts start "${options[@]}" &
  ray=$!
  status=0
  wait "$ray" || status=$?
  ray=0
  ((SECONDS - began < 30)) || break # it had started, and ended later
  sleep 1
done
exit "$((status ? status : 1))"
