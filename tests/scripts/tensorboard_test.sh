#!/usr/bin/env bash
# TensorBoard itself reads what TensorboardWriter wrote, and what a run has written that was killed 15
# times: every point of the uninterrupted run, once. Exit code 77: skipped.
# usage: tensorboard_test.sh WRITER [SEGUE]; WRITER writes known files into the folder it is given.
# SEGUE_PYTHON names an interpreter that has the package tensorboard (pip install tensorboard).
set -euo pipefail
writer=$1 segue=${2:-}
python=${SEGUE_PYTHON:-python3}
config=$(cd "$(dirname "$0")/../.." && pwd)/scripts/chaos/run.toml

"$python" -c 'import tensorboard' 2>/dev/null || {
  echo "skipped: $python has no package tensorboard (SEGUE_PYTHON names another python)"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cat >"$work/reader.py" <<'PYTHON'
import logging
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells what a restart takes back

def scalars(folder):
    accumulator = EventAccumulator(folder, size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
PYTHON

"$writer" "$work/sample"
PYTHONPATH=$work "$python" - "$work/sample" <<'PYTHON'
import struct, sys
from reader import scalars

single = lambda v: struct.unpack("<f", struct.pack("<f", v))[0]
expected = {
    "train/loss": [(step, single(2.0 / (1 + step))) for step in range(1, 6)] +
                  [(step, single(3.0 / (1 + step))) for step in range(6, 10)],
    "eval/auc": [(5, single(0.75))],
    "eval/AUC of \u00e4": [(5_000_000_000, single(0.75))],
}
found = scalars(sys.argv[1])
assert found == expected, f"\nexpected {expected}\nfound    {found}"
print("TensorBoard reads", {tag: len(points) for tag, points in found.items()})
PYTHON
[[ -n $segue ]] || exit 0

RANDOM=${SEED:=$$}
echo "kills: SEED=$SEED"
"$segue" synth --out "$work/store" --users 100 --items 400 --days 12 --events-per-user 60 --history 16 --min-history 4 \
  >/dev/null 2>&1
train=("$segue" train "$config" --set "data.store=$work/store" --set data.batch_size=4 --set checkpoint.keep_last=1)
"${train[@]}" --run "$work/straight" >/dev/null 2>&1
kills=0 asked=0
for ((life = 0; kills < 15 && life < 200; ++life)); do
  "${train[@]}" --run "$work/killed" >>"$work/log" 2>&1 &
  pid=$!
  sleep "0.$(printf %03d $((RANDOM % 250)))"
  # Asked to stop in an evaluation, a run saves a checkpoint whose evaluation is still to come.
  signal=KILL
  if ((RANDOM % 3 == 0)); then signal=TERM asked=$((asked + 1)); fi
  kill -$signal $pid 2>/dev/null || true
  code=0
  wait $pid 2>/dev/null || code=$?
  case $code in
    137) kills=$((kills + 1)) ;;
    0 | 143) ;;  # asked; or it had ended
    *)
      echo "FAILED: exit code $code"
      tail -n 5 "$work/log"
      exit 1
      ;;
  esac
done
"${train[@]}" --run "$work/killed" >>"$work/log" 2>&1
echo "$kills kills, $asked times asked to stop, $(find "$work/killed" -name 'events.out.*' | wc -l) event files"
((kills == 15)) || { echo "FAILED: the run ended before 15 kills"; exit 1; }

PYTHONPATH=$work "$python" - "$work/straight" "$work/killed" <<'PYTHON'
import json, sys
from reader import scalars

def lasting(folder):  # metrics without times and rates
    lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    return [{k: l.get(k) for k in ("event", "step", "samples", "loss", "loss_window", "auc", "grad_norm")} for l in lines]

straight, killed = (scalars(folder) for folder in sys.argv[1:3])
for tag in sorted(straight.keys() | killed.keys()):
    expected, found = straight.get(tag, []), killed.get(tag, [])
    if tag.startswith("speed/"):
        expected, found = ([step for step, _ in points] for points in (expected, found))
    assert found == expected, f"{tag}: missing {[p for p in expected if p not in found]}, " \
        f"too many {[p for p in found if p not in expected or found.count(p) > 1]}"
assert lasting(sys.argv[1]) == lasting(sys.argv[2]), "metrics.jsonl differs"
print("equal:", {tag: len(points) for tag, points in killed.items()})
PYTHON
