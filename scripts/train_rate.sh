#!/usr/bin/env bash
# How fast `segue train` is beside what its steps can do: makes a store of full histories in FOLDER, times steps on its batches
# without a loader (`bench step --store`), then trains on it with defaults. For a machine with an H200; under four minutes.
# usage: train_rate.sh SEGUE FOLDER [--set KEY=VALUE ...]
set -euo pipefail
if [[ $# -lt 2 ]]; then
  echo "usage: $0 SEGUE FOLDER [--set KEY=VALUE ...]" >&2
  exit 2
fi
segue=$1 folder=$2
shift 2
mkdir -p "$folder"
users=${USERS:-400} events=${EVENTS:-4763} history=${HISTORY:-4086} steps=${STEPS:-400} rows=${ROWS:-250000}
store=$folder/store-$users-$events-$history
if [[ ! -d $store ]]; then
  "$segue" synth --out "$folder/raw" --format csv --users "$users" --items $((rows / 2)) --days 60 --events-per-user "$events" \
    --overwrite
  "$segue" prep --raw "$folder/raw" --out "$store" --history "$history" --overwrite
fi

# The benchmark's model; tables that a checkpoint of is soon written.
sets=(--set preset=dlrmv4-1gpu --set "data.store=$store")
for table in 0 1 2 3 4 5 6 7 8 9 10; do sets+=(--set "sparse.tables.$table.rows=$rows"); done
sets+=("$@")
printf 'preset = "dlrmv4-1gpu"\n' >"$folder/config.toml"
"$segue" bench step --config "$folder/config.toml" "${sets[@]}" --repeat 40 --warm-up 6 --json | tee "$folder/bench.jsonl"
rm -rf "$folder/run"
"$segue" train "$folder/config.toml" "${sets[@]}" --steps "$steps" --set train.log_every=20 --run "$folder/run"

# Rates of training by the clock on the wall, from the second line of metrics to the last one; evaluation comes after it.
value() { sed -n "s/.*\"$1\": *\([0-9.e+-]*\).*/\1/p"; }
bench=$(grep '"name": "step"' "$folder/bench.jsonl" | value samples_per_s)
grep '"event": *"train"' "$folder/run/metrics.jsonl" >"$folder/lines"
paste <(value samples <"$folder/lines") <(value wall_s <"$folder/lines") <(value loader_wait_s <"$folder/lines") |
  awk -v bench="$bench" '
    NR == 2 { samples = $1; wall = $2 }
    NR > 2 { wait += $3; last = $1; end = $2 }
    END {
      rate = (last - samples) / (end - wall)
      printf "bench step --store: %.0f samples/s\n", bench
      printf "train:              %.0f samples/s, %.1f %% of it, over %d samples; waited for batches %.3f of %.1f s\n",
             rate, 100 * rate / bench, last - samples, wait, end - wall
    }'
grep '"event": *"eval"' "$folder/run/metrics.jsonl" | while read -r line; do
  echo "evaluation:         $(value eval_samples <<<"$line") samples in $(value seconds <<<"$line") s, $(value samples_per_s <<<"$line") samples/s"
done
