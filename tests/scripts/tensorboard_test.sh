#!/usr/bin/env bash
# TensorBoard itself reads what TensorboardWriter wrote. Exit code 77: skipped.
# usage: tensorboard_test.sh WRITER, a program that writes a known file into the folder it is given.
# PYTHON names an interpreter that has the package tensorboard (pip install tensorboard).
set -euo pipefail
writer=$1
python=${PYTHON:-python3}

"$python" -c 'import tensorboard' 2>/dev/null || { echo "skipped: $python has no package tensorboard"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$writer" "$work"

"$python" - "$work" <<'PYTHON'
import struct, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

accumulator = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
accumulator.Reload()
single = lambda v: struct.unpack("<f", struct.pack("<f", v))[0]
expected = {
    "train/loss": [(step, single(1.0 / (1 + step))) for step in range(5)] +
                  [(step, single(2.0 / (1 + step))) for step in range(5, 10)],
    "eval/AUC of \u00e4": [(5_000_000_000, single(0.75))],
}
found = {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}
assert found == expected, f"\nexpected {expected}\nfound    {found}"
print("TensorBoard reads", {tag: len(points) for tag, points in found.items()})
PYTHON
