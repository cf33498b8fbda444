# shellcheck shell=bash disable=SC2034,SC2154
# strangers: while ranks start, somebody else connects to their ports, and is silent, talks garbage or leaves.
# The run is not disturbed. One rank is held up for a moment, so that the others still listen.

cannot_strangers() { [[ ! -r /proc/net/tcp ]] && echo 'there is no /proc/net/tcp'; }

# Ports that ranks of this try listen on. Sets ports.
listening() {
  local inodes
  ranks
  inodes=$(for p in "${pids[@]}"; do readlink "/proc/$p/fd/"* 2>/dev/null; done | sed -n 's/^socket:\[\(.*\)\]$/\1/p')
  mapfile -t ports < <(awk 'NR == FNR { mine[$1]; next } $4 == "0A" && $10 in mine { split($2, a, ":"); print a[2] }' \
    <(echo "$inodes") /proc/net/tcp | while read -r port; do echo $((16#$port)); done)
}

# stranger PORT: a connection that stays open until its shell ends.
stranger() {
  local fd
  exec {fd}<>"/dev/tcp/127.0.0.1/$1" || return 0
  pick 5
  case $REPLY in
    0) ;;  # silent
    1) exec {fd}>&- ;;
    2) printf 'GET / HTTP/1.0\r\n\r\n' >&"$fd" ;;
    3) printf 'abc' >&"$fd" ;;
    4) head -c 4096 /dev/urandom >&"$fd" ;;
  esac
  met=$((met + 1))
} 2>/dev/null

try_strangers() {
  local met=0 held round port
  pick_of ranks2 ranks3
  local layout=$REPLY
  train "$layout" "$try/run" --set comm.timeout_seconds=20
  start strangers "${command[@]}"
  await_ranks "${layout//[!0-9]/}" || fail_try "the ranks did not start: $(tail -n 1 "$log")"
  pick_of "${pids[@]}"
  held=$REPLY
  kill -STOP "$held"
  trap '' PIPE
  for ((round = 0; round < 5 && met < 6; ++round)); do
    nap 30
    listening
    for port in "${ports[@]}"; do stranger "$port"; done
  done
  kill -CONT "$held"
  echo "$met strangers" >"$try/result"
  ((met == 0)) || hit=yes
  await 60
  ((rc == 0)) || fail_try "$met strangers, exit code $rc: $(grep -m 1 error "$log")"
  compare_bits "$try/run" "${layout//[!0-9]/}"
}
