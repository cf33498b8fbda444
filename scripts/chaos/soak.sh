# shellcheck shell=bash disable=SC2034,SC2154
# soak: two lives of a long run, ended by a signal: memory and open files do not grow within a life, and the second
# takes no more than the first.

cannot_soak() { false; }

# watch SECONDS: sets kib and files, the least that the process had in the second half of that time, and
# early_kib and early_files, in the first half. Saves make both swing, so only the least can be compared.
watch() {
  local deadline half size open list
  now && half=$((REPLY + $1 * 500)) deadline=$((REPLY + $1 * 1000))
  early_kib=0 early_files=0 kib=0 files=0
  while now && ((REPLY < deadline)) && kill -0 "$pid" 2>/dev/null; do
    size=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$pid/status")
    list=("/proc/$pid/fd/"*)
    open=${#list[@]}
    if ((REPLY < half)); then
      ((early_kib > 0 && size >= early_kib)) || early_kib=$size
      ((early_files > 0 && open >= early_files)) || early_files=$open
    else
      ((kib > 0 && size >= kib)) || kib=$size
      ((files > 0 && open >= files)) || files=$open
    fi
    nap 50
  done
}

# await_lines N: until so many more steps have been logged; memory is all in use by then.
await_lines() {
  local file=$try/run/metrics.jsonl lines
  lines=$(wc -l <"$file")
  until (($(wc -l <"$file") >= lines + $1)); do
    kill -0 "$pid" 2>/dev/null || fail_try "it ended: $(tail -n 1 "$log")"
    nap 50
  done
}

try_soak() {
  hit=yes
  local first=0
  for life in 1 2; do
    # Random samples: they never end.
    command=("$segue" train "$config" --run "$try/run" --set train.steps=100000000
      --set data.random.lengths.high=16)
    start "life-$life" "${command[@]}"
    await_file "$try/run/metrics.jsonl" || fail_try "it ended: $(tail -n 1 "$log")"
    await_lines 40
    watch 5
    kill -TERM "$pid" 2>/dev/null
    await 20
    ((rc == 0)) || fail_try "asked to stop, it ended with exit code $rc"
    echo "life $life: $early_kib then $kib KiB, $early_files then $files files" >>"$try/result"
    ((kib <= early_kib + 2048 && files <= early_files)) || fail_try "it grows: $(tail -n 1 "$try/result")"
    ((first == 0 || kib <= first + first / 10)) || fail_try "the second life takes more: $first, $kib KiB"
    first=$kib
  done
}
