# shellcheck shell=bash disable=SC2034,SC2154
# kill, kill-ranks, kill-mpi: SIGKILL at the start, in the middle, while a checkpoint is saved; one rank,
# the launcher, or all. The same command, started until it is through, ends in the bits of the undisturbed run.
# other-ranks: the same, but every start has another number of ranks.

cannot_kill() { false; }
cannot_kill_ranks() { false; }
cannot_kill_mpi() { ! command -v mpirun && echo 'mpirun is missing'; }
cannot_other_ranks() { false; }

# await_moment RUN: waits for the moment to strike; false when the run ends before.
await_moment() {
  pick_of start middle save save
  moment=$REPLY
  case $moment in
    start) pick 80 ;;
    middle)
      await_file "$1/metrics.jsonl" || return 1
      pick 700
      ;;
    save)
      # Not the first that comes: earlier lives have been killed there.
      pick 300 && nap "$REPLY"
      await_file "$1/checkpoints/.tmp-step-*" || return 1
      pick 12
      ;;
  esac
  nap "$REPLY"
}

# strike LAYOUT RUN: one life that SIGKILL ends, unless the run is through before. Sets killed: nobody,
# process, launcher, rank or all.
strike() {
  local layout=$1 n=${1//[!0-9]/}
  train "$@"
  start "life-$life" "${command[@]}"
  killed=nobody
  if [[ $layout == one ]]; then
    await_moment "$2" && kill -KILL "$pid" && killed=process
  else
    if await_ranks "$n" && await_moment "$2" && ranks && ((${#pids[@]} > 0)); then
      pick_of rank rank launcher all
      killed=$REPLY
      case $killed in
        rank) pick_of "${pids[@]}" && kill -KILL "$REPLY" ;;
        launcher) kill -KILL "$pid" ;;
        all) kill -KILL "$pid" "${pids[@]}" ;;
      esac
    fi
  fi 2>/dev/null
  [[ $killed == nobody ]] || hit=yes
  # The ranks that are left notice by a closed connection, at the latest by the timeout.
  await $((comm_timeout + 15))
  all_gone $((comm_timeout + 5)) || fail_try "$killed killed (${moment:-}): ranks are left after $((comm_timeout + 5)) s"
  # A launcher that is killed cannot clear away its folder; any other way of ending has to.
  case $killed in launcher | all) rm -rf "$try"/tmp/segue-ranks-* ;; esac
  ((rc == 137 || rc == 0)) || [[ $killed == rank ]] || fail_try "$killed killed (${moment:-}): exit code $rc"
}

kill_and_resume() {
  local lives
  pick 4 && lives=$((REPLY + 1))
  for ((life = 1; life <= lives; ++life)); do strike "$1" "$try/run"; done
  end_run "$1" "$try/run"
}

try_kill() { kill_and_resume one; }
try_kill_ranks() {
  pick_of ranks2 ranks3
  kill_and_resume "$REPLY"
}
try_kill_mpi() {
  pick_of mpi2 mpi3
  kill_and_resume "$REPLY"
}

try_other_ranks() {
  local layouts=(one ranks2 ranks3)
  if ! cannot_kill_mpi >/dev/null; then layouts+=(mpi2 mpi3); fi
  for ((life = 1; life <= 3; ++life)); do
    pick_of "${layouts[@]}"
    strike "$REPLY" "$try/run"
  done
  pick_of "${layouts[@]}"
  train "$REPLY" "$try/run"
  run end "${command[@]}"
  ((rc == 0)) || fail_try "the last start ended with exit code $rc: $(tail -n 1 "$log")"
  # Another number of ranks adds in another order: docs/ranks.md promises 1e-5.
  paste <(losses "$work/reference-1") <(losses "$try/run") | awk -v bar=1e-5 '
    NF != 2 { print "lines are missing"; bad = 1; exit }
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d }
    END { if (!bad && worst > bar) print "losses differ by " worst; exit bad || worst > bar }' >"$try/losses" ||
    fail_try "$(<"$try/losses")"
}
losses() { grep -o '"event": "[a-z]*", "step": .*, "loss": [0-9.e+-]*' "$1/metrics.jsonl" | grep -o '[0-9.e+-]*$'; }
