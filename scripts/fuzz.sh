#!/usr/bin/env bash
# fuzz.sh [--minutes N] [--runs N] [--jobs N] [--merge] [--resume] [target...]: builds the fuzz targets
# and runs each, or those named, until it has had N minutes of CPU (20) or N executions (10 million).
# What they find goes to build/fuzz/findings, and the exit status is 1. With --merge, inputs that
# reached something new join tests/fuzz/corpus. With --resume, what earlier calls have done counts.
# See docs/fuzzing.md.
set -euo pipefail
cd "$(dirname "$0")/.."

build=build/fuzz findings=build/fuzz/findings kept=tests/fuzz/corpus
minutes=20 runs=10000000 jobs=$(nproc) merge= resume= targets=()
while (( $# > 0 )); do
  case $1 in
    --minutes) minutes=$2; shift 2 ;;
    --runs) runs=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    --merge) merge=1; shift ;;
    --resume) resume=1; shift ;;
    -*) sed -n '2,6s/^# //p' "$0" >&2; exit 2 ;;
    *) targets+=("$1"); shift ;;
  esac
done
if (( ${#targets[@]} == 0 )); then
  mapfile -t targets < <(sed -n 's/^  "\([a-z_]*\): [a-z]*"$/\1/p' cmake/fuzz.cmake)
fi

scripts/setup.sh --fuzz
mkdir -p "$findings" "$build/log"
if [[ ! -f $build/build.ninja ]]; then
  cmake --preset fuzz >"$build/configure.log" 2>&1 || { cat "$build/configure.log"; exit 1; }
fi
cmake --build "$build" -j "$jobs" --target "${targets[@]/#/segue_fuzz_}" -- --quiet

# Gigabytes that a header asks for, seconds that a short input takes and a call per byte of it, for
# which the stack of 1 MiB is too short, are findings. Stack traces of allocations are short because
# recording them costs half of the speed.
ulimit -s 1024
export ASAN_OPTIONS=malloc_context_size=4:quarantine_size_mb=64
limits=(-timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=256 -max_len=4096)

# CPU seconds of a process so far: user and system time, behind the name in parentheses.
cpu_seconds() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -r -a stat <<<"${stat##*) }"
  echo $(( (stat[11] + stat[12]) / $(getconf CLK_TCK) ))
}

# Executions and CPU seconds of a target in all calls so far: lines of two numbers.
spent() {
  awk '{ runs += $1; seconds += $2 } END { print runs + 0, seconds + 0 }' "$build/log/$1.spent"
}

fuzz() {
  local target=$1 log=$build/log/$1.log dictionary=() used=0 cpu pid before_runs before_seconds
  mkdir -p "$build/corpus/$target"
  [[ -n $resume ]] || rm -f "$build/log/$target.spent"
  touch "$build/log/$target.spent"
  read -r before_runs before_seconds < <(spent "$target")
  local seconds=$((minutes * 60 - before_seconds))
  if (( seconds <= 0 || before_runs >= runs )); then return; fi
  [[ ! -f tests/fuzz/$target.dict ]] || dictionary=(-dict="tests/fuzz/$target.dict")
  "$build/segue_fuzz_$target" "${limits[@]}" "${dictionary[@]}" -runs="$((runs - before_runs))" \
    -print_final_stats=1 -artifact_prefix="$findings/$target-" "$build/corpus/$target" \
    "$kept/$target" >"$log" 2>&1 &
  pid=$!
  trap 'kill -USR1 "$pid" 2>/dev/null' TERM INT
  while cpu=$(cpu_seconds "$pid"); do
    used=$cpu
    (( used < seconds )) || kill -USR1 "$pid" 2>/dev/null || true  # libFuzzer ends in order
    sleep 1
  done
  wait "$pid" || echo "exit status $?" >>"$log"
  echo "$(awk '/number_of_executed_units/ { n = $2 } END { print n + 0 }' "$log") $used" \
    >>"$build/log/$target.spent"
}

# One line of the table, from the log of a target.
summary() {
  awk -v target="$1" -v total="$(spent "$1")" '
    BEGIN { split(total, sum, " ") }
    /cov: / { for (i = 1; i < NF; ++i) { if ($i == "cov:") edges = $(i + 1); if ($i == "ft:") features = $(i + 1)
                                         if ($i == "corp:") split($(i + 1), corpus, "/") } }
    /Test unit written to/ { ++found }
    /^exit status/ { failed = 1 }
    END {
      if (failed && !found) found = "failed"
      printf "%-20s %11d %7d %9.0f %7d %9d %7d  %s\n", target, sum[1], sum[2],
        sum[1] / (sum[2] > 0 ? sum[2] : 1), edges, features, corpus[1], found ? found : 0
    }' "$build/log/$1.log"
}

# Adds what reaches new code to the inputs that are kept: seeds and past findings have names and stay,
# of the others the largest go when there are too many.
merge_corpus() {
  local target=$1 folder=$kept/$1
  "$build/segue_fuzz_$target" "${limits[@]}" -set_cover_merge=1 -use_counters=0 "$folder" \
    "$build/corpus/$target" >"$build/log/$target.merge.log" 2>&1
  while (( $(find "$folder" -type f | wc -l) > 100 || $(cat "$folder"/* | wc -c) > 200000 )); do
    largest=$(find "$folder" -type f -regex '.*/[0-9a-f]*' -printf '%s %p\n' | sort -n | tail -n 1)
    [[ -n $largest ]] || break
    rm "${largest#* }"
  done
}

trap 'kill -TERM $(jobs -p) 2>/dev/null; wait' TERM INT
running=0
for target in "${targets[@]}"; do
  if (( running == jobs )); then
    wait -n
    running=$((running - 1))
  fi
  fuzz "$target" &
  running=$((running + 1))
done
wait

printf '%-20s %11s %7s %9s %7s %9s %7s  %s\n' target executions 'CPU s' 'per CPU s' edges features \
  corpus findings
status=0
for target in "${targets[@]}"; do
  summary "$target"
  [[ -z $merge ]] || merge_corpus "$target"
  if grep -q '^exit status' "$build/log/$target.log"; then status=1; fi
done
if (( status != 0 )); then
  echo "repeat a finding by:"
  for target in "${targets[@]}"; do
    sed -n "s|.*Test unit written to \(.*\)|  $build/segue_fuzz_$target \1|p" "$build/log/$target.log"
    grep -q '^exit status' "$build/log/$target.log" && echo "    see $build/log/$target.log"
  done
fi
exit "$status"
