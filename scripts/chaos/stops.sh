# shellcheck shell=bash disable=SC2034,SC2154
# stop-ranks, stop-mpi: SIGSTOP of one of three ranks, at its start or in training. The others end by the
# timeout with a message, the launcher ends the stopped one, and the run goes on in the same bits.

cannot_stop_ranks() { false; }
cannot_stop_mpi() { cannot_kill_mpi; }

stop_and_resume() {
  local layout=$1 moment victim
  # What is documented: the timeout, 10 s that the launcher gives the others; and some for a busy machine.
  local limit=$((comm_timeout + 10 + 6))
  pick_of start running
  moment=$REPLY
  train "$layout" "$try/run"
  start stopped "${command[@]}"
  await_ranks 3 || fail_try "no three ranks: $(tail -n 1 "$log")"
  if [[ $moment == running ]]; then
    await_file "$try/run/checkpoints/step-*"
    pick 400
  else
    pick 150
  fi
  nap "$REPLY"
  ranks
  ((${#pids[@]} == 3)) || return 0  # it was through before
  pick_of "${pids[@]}"
  victim=$REPLY
  kill -STOP "$victim" 2>/dev/null
  now && local began=$REPLY
  await "$limit"
  now
  echo "$moment: launcher ended after $((REPLY - began)) ms with exit code $rc" >"$try/result"
  if ((rc == 0)) && grep -q '^[0-9:]* *done:' "$log"; then return 0; fi  # stopped in its last moments
  hit=yes
  ((rc != 0)) || fail_try "a rank was stopped ($moment), but the exit code is 0"
  grep -qE 'rank [0-9]|did not|gave up' "$log" || fail_try "a rank was stopped ($moment), and nobody said so"
  all_gone 3 || fail_try "stopped ($moment): processes are left after the launcher"
  end_run "$layout" "$try/run"
}

try_stop_ranks() { stop_and_resume ranks3; }
try_stop_mpi() { stop_and_resume mpi3; }
