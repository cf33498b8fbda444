# shellcheck shell=bash disable=SC2034,SC2154
# flight: one of four ranks is killed, or stopped, in the midst of training. `segue flight` names it and the call that
# it keeps the others waiting in.
#   kill     SIGKILL: the three others leave records; what they said when they ended names the same call
#   stop     SIGSTOP, then SIGUSR2 to the others, who write while they hang. The stopped one then goes on, and its own
#            record tells which call it was in: that one, or the next where its part of it had been sent
#   timeout  SIGSTOP until the others give up: what they said names the same call

cannot_flight() { false; }

# field NAME: of the verdict, out of $verdict.
field() { sed -E "s/.*\"$1\": (\"([^\"]*)\"|\[([^]]*)\]|(-?[0-9]+)).*/\2\3\4/" <<<"$verdict"; }

# take_verdict: sets verdict (what comes before the records), who, group, call, op and step.
take_verdict() {
  run "verdict" "$segue" flight "$try/run" --json
  ((rc == 0)) || fail_try "$mode: segue flight ended with exit code $rc: $(tail -n 1 "$log")"
  verdict=$(sed 's/, "run_ranks":.*//' "$log")
  who=$(field ranks) group=$(field group) call=$(field call) op=$(field op) step=$(field step)
  echo "$mode rank $victim_rank: $verdict" >"$try/verdict"
  echo "  $mode of rank $victim_rank: named rank $who, group $group, call $call ($op), step $step" >>"$work/flight-verdicts"
  [[ $who == "$victim_rank" ]] || fail_try "$mode of rank $victim_rank, but the verdict is: $(field text)"
}

# await_records N SECONDS
await_records() {
  local deadline
  now && deadline=$((REPLY + $2 * 1000))
  until (($(compgen -G "$try/run/flight/rank-*.json" | wc -l) >= $1)); do
    now
    ((REPLY < deadline)) || fail_try "$mode: no $1 flight records after $2 s"
    nap 50
  done
}

# calls_in_order FILE: start, end, group, number and bytes of every call in a record, by start.
calls_in_order() {
  awk -F '[:,] *' '
    /"name":/ { gsub(/"/, "", $2); name = $2 }
    /"sequence":/ { call = $2 }
    /"op":/ { op = $2 }
    /"bytes":/ { bytes = $2 }
    /"start_us":/ { start = $2 }
    /"end_us":/ { if (op !~ /synchronize/) print start, $2, name, call, bytes }' "$1" | sort -n
}

# what_others_said LOG: the verdict's call is that of a message about the victim.
what_others_said() {
  grep -qE "rank $victim_rank (is gone|did not answer|has left)" "$1" ||
    fail_try "$mode: no rank said that rank $victim_rank is lost"
  grep -qF "group \`$group\`, $op, step $step" "$1" ||
    fail_try "$mode: the verdict is $op in group $group, step $step; ranks said otherwise: $(grep -m 1 -o 'group .*' "$1")"
  grep -q 'flight records say' "$1" || fail_try "$mode: the launcher did not print the verdict"
}

try_flight() {
  local mode victim victim_rank verdict who group call op step others=() train_log first asked p
  pick_of kill kill stop stop timeout
  mode=$REPLY
  local comm_timeout=8
  [[ $mode != stop ]] || comm_timeout=120
  train ranks4 "$try/run" --set data.store= --set data.random.lengths.high=16 --set eval.every_steps=0 --set checkpoint.every_steps=0 --steps 1000000
  start "$mode" "${command[@]}"
  train_log=$log
  local launcher=$pid
  await_ranks 4 || fail_try "no four ranks: $(tail -n 1 "$log")"
  until [[ -s $try/run/metrics.jsonl ]]; do
    kill -0 "$pid" 2>/dev/null || fail_try "it ended before it trained: $(tail -n 1 "$log")"
    nap 20
  done
  pick 1500 && nap "$REPLY"
  ranks
  ((${#pids[@]} == 4)) || fail_try "a rank ended before it was disturbed: $(tail -n 1 "$log")"
  pick_of "${pids[@]}" && victim=$REPLY
  victim_rank=$(tr '\0' '\n' <"/proc/$victim/environ" | sed -n 's/^SEGUE_RANK=//p')
  for p in "${pids[@]}"; do [[ $p == "$victim" ]] || others+=("$p"); done
  hit=yes
  case $mode in
    kill)
      kill -KILL "$victim"
      await 30
      take_verdict
      [[ $(field verdict) == gone ]] || fail_try "killed, but the verdict is: $(field text)"
      what_others_said "$train_log"
      ;;
    timeout)
      kill -STOP "$victim"
      await $((comm_timeout + 30))
      take_verdict
      [[ $(field verdict) == silent ]] || fail_try "stopped, but the verdict is: $(field text)"
      what_others_said "$train_log"
      ;;
    stop)
      kill -STOP "$victim"
      nap 2000
      kill -USR2 "${others[@]}"
      await_records 3 20
      local going_on=${EPOCHREALTIME//[!0-9]/}
      take_verdict
      [[ $(field verdict) == silent ]] || fail_try "stopped, but the verdict is: $(field text)"
      kill -CONT "$victim"
      # The call that it was in, or the first one after it went on; and the next in which something travels.
      for ((asked = 0; asked < 40; ++asked)); do
        nap 50
        kill -USR2 "$victim"
        await_records 4 20
        first=$(calls_in_order "$try/run/flight/rank-$victim_rank.json" |
          awk -v t="$going_on" '$2 == 0 || $2 > t { print $3 "/" $4; if (++n > 1 && $5 > 0) { print "."; exit } }' | tr '\n' ' ')
        [[ $first != *'. ' ]] || break
      done
      [[ " $first" == *" $group/$call "* ]] || fail_try "stopped in one of $first, the verdict is $group/$call"
      kill -TERM "$launcher"
      pid=$launcher log=$train_log
      await 60
      ((rc == 0)) || fail_try "the run did not go on after SIGCONT: exit code $rc, $(tail -n 1 "$log")"
      ;;
  esac
}
