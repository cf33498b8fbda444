#!/usr/bin/env bash
# Runs the DLRMv4 benchmark and times it:
#
#   scripts/run_and_time.sh STORE RUN [--set KEY=VALUE ...]
#
# Drops the system's caches first where that is allowed (the log's cache_clear says that it happened),
# takes a seed from SEED or the clock, trains until the target or the end, checks the log, and prints
# one line: RESULT,<benchmark>,<seed>,<seconds>,<org>,<start>.
# Called again with the same RUN it goes on with that run.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
segue=${SEGUE:-$here/build/segue}
config=${CONFIG:-$here/configs/mlperf_dlrmv4.toml}

if (( $# < 2 )); then
  sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
  exit 2
fi
store=$1 run=$2
shift 2

if [[ ! -e $run/config.toml ]]; then
  seed=${SEED:-$(date +%s)}
  sync
  if ! { echo 3 >/proc/sys/vm/drop_caches; } 2>/dev/null; then
    echo "run_and_time: no right to drop the system's caches; do it before a submission" >&2
  fi
  start=("$config" --set "data.store=$store" --seed "$seed" "$@")
else
  seed=$(sed -n 's/^seed = //p' "$run/config.toml" | head -n 1)
  start=("$@")
fi

begin=$(date +%s) shown=$(date '+%Y-%m-%d %H:%M:%S')
echo "STARTING TIMING RUN AT $shown"
"$segue" train "${start[@]}" --run "$run"
end=$(date +%s)
echo "ENDING TIMING RUN AT $(date '+%Y-%m-%d %H:%M:%S')"
org=$(sed -n 's/^org = "\(.*\)"/\1/p' "$run/config.toml" | head -n 1)
"$segue" mllog lint "$run/mlperf.log" || echo "run_and_time: the log does not pass; see above" >&2
echo "RESULT,DLRMV4,$seed,$((end - begin)),$org,$shown"
