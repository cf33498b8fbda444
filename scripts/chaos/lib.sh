# shellcheck shell=bash disable=SC2034
# What all scenarios of chaos.sh use. A try runs in a subshell; $try is its folder, $mark names its
# processes. It sets hit=yes once something has been disturbed: a run can be through before. Numbers drawn and results of functions come in REPLY: RANDOM of a subshell is another one.

: "${work:?}" "${segue:?}" "${here:?}"
mpirun=(mpirun --oversubscribe)
((EUID != 0)) || mpirun+=(--allow-run-as-root)
config=$here/chaos/run.toml
store=$work/store
comm_timeout=4  # seconds, of runs on several ranks
try='' mark=''

now() { REPLY=$((${EPOCHREALTIME//[!0-9]/} / 1000)); }  # milliseconds
nap() { sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"; }
pick() { REPLY=$(((RANDOM << 15 | RANDOM) % $1)); }     # below $1
pick_of() {
  pick $#
  REPLY=${*:REPLY+1:1}
}

# fail_try REASON: ends the try.
fail_try() {
  echo "$*" >"$try/failure"
  exit 1
}

# start NAME COMMAND...: in the background, what it says goes to $try/NAME.log; sets pid.
start() {
  log=$try/$1.log
  shift
  printf '%q ' "$@" >>"$try/commands"
  echo >>"$try/commands"
  CHAOS_TRY=$mark TMPDIR=$try/tmp "$@" >"$log" 2>&1 &
  pid=$!
}

# await SECONDS: until the command that start() began has ended; sets rc. Over time it counts as hung.
await() {
  local deadline
  now && deadline=$((REPLY + $1 * 1000))
  while kill -0 "$pid" 2>/dev/null; do
    now
    ((REPLY < deadline)) || fail_try "hung: not ended after $1 s ($(basename "$log"))"
    nap 10
  done
  wait "$pid"
  rc=$?
}

# run NAME COMMAND...: start and await, for commands that take a second or two.
run() {
  start "$@"
  await 60
}

# Processes of this try: all, or its ranks alone. Sets pids.
marked() {
  mapfile -t pids < <(grep -lzxF "CHAOS_TRY=$mark" /proc/[0-9]*/environ 2>/dev/null | cut -d / -f 3)
}
ranks() {
  marked
  local p all=("${pids[@]}")
  pids=()
  for p in "${all[@]}"; do
    if grep -qzE '^(SEGUE_RANK|OMPI_COMM_WORLD_RANK|SLURM_PROCID)=' "/proc/$p/environ" 2>/dev/null; then pids+=("$p"); fi
  done
  return 0
}
# await_ranks N: until so many are there; fails when the launcher ends before, or after 20 s.
await_ranks() {
  local deadline
  now && deadline=$((REPLY + 20000))
  while ranks && ((${#pids[@]} < $1)); do
    now
    if ((REPLY >= deadline)) || ! kill -0 "$pid" 2>/dev/null; then return 1; fi
  done
}
# await_file PATTERN: until a file of that name is there; fails when the command ends before.
await_file() {
  until compgen -G "$1" >/dev/null; do
    kill -0 "$pid" 2>/dev/null || return 1
  done
}

end_marked() {
  [[ -n $mark ]] || return 0
  marked
  ((${#pids[@]} == 0)) || kill -KILL "${pids[@]}" 2>/dev/null
}
# all_gone SECONDS: nothing of the try runs any more.
all_gone() {
  local deadline
  now && deadline=$((REPLY + $1 * 1000))
  while marked && ((${#pids[@]} > 0)); do
    now
    ((REPLY < deadline)) || return 1
    nap 20
  done
}
require_nothing_left() {
  all_gone 5 || fail_try "processes are left: $(ps -o pid=,stat=,args= -p "${pids[*]}" | head -n 3)"
  local found
  found=$(find "$try" \( -name '*.tmp-*' -o -name '.tmp-*' -o -path "$try/tmp/segue*" \) -print -quit)
  [[ -z $found ]] || fail_try "a temporary file is left: $found"
}

# died_by_signal RC: of its own accord, that is.
died_by_signal() { (($1 > 128 && $1 != 255)); }

# require_refusal CODES: the command ended with one of these exit codes and said why.
require_refusal() {
  [[ " $1 " == *" $rc "* ]] || fail_try "exit code $rc, expected one of $1 ($(basename "$log"))"
  grep -q 'error' "$log" || fail_try "exit code $rc without a message ($(basename "$log"))"
}

# train LAYOUT RUN ARGUMENTS...: sets command. LAYOUT is one, ranks2, ranks3, mpi2, srun4, ...
train() {
  local layout=$1 run=$2 n=${1//[!0-9]/}
  shift 2
  command=("$segue" train "$config" --run "$run" --set "data.store=$store" --set "comm.timeout_seconds=$comm_timeout" "$@")
  case $layout in
    ranks*) command+=(--ranks "$n") ;;
    mpi*) command=("${mpirun[@]}" -n "$n" "${command[@]}") ;;
    srun*) command=(srun --kill-on-bad-exit -n "$n" "${command[@]}") ;;
  esac
}

# The loss lines of a run, without times and rates.
lasting() { sed -E 's/, "(samples_per_s|seconds|wall_s)":.*//' "$1/metrics.jsonl"; }

# compare_bits RUN RANKS [metrics]: the run ended as the undisturbed one of so many ranks did.
compare_bits() {
  local run=$1 reference=$work/reference-$2 last file
  last=$(basename "$(printf '%s\n' "$reference"/checkpoints/step-* | sort -V | tail -n 1)")
  for file in "$reference/checkpoints/$last"/*.safetensors; do
    cmp -s "$file" "$run/checkpoints/$last/$(basename "$file")" ||
      fail_try "$last/$(basename "$file") is not that of the undisturbed run"
  done
  [[ ${3:-metrics} == no-metrics ]] || diff <(lasting "$reference") <(lasting "$run") >"$try/metrics.diff" ||
    fail_try "metrics.jsonl differs from the undisturbed run's (metrics.diff)"
}

# end_run LAYOUT RUN ARGUMENTS...: starts it until it is through, and compares.
end_run() {
  local layout=$1 run=$2
  train "$@"
  run end "${command[@]}"
  ((rc == 0)) || fail_try "the last start ended with exit code $rc: $(tail -n 1 "$log")"
  layout=${layout//[!0-9]/}
  compare_bits "$run" "${layout:-1}"
}

# Undisturbed runs, the store they read and the raw log for prep.
make_references() {
  local sizes=(--users 100 --items 400 --days 12 --events-per-user 60) store_sizes=(--history 16 --min-history 4) n
  try=$work/references mark=$$-references
  mkdir -p "$try/tmp"
  prep=("$segue" prep --threads 2 "${store_sizes[@]}")
  (
    reference() {
      run "$@"
      ((rc == 0)) || fail_try "exit code $rc: $(tail -n 1 "$log")"
    }
    reference synth "$segue" synth --out "$store" "${sizes[@]}" "${store_sizes[@]}"
    for n in 1 2 3; do
      train "ranks$n" "$work/reference-$n"
      reference "train-$n" "${command[@]}"
    done
    # Half a run and some checkpoints, for damage.
    train one "$work/half" --set checkpoint.keep_last=3
    start half "${command[@]}"
    await_file "$work/half/checkpoints/step-[6-9]?" && kill -KILL "$pid"
    await 60
    for n in 1 2; do  # the old and the new store of prep --overwrite
      reference "raw-$n" "$segue" synth --out "$work/raw-$n" --seed "$n" --format csv "${sizes[@]}"
      reference "prep-$n" "${prep[@]}" --raw "$work/raw-$n" --out "$work/prepared-$n"
    done
  ) 2>"$try/shell.log" || {
    echo "chaos: the undisturbed runs failed: $(cat "$try/failure" "$try/shell.log" 2>/dev/null); see $try" >&2
    any_failed=yes
    exit 1
  }
  try='' mark=''
}
