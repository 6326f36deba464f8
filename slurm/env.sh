# shellcheck shell=bash
# Settings and functions of the batch scripts; sourced by each of them and by every srun step, before Ray
# starts, since Ray hands its own environment on and verl adds little to it. Bash 4.4 or newer.
#
# A site sets what differs in slurm/site.sh (not part of the project), which is sourced from here; every
# setting may come from the environment as well.

: "${SARA_ROOT:=${SLURM_SUBMIT_DIR:-$PWD}}"
CONTAINER=() # words before every Python command, such as (apptainer exec --nv --bind /data /images/verl.sif)
if [[ -r "${SARA_SITE:-$SARA_ROOT/slurm/site.sh}" ]]; then
  # shellcheck source=/dev/null
  . "${SARA_SITE:-$SARA_ROOT/slurm/site.sh}"
fi
if [[ -z "${SARA_PYTHON:-}" ]]; then
  SARA_PYTHON=$SARA_ROOT/.venv/bin/python
  [[ -x $SARA_PYTHON ]] || SARA_PYTHON=python3
fi
: "${SARA_RUNS:=$SARA_ROOT/runs}"          # run folders: RECIPE/ARM/seedN
: "${SARA_DATA:=$SARA_ROOT/data}"          # parquet files of prefetch.sh
: "${SARA_TMP:=/tmp}"                      # node-local; a short path, since Ray's sockets lie below it
: "${SARA_IFACE:=}"                        # network interface of Ray, such as ib0; empty = by host name
: "${SARA_GRACE:=60}"                      # seconds a training gets to end after a signal
: "${SARA_JOIN_TIMEOUT:=300}"              # seconds for all nodes to join Ray
: "${SARA_MAX_RESTARTS:=20}"               # requeues after which a job that meets its time limit fails
: "${SARA_MIN_FREE_GB:=5}"                 # free disk space below which nothing is started
: "${HF_HOME:=$SARA_ROOT/.cache/huggingface}"
# compute nodes often have no network, and a look-up that hangs costs more than it gives
: "${HF_HUB_OFFLINE:=1}" "${TRANSFORMERS_OFFLINE:=1}" "${HF_DATASETS_OFFLINE:=1}" "${WANDB_MODE:=offline}"
export SARA_ROOT SARA_PYTHON SARA_RUNS SARA_DATA SARA_TMP SARA_IFACE SARA_GRACE SARA_JOIN_TIMEOUT
export HF_HOME HF_HUB_OFFLINE TRANSFORMERS_OFFLINE HF_DATASETS_OFFLINE WANDB_MODE
export PYTHONUNBUFFERED=1 RAY_USAGE_STATS_ENABLED=0 VLLM_NO_USAGE_STATS=1
# of this node, so not exported; nproc alone takes OMP_NUM_THREADS for it
SARA_CPUS=${SLURM_CPUS_PER_TASK:-${SLURM_CPUS_ON_NODE:-$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)}}
unset RAY_ADDRESS # an inherited one is somebody else's cluster
if [[ -n "${CUDA_VISIBLE_DEVICES:-}${HIP_VISIBLE_DEVICES:-}" ]]; then unset ROCR_VISIBLE_DEVICES; fi
if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK; fi

sara_die() { # MESSAGE [STATUS]
  printf 'sara: %s\n' "$1" >&2
  exit "${2:-1}"
}

sara_python() { "${CONTAINER[@]}" "$SARA_PYTHON" "$@"; }

sara_ask() { # QUESTION ...: what `python -m verl_sara.cli.launch` answers about the run
  local question=$1
  shift
  sara_python -m verl_sara.cli.launch "$question" --root "$SARA_ROOT" --runs "$SARA_RUNS" "$recipe" "$arm" "$seed" "$@"
}

# sara_arguments RECIPE [ARMS [SEEDS]] [-- OVERRIDES...]: sets recipe, arm, seed, extra. With several
# arms and seeds (words in one argument) the task of the job array picks one; the seed changes fastest.
sara_arguments() {
  signalled='' # set from here on, acted on in sara_supervise
  trap 'signalled=USR1' USR1
  trap 'signalled=TERM' TERM INT
  local -a words=() arms seeds
  while (($#)) && [[ $1 != -- ]]; do
    words+=("$1")
    shift
  done
  if (($#)); then shift; fi
  extra=(-- "$@")
  ((${#words[@]} >= 1 && ${#words[@]} <= 3)) || sara_die "arguments are RECIPE [ARMS [SEEDS]] [-- OVERRIDES...]" 2
  recipe=${words[0]}
  read -ra arms <<<"${words[1]:-paper}"
  read -ra seeds <<<"${words[2]:-0}"
  local index=${SLURM_ARRAY_TASK_ID:-0} count=$((${#arms[@]} * ${#seeds[@]}))
  ((count == 1)) || [[ -n "${SLURM_ARRAY_TASK_ID:-}" ]] || sara_die "$count runs need --array=0-$((count - 1))" 2
  ((index < count)) || sara_die "task $index of the array, but there are $count runs: --array=0-$((count - 1))" 2
  arm=${arms[index / ${#seeds[@]}]}
  seed=${seeds[index % ${#seeds[@]}]}
}

# Sets run, attempt, reached, asked, checkpoint; makes and locks the run folder; exports what the recipe needs.
sara_open_run() {
  local -a facts
  local answer
  # shellcheck disable=SC1090
  answer=$(sara_ask env) && . /dev/stdin <<<"$answer" || exit 2
  answer=$(mktemp)
  sara_ask where "${extra[@]}" >"$answer" || exit 2
  mapfile -d '' -t facts <"$answer"
  rm -f "$answer"
  # shellcheck disable=SC2034 # some are for the scripts
  run=${facts[0]} attempt=${facts[1]} reached=${facts[2]} asked=${facts[3]} checkpoint=${facts[4]}
  mkdir -p "$run"
  exec 9>"$run/.lock"
  flock -n -E 75 9 || (($? != 75)) || sara_die "another job works in $run; one at a time"
  printf '%s\n' "${SLURM_JOB_ID:-}" >"$run/.job"
  sara_space "$run"
  sara_space "$SARA_TMP"
}

sara_space() { # FOLDER: refuses a disk that is nearly full
  local free
  free=$(df -Pk "$1" | awk 'NR == 2 {print int($4 / 1048576)}')
  ((free >= SARA_MIN_FREE_GB)) || sara_die "$1 has $free GB free; SARA_MIN_FREE_GB is $SARA_MIN_FREE_GB"
}

# sara_temp: a folder of the job for Ray, short enough for its sockets (107 bytes, of which Ray adds 64).
sara_temp() { # SUFFIX
  temp=$SARA_TMP/sara-${SLURM_JOB_ID:-$$}$1
  ((${#temp} <= 39)) || sara_die "Ray's folder $temp has ${#temp} characters; allowed: 39 (set SARA_TMP)"
  rm -rf "$temp"
  mkdir -m 700 "$temp" || sara_die "cannot make $temp"
  export RAY_TMPDIR=$temp
}

sara_limits() { # raises the soft limits, which Ray needs with many workers, and prints what counts
  ulimit -Sn "$(ulimit -Hn)" || true
  ulimit -Su "$(ulimit -Hu)" || true
  printf 'sara: %s %s seed %s, attempt %s, from step %s of %s, job %s restart %s\n' "$recipe" "$arm" "$seed" \
    "$attempt" "$checkpoint" "${asked/#0/?}" "${SLURM_JOB_ID:-none}" "${SLURM_RESTART_COUNT:-0}"
  printf 'sara: run %s, commit %s, nodes %s, cpus %s, files %s, processes %s\n' "$run" \
    "$(git -C "$SARA_ROOT" rev-parse --short HEAD 2>/dev/null || echo unknown)" \
    "${SLURM_JOB_NODELIST:-$(hostname)}" "$SARA_CPUS" "$(ulimit -n)" "$(ulimit -u)"
}

sara_ip() { # prints an IPv4 address of this node, a loopback one only if there is no other
  local found
  if [[ -n $SARA_IFACE ]]; then
    found=$(ip -o -4 addr show dev "$SARA_IFACE" | awk '{sub("/.*", "", $4); print $4}')
  else
    found="$(hostname --ip-address 2>/dev/null || true) $(hostname -I 2>/dev/null || true)"
  fi
  # shellcheck disable=SC2086 # one word an address
  printf '%s\n' $found | awk '/^[0-9.]+$/ {if (!any) any = $0; if (!/^127\./ && !ok) ok = $0}
    END {if (ok any == "") exit 1; print ok ? ok : any}' || sara_die "$(hostname) has no IPv4 address on '${SARA_IFACE:-any}'"
}

# sara_command QUESTION ...: sets command to what trains or evaluates.
sara_command() {
  local answer
  answer=$(mktemp)
  sara_ask "$@" >"$answer" || { rm -f "$answer"; exit 2; }
  mapfile -d '' -t command <"$answer"
  rm -f "$answer"
  if [[ -n "${SARA_TRAIN:-}" ]]; then command=("$SARA_TRAIN" "${command[@]:2}"); fi # another program in verl's place
  command=("${CONTAINER[@]}" "$SARA_PYTHON" "${command[@]}")
}

# sara_supervise: runs command in a session of its own and returns its status. On TERM (from scancel or
# preemption) or USR1 (ahead of the time limit) it is told to end, and after SARA_GRACE seconds it is ended.
sara_supervise() {
  local deadline=0 status=0
  [[ -z $signalled ]] || return 1
  printf 'sara:'
  printf ' %q' "${command[@]}"
  printf '\n'
  setsid "${command[@]}" 9>&- &
  local child=$!
  while :; do
    status=0
    wait "$child" || status=$?
    kill -0 "$child" 2>/dev/null || break
    if [[ -n $signalled ]]; then
      echo "sara: $signalled, ending the run"
      kill -TERM "$child" 2>/dev/null || true
      deadline=$((SECONDS + SARA_GRACE))
      while kill -0 "$child" 2>/dev/null && ((SECONDS < deadline)); do sleep 0.5; done
      break
    fi
  done
  pkill -KILL -s "$child" 2>/dev/null || true # what is left of verl and the Ray it started
  wait "$child" 2>/dev/null || true
  trap '' USR1 # the training is over: nothing is left to be put back in the queue
  trap - TERM INT
  return "$status"
}

# sara_requeue: puts the job back in the queue after USR1; it goes on from the last checkpoint.
sara_requeue() {
  local restarts=${SLURM_RESTART_COUNT:-0}
  ((restarts < SARA_MAX_RESTARTS)) || sara_die "time limit after $restarts restarts; SARA_MAX_RESTARTS is $SARA_MAX_RESTARTS"
  echo "sara: requeued; steps after checkpoint $(cat "$run/latest_checkpointed_iteration.txt" 2>/dev/null || echo 0) run again"
  scontrol requeue "$SLURM_JOB_ID" || sara_die "scontrol requeue failed; submit again to go on" 75
  exit 0
}

sara_finish() { # STATUS of the training: requeue, failure, or a check that it did what was asked
  [[ $signalled != USR1 ]] || sara_requeue
  [[ $signalled != TERM ]] || sara_die "stopped by a signal; submit again to go on" 143
  (($1 == 0)) || sara_die "the training ended with status $1" "$1"
  sara_ask check --attempt "$attempt" "${extra[@]}" || sara_die "the training did not do what was asked"
}
