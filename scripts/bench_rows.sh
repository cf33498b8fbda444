#!/usr/bin/env bash
# Measures the rows that the tables of docs/performance.md, docs/planning.md and docs/suite.md are made of: one file per table, as
# `segue bench --json` writes it. For a machine with an H200 that is otherwise idle; a few minutes.
# usage: bench_rows.sh SEGUE FOLDER      then: segue bench report --rows FOLDER
set -euo pipefail
if [[ $# != 2 ]]; then
  echo "usage: $0 SEGUE FOLDER" >&2
  exit 2
fi
segue=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
cd "$(dirname "$0")/.."  # configs are named from here

# rows TABLE ARGUMENTS: replaces the table's file when the command has succeeded; `+ TABLE` adds to it.
rows() {
  local add=
  if [[ $1 == + ]]; then add=1; shift; fi
  local table=$1 begin=$SECONDS
  shift
  "$segue" "$@" --json >"$out/$table.new"
  if [[ -n $add ]]; then cat "$out/$table.new" >>"$out/$table.jsonl"; else cp "$out/$table.new" "$out/$table.jsonl"; fi
  rm "$out/$table.new"
  echo "$table: $((SECONDS - begin)) s" >&2
}

rows attention bench attention --repeat 9 --warm-up 2 --sustained
rows stack bench stack --layers 3 --repeat 9 --warm-up 3
rows + stack bench stack --layers 1 --repeat 9 --warm-up 3
rows ops bench ops --repeat 9 --warm-up 2
rows gemm bench gemm --repeat 9 --warm-up 2
rows embedding bench embedding --repeat 9 --warm-up 2
rows index bench index --repeat 9 --warm-up 2
rows step bench step --preset dlrmv4-1gpu --repeat 40 --warm-up 6

# The other public suite, with heads of 256 and of 128; one identity named, so that there is one row of each.
add=()
for lengths in fixed zipf uniform; do
  suite=(bench step --preset "hstu-suite-$lengths" --repeat 20 --warm-up 4 --set model.identities.distinct_rows=true)
  rows "${add[@]}" suite "${suite[@]}"
  add=(+)
  rows + suite "${suite[@]}" --set model.qk_dim=128 --set model.v_dim=128
done

step=(bench step --preset dlrmv4-1gpu --repeat 24 --warm-up 6 --set model.identities.last_layer_targets=true)
rows recompute "${step[@]}"
for switch in normed_input gate uvqk; do
  rows + recompute "${step[@]}" --set "model.recompute.$switch=true"
done

# docs/suite.md; these files are kept whole and measured anew.
rm -f "$out/experiments.jsonl" "$out/map.jsonl"
suite=("$segue" bench suite --out "$out/experiments.jsonl")
"${suite[@]}" --repeat 3
"${suite[@]}" --preset dlrmv4-1gpu --repeat 4 --warm-up 3
"${suite[@]}" --lengths uniform,normal,lognormal --only "baseline,fast attention,prefetch,identities"
"${suite[@]}" --ids uniform --only "baseline,fast attention,cached tables,prefetch"
"$segue" bench map --out "$out/map.jsonl"
rows lengths bench lengths --head-dim 256
grep reckoned "$out/lengths.jsonl" >"$out/balancing.jsonl"  # a table of its own
sed -i '/reckoned/d' "$out/lengths.jsonl"

rows layer bench layer --device cpu
rows loader bench loader

plan=(plan configs/mlperf_dlrmv4.toml --simulate --hbm 139GiB)
rows simulate "${plan[@]}"
rows simulate-32768 "${plan[@]}" --ranks 64,256,1024 --set data.batch_size=32768
rows simulate-1024 "${plan[@]}" --ranks 8,64,256,1024 --set simulate.samples_per_rank=1024 --set simulate.draws=2
rows simulate-zipf "${plan[@]}" --ranks 16,128,1024 --set simulate.samples_per_rank=32 --set simulate.lengths.kind=zipf \
  --set simulate.lengths.alpha=1.2 --set simulate.lengths.low=1 --set simulate.lengths.high=4087
