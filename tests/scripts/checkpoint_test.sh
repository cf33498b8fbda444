#!/usr/bin/env bash
# The safetensors package of PyPI reads what Segue writes. Argument: the program that writes a
# checkpoint (segue_train_test). Exit code 77: skipped.
set -uo pipefail
program=$1

skip() {
  echo "skipped: $1"
  exit 77
}
python=${SEGUE_PYTHON:-python3}
"$python" -c 'import numpy, safetensors.numpy' 2>/dev/null ||
  skip "$python has no numpy and safetensors (pip install numpy safetensors; SEGUE_PYTHON names another python)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SEGUE_CHECKPOINT_OUT=$work "$program" --gtest_filter='CheckpointModelTest.ForPython' >"$work/log" 2>&1 || {
  cat "$work/log"
  exit 1
}

"$python" - "$work" <<'PYTHON'
import json, pathlib, sys
import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file

work = pathlib.Path(sys.argv[1])
folder = work / "checkpoints" / "step-3"
manifest = json.loads((folder / "manifest.json").read_text())
assert manifest["step"] == 3 and manifest["state"] == {"samples": 192}, manifest
saved = {}
for file in manifest["files"]:
    assert (folder / file["name"]).stat().st_size == file["bytes"]
    saved.update(load_file(folder / file["name"]))
parts = sorted((k for k in saved if k.startswith("weight/item.rows-")), key=lambda k: int(k.split("-")[-1]))
assert len(parts) > 1, list(saved)
table = np.concatenate([saved[k] for k in parts])

exported = load_file(work / "weights.safetensors")
np.testing.assert_array_equal(exported["_embedding_collection.embeddings.item.weight"], table)
dense = {k.removeprefix("param/"): v for k, v in saved.items() if k.startswith("param/")}
assert dense and not any("adam" in k for k in exported)
for name, value in dense.items():
    np.testing.assert_array_equal(exported[name], value)
    assert value.dtype == np.float32
with safe_open(work / "weights.safetensors", "np") as f:
    assert f.metadata()["step"] == "3"
print(len(exported), "tensors agree")
PYTHON
