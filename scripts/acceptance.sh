#!/usr/bin/env bash
# Is Segue fit for use on this machine or cluster? Trains small runs in the way that real ones will be started,
# disturbs them, and compares what they leave with undisturbed ones. docs/ranks.md says what each check means.
#
#   scripts/acceptance.sh [--ranks N] [--launcher local|mpirun|srun] [--out DIR] [--segue build/segue] [--config CONFIG] [--short]
#
# N ranks (2 unless told) by `segue train --ranks`, mpirun or srun (in an allocation; SEGUE_SECRET set, see docs/ranks.md).
# DIR (runs/acceptance) must lie where all ranks see it, and is made anew. CONFIG is what scaling is measured with, a
# small one unless told. --short: a smaller store and fewer sizes. Prints a table, writes DIR/acceptance.json; exit code 1
# when a check failed.
# shellcheck disable=SC2034,SC2154
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage() {
  echo "acceptance: $1" >&2
  sed -n '5p' "$0" | sed 's/^# *//' >&2
  exit 2
}
ranks=2 launcher=local out=runs/acceptance segue=$here/../build/segue scaling_config='' short=no
while (($# > 0)); do
  case $1 in
    --short) short=yes && shift && continue ;;
    --ranks | --launcher | --out | --segue | --config) (($# > 1)) || usage "$1 wants a value" ;;
    *) usage "unknown argument $1" ;;
  esac
  case $1 in
    --ranks) ranks=$2 ;;
    --launcher) launcher=$2 ;;
    --out) out=$2 ;;
    --segue) segue=$2 ;;
    --config) scaling_config=$2 ;;
  esac
  shift 2
done
[[ $ranks =~ ^[1-9][0-9]{0,3}$ ]] || usage "--ranks wants a number, not $ranks"
case $launcher in
  local) kind=ranks ;;
  mpirun) kind=mpi ;;
  srun) kind=srun ;;
  *) usage "--launcher is local, mpirun or srun, not $launcher" ;;
esac
[[ $launcher == local ]] || command -v "$launcher" >/dev/null || usage "there is no $launcher here"
[[ -x $segue ]] || usage "there is no program $segue; build it, or name it with --segue"
segue=$(cd "$(dirname "$segue")" && pwd)/$(basename "$segue")
# Only what this script has made is removed.
if [[ -d $out && ! -e $out/.acceptance && -n $(ls -A "$out") ]]; then usage "$out is there, and not of this script"; fi
rm -rf "$out"
mkdir -p "$out" && touch "$out/.acceptance" || usage "$out cannot be made"
work=$(cd "$out" && pwd)
# shellcheck source=scripts/chaos/lib.sh
source "$here/chaos/lib.sh"
comm_timeout=30
layout=$kind$ranks
reference=$work/reference-$ranks
trap 'end_marked; exit 130' INT
trap 'end_marked; exit 143' TERM HUP

names=() results=() seconds=() details=()
scaling=''

# check NAME: runs check_NAME in a subshell of its own; it says what it found in $try/detail.
check() {
  local name=$1 began ended
  try=$work/$name mark=$$-$name
  mkdir -p "$try/tmp"
  now && began=$REPLY
  (
    "check_${name//-/_}"
    all_gone 10 || fail_try "processes are left"
  ) 2>"$try/shell.log"
  local rc=$?
  end_marked
  now && ended=$(((REPLY - began) / 100))
  names+=("$name")
  seconds+=("$((ended / 10)).$((ended % 10))")
  if ((rc == 0)); then
    results+=(pass)
    details+=("$(cat "$try/detail" 2>/dev/null)")
  else
    results+=(FAIL)
    details+=("$(cat "$try/failure" 2>/dev/null || echo "the script itself broke"); see $try")
  fi
  printf '%-16s %-5s %7s s  %s\n' "$name" "${results[-1]}" "${seconds[-1]}" "${details[-1]}"
}
say() { echo "$*" >"$try/detail"; }
must() {
  run "$@"
  ((rc == 0)) || fail_try "$1 ended with exit code $rc: $(tail -n 1 "$log")"
}
windows=(--set data.batch_size=8 --set eval.every_steps=0 --set eval.every_windows=1 --set train.log_every=1 --set checkpoint.every_steps=1)
steps_of() { grep -c '"event": "train"' "$1/metrics.jsonl" 2>/dev/null || true; }

# run_on RUN ARGUMENTS...: starts it on all ranks.
run_on() {
  local run=$1
  shift
  train "$layout" "$run" "${windows[@]}" "$@"
  start run "${command[@]}"
}
# await_lines RUN PATTERN COUNT: fails when the run ends before.
await_lines() {
  local lines
  until lines=$(grep -c "$2" "$1/metrics.jsonl" 2>/dev/null) && ((lines >= $3)); do
    kill -0 "$pid" 2>/dev/null || return 1
  done
}
# All ranks, those known already first: looking for them takes as long as many a step of a small run.
kill_all() {
  kill -KILL "$pid" "${pids[@]}" 2>/dev/null
  ranks
  kill -KILL "${pids[@]}" 2>/dev/null
  await 60
  all_gone 20 || fail_try "ranks are left after SIGKILL"
  rm -rf "$try"/tmp/segue-ranks-*
}
# go_on RUN [WHERE]: the same command again; it takes up a checkpoint, and that one.
go_on() {
  run resume "${command[@]}"
  ((rc == 0)) || fail_try "the second start ended with exit code $rc: $(tail -n 1 "$log")"
  grep -q "resuming from .*${2:-}" "$log" || fail_try "the second start did not resume from ${2:-a checkpoint}"
  compare_bits "$1" "$ranks"
}

# What follows is compared with this run.
check_smoke() {
  local sizes=(--users 150 --items 400 --days 10 --events-per-user 80)
  [[ $short == no ]] || sizes=(--users 60 --items 200 --days 6 --events-per-user 40)
  must doctor "$segue" doctor
  must synth "$segue" synth --out "$store" "${sizes[@]}" --history 16 --min-history 4
  train "$layout" "$reference" "${windows[@]}"
  must train "${command[@]}"
  must verify "$segue" checkpoint verify "$reference"
  say "$ranks rank(s) by $launcher, $(steps_of "$reference") steps, $(grep -c '"event": "eval"' "$reference/metrics.jsonl") evaluations"
}
# kill_early AWAIT...: starts a run on all ranks and kills it when AWAIT (await_lines or await_file with its arguments) has
# seen something, with the arguments in run_arguments. A small run may end first: then it is started again.
kill_early() {
  local last
  last=$(steps_of "$reference")
  for _ in 1 2 3 4 5; do
    rm -rf "$try/run"
    run_on "$try/run" "${run_arguments[@]}"
    await_lines "$try/run" '"event": "train"' 1 && ranks && "$@" || { await 60 && ((rc == 0)) && continue; fail_try "it ended with exit code $rc before it was killed: $(tail -n 1 "$log")"; }
    kill_all
    [[ -e $try/run/checkpoints/step-$last ]] || (($(steps_of "$try/run") >= last)) || return 0
  done
  fail_try "it ended before it could be killed, five times; try without --short, or with more ranks"
}
check_kill_in_window() {
  local run_arguments=()
  kill_early await_lines "$try/run" '"event": "train"' $(($(steps_of "$reference") / 2))
  local at
  at=$(steps_of "$try/run")
  go_on "$try/run"
  say "killed at step $at; losses and checkpoint equal those of the undisturbed run, bit for bit"
}
# The only checkpoint is the one behind the evaluation of a window in the second half.
check_kill_between() {
  local at run_arguments
  at=$(grep '"event": "eval"' "$reference/metrics.jsonl" | grep -o '"step": [0-9]*' |
    awk -v steps="$(steps_of "$reference")" '$2 * 2 > steps { print $2; exit }')
  run_arguments=(--set "checkpoint.every_steps=$at")
  kill_early await_file "$try/run/checkpoints/step-$at"
  go_on "$try/run" "step-$at: step"
  say "killed after the evaluation of a window, and resumed from $(grep -o 'step-[0-9]*: step.*' "$log"): equal, bit for bit"
}
check_kill_one_rank() {
  ((ranks > 1)) || { say "not run: one rank" && return; }
  local victim number rc=0
  for _ in 1 2 3 4 5; do  # a small run may end first
    ((rc == 0)) || break
    rm -rf "$try/run"
    run_on "$try/run"
    { await_lines "$try/run" '"event": "train"' 1 && ranks && await_file "$try/run/checkpoints/step-*"; } || { await 60 && continue; }
    ((${#pids[@]} > 1)) || fail_try "no ranks are to be seen on this machine"
    victim=${pids[-1]}
    number=$(tr '\0' '\n' <"/proc/$victim/environ" | sed -nE 's/^(SEGUE_RANK|OMPI_COMM_WORLD_RANK|SLURM_PROCID)=//p' | head -n 1)
    kill -KILL "$victim"
    await $((comm_timeout + 60))
  done
  [[ -n ${number:-} ]] || fail_try "it ended before a rank could be killed: $(tail -n 1 "$log")"
  ((rc != 0)) || fail_try "rank $number was killed, but the exit code is 0"
  # srun speaks of tasks, and may end the others before they can say what they miss.
  grep -qE "(rank|task):? $number" "$log" || fail_try "rank $number was killed, and nobody names it"
  all_gone 20 || fail_try "ranks are left"
  rm -rf "$try"/tmp/segue-ranks-*
  local named=''
  if "$segue" flight "$try/run" >"$try/flight.txt" 2>&1; then named="; flight records: $(head -n 1 "$try/flight.txt")"; fi
  go_on "$try/run"
  say "rank $number killed: the others ended and named it, and the next start went on, bit for bit$named"
}
check_staging() {
  train "$layout" "$try/run" "${windows[@]}" --set "data.stage_to=$try/disk"
  must train "${command[@]}"
  compare_bits "$try/run" "$ranks"
  grep -q 'bytes of .* to ' "$log" || fail_try "the store was not copied"
  command=("${command[@]/#$try\/run/$try/again}")
  must again "${command[@]}"
  grep -q 'copied before' "$log" || fail_try "the copy was made twice"
  say "$(du -sh "$try/disk" | cut -f 1) copied to a local folder and read from there: equal bits; the second start reused it"
}
# rate RUN: samples a second of the last line with a rate.
rate() { grep '"event": "train"' "$1/metrics.jsonl" | tail -n 1 | grep -o '"samples_per_s": [0-9.e+-]*' | cut -d ' ' -f 2; }
losses() { grep '"event": "train"' "$1/metrics.jsonl" | grep -o '"loss": [0-9.e+-]*' | cut -d ' ' -f 2; }
check_scaling() {
  local n sizes=(1) predicted steps=100 first='' base='' file=$work/scaling.jsonl
  [[ $short == no ]] || steps=30
  for ((n = 2; n < ranks; n *= 2)); do [[ $short == yes ]] || sizes+=("$n"); done
  ((ranks == 1)) || sizes+=("$ranks")
  local data=(--set data.store= --set data.random.lengths.high=16) scaled=$config
  [[ -z $scaling_config ]] || { data=() && scaled=$scaling_config; }
  for n in "${sizes[@]}"; do
    command=("$segue" train "$scaled" --run "$try/run-$n" "${data[@]}" --steps "$steps" --set "train.log_every=$((steps / 2))"
      --set eval.every_steps=0 --set eval.at_end=false --set "comm.timeout_seconds=$comm_timeout")
    case $kind in
      ranks) command+=(--ranks "$n") ;;
      mpi) command=("${mpirun[@]}" -n "$n" "${command[@]}") ;;
      srun) command=(srun --kill-on-bad-exit -n "$n" "${command[@]}") ;;
    esac
    must "train-$n" "${command[@]}"
    predicted=$("$segue" plan "$scaled" "${data[@]}" --simulate --ranks "1,$n" --json | awk -v n="$n" '
      { while (match($0, /"[0-9]+": \{[^}]*/)) { part = substr($0, RSTART, RLENGTH); $0 = substr($0, RSTART + RLENGTH)
          split(part, key, "\""); match(part, /"samples\/s_balanced": [0-9.e+-]*/)
          rate[key[2]] = substr(part, RSTART + 23, RLENGTH - 23) } }
      END { if (rate[1] > 0) printf "%.2f", rate[n] / rate[1]; else print "null" }')
    [[ -n $base ]] || base=$(rate "$try/run-$n")
    printf '{"ranks": %d, "samples_per_s": %s, "speedup": %s, "predicted_speedup": %s}\n' "$n" "$(rate "$try/run-$n")" \
      "$(awk -v a="$(rate "$try/run-$n")" -v b="$base" 'BEGIN { printf "%.2f", a / b }')" "${predicted:-null}" >>"$file"
    [[ -n $first ]] || first=$try/run-$n
    paste <(losses "$first") <(losses "$try/run-$n") | awk '{ d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > 1e-4) bad = 1 }
      END { exit bad || NR == 0 }' || fail_try "losses on $n ranks differ from those on one"
  done
  say "losses agree on ${sizes[*]} rank(s); rates below (the prediction is that of \`segue plan --simulate\`, for GPUs)"
}

echo "acceptance: $("$segue" version | head -n 1), $ranks rank(s) by $launcher, $work"
check smoke
if [[ ${results[0]} == pass ]]; then
  for name in kill-in-window kill-between kill-one-rank staging scaling; do check $name; done
fi
if [[ -s $work/scaling.jsonl ]]; then
  printf '\n%6s %14s %9s %10s\n' ranks samples/s speed-up predicted
  sed -E 's/[{}"a-z_,:]+//g' "$work/scaling.jsonl" | awk '{ printf "%6s %14.0f %9s %10s\n", $1, $2, $3, $4 }'
  scaling=$(paste -sd , "$work/scaling.jsonl")
fi
failed=0
{
  printf '{"version": "%s", "ranks": %d, "launcher": "%s", "checks": [' "$("$segue" version | head -n 1)" "$ranks" "$launcher"
  for i in "${!names[@]}"; do
    ((i == 0)) || printf ', '
    printf '{"name": "%s", "result": "%s", "seconds": %s, "detail": "%s"}' "${names[i]}" "${results[i],,}" "${seconds[i]}" \
      "$(sed 's/[\\"]/\\&/g' <<<"${details[i]}" | tr '\n\t' '  ' | sed 's/ *$//')"
  done
  printf '], "scaling": [%s]}\n' "$scaling"
} >"$work/acceptance.json"
for result in "${results[@]}"; do [[ $result == pass ]] || failed=1; done
echo "written: $work/acceptance.json"
exit $failed
