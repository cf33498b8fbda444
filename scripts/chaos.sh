#!/usr/bin/env bash
# Disturbs small runs of Segue in every way that a cluster would, for minutes or hours, and checks that
# each ends as it promises: in the bits of an undisturbed run, or with an exit code and a message.
# docs/testing.md says what each scenario does.
#
#   scripts/chaos.sh [--minutes N | --rounds N] [--seed S] [--segue build/segue] [--only KIND,...] [--keep]
#
# A round is one try of every scenario; there are N of them, or as many as N minutes hold (1 unless told; 0: one). Round r
# draws from seed S + r, so a try is repeated by `--minutes 0 --seed S+r --only KIND`, which a failing one
# prints. What processes do meanwhile is up to the machine: the same try may have to be repeated a few times.
# Ends with a table; exit code 1 when a try failed. Folders of failing tries stay (with --keep: all).
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
kinds=(kill kill-ranks kill-mpi stop-ranks stop-mpi other-ranks disk disk-prep damage-run damage-store
  prep prep-overwrite strangers soak flight)

usage() {
  echo "chaos: $1" >&2
  sed -n '6p' "$0" | sed 's/^# *//' >&2
  echo "scenarios: ${kinds[*]}" >&2
  exit 2
}
minutes=1 rounds=0 seed=$RANDOM segue=$here/../build/segue only=() keep=no
while (($# > 0)); do
  case $1 in
    --keep) keep=yes && shift && continue ;;
    --minutes | --rounds | --seed | --segue | --only) (($# > 1)) || usage "$1 wants a value" ;;
    *) usage "unknown argument $1" ;;
  esac
  case $1 in
    --minutes) minutes=$2 ;;
    --rounds) rounds=$2 ;;
    --seed) seed=$2 ;;
    --segue) segue=$2 ;;
    --only) IFS=, read -ra only <<<"$2" ;;
  esac
  shift 2
done
[[ $minutes =~ ^[0-9]+(\.[0-9]+)?$ ]] || usage "--minutes wants a number, not $minutes"
[[ $rounds =~ ^[0-9]{1,6}$ ]] || usage "--rounds wants a whole number, not $rounds"
[[ $seed =~ ^[0-9]{1,9}$ ]] || usage "--seed wants a small whole number, not $seed"
((${#only[@]} > 0)) || only=("${kinds[@]}")
for kind in "${only[@]}"; do
  [[ " ${kinds[*]} " == *" $kind "* ]] || usage "no scenario is called '$kind'"
done
[[ -x $segue ]] || usage "there is no program $segue; build it, or name it with --segue"
segue=$(cd "$(dirname "$segue")" && pwd)/$(basename "$segue")

work=$(mktemp -d "${TMPDIR:-/tmp}/segue-chaos.XXXXXX")
for part in lib kills stops disk damage prep strangers soak flight; do
  # shellcheck source=scripts/chaos/lib.sh
  source "$here/chaos/$part.sh"
done

declare -A tries missed failures worst_ms why_not first_reason
any_failed=no

# one_try KIND ROUND: in a subshell of its own, so that nothing of it is left to the next.
one_try() {
  local kind=$1 try_seed=$((seed + $2)) began ended
  try=$work/$kind-$try_seed
  mark=$$-$kind-$try_seed
  mkdir -p "$try/tmp"
  now && began=$REPLY
  (
    RANDOM=$((try_seed * 7919 + $(cksum <<<"$kind" | cut -d ' ' -f 1) % 30011))
    hit=no
    "try_${kind//-/_}"
    require_nothing_left
    [[ $hit == yes ]] || exit 3
  ) 2>"$try/shell.log"
  local failed=$?
  end_marked
  unmount_try
  now && ended=$((REPLY - began))
  tries[$kind]=$((${tries[$kind]:-0} + 1))
  ((ended <= ${worst_ms[$kind]:-0})) || worst_ms[$kind]=$ended
  if ((failed == 3)); then missed[$kind]=$((${missed[$kind]:-0} + 1)); fi
  if ((failed == 0 || failed == 3)); then
    [[ $keep == yes ]] || rm -rf "$try"
    return
  fi
  any_failed=yes
  failures[$kind]=$((${failures[$kind]:-0} + 1))
  local reason="the scenario itself broke: see shell.log"
  [[ ! -s $try/failure ]] || reason=$(<"$try/failure")
  first_reason[$kind]=${first_reason[$kind]:-$reason}
  printf 'FAILED %s: %s\n  left: %s\n  repeat: scripts/chaos.sh --minutes 0 --seed %s --only %s --segue %s\n' \
    "$kind" "$reason" "$try" "$try_seed" "$kind" "$segue"
}

print_table() {
  local kind
  printf '\n%-15s %6s %7s %9s %8s\n' scenario tries missed failures 'worst s'
  for kind in "${only[@]}"; do
    if [[ -n ${why_not[$kind]:-} ]]; then
      printf '%-15s not run: %s\n' "$kind" "${why_not[$kind]}"
      continue
    fi
    printf '%-15s %6d %7d %9d %6d.%d' "$kind" "${tries[$kind]:-0}" "${missed[$kind]:-0}" \
      "${failures[$kind]:-0}" $((${worst_ms[$kind]:-0} / 1000)) $((${worst_ms[$kind]:-0} / 100 % 10))
    printf '%s\n' "${first_reason[$kind]:+  first: ${first_reason[$kind]}}"
  done
}

finish() {
  end_marked
  unmount_try
  [[ ! -s $work/flight-verdicts ]] || cat "$work/flight-verdicts"
  print_table
  if [[ $keep == yes || $any_failed == yes ]]; then
    echo "kept: $work"
  else
    rm -rf "$work"
  fi
}
trap 'exit 130' INT
trap 'exit 143' TERM HUP

length="$minutes minutes"
((rounds == 0)) || length="$rounds rounds"
echo "chaos: $("$segue" version | head -n 1), seed $seed, $length"
trap finish EXIT
[[ ${only[*]} == flight ]] || make_references  # its runs are compared with none
for kind in "${only[@]}"; do
  if reason=$("cannot_${kind//-/_}" 2>/dev/null); then why_not[$kind]=$reason; fi
done
now && end=$((REPLY + $(awk -v m="$minutes" 'BEGIN { printf "%d", m * 60000 }')))
for ((round = 0; ; ++round)); do
  for kind in "${only[@]}"; do
    now
    ((round == 0 || rounds > 0 || REPLY < end)) || break 2
    [[ -n ${why_not[$kind]:-} ]] || one_try "$kind" $round
  done
  now
  if ((rounds > 0)); then ((round + 1 < rounds)) || break; else ((REPLY < end && ${#tries[@]} > 0)) || break; fi
done
[[ $any_failed == no ]] || exit 1
