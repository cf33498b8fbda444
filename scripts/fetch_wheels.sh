#!/usr/bin/env bash
# Fetches the Arrow and Parquet libraries that `segue prep` reads Parquet files with. They come out of
# the pyarrow wheel; Python itself is used for the download only. Silent when everything is there.
# Without network the build goes on without Parquet: prep then reads CSV files. With --once a download
# that failed before is not tried again.
set -euo pipefail
cd "$(dirname "$0")/.."

version=21.0.0
soname=2100
sha256=40ebfcb54a4f11bcde86bc586cbd0272bac0d516cfa539c799c2453768477569
wheel=pyarrow-$version-cp311-cp311-manylinux_2_28_x86_64.whl
target=.deps/arrow
stamp=$target/wheel.sha256
failed=.deps/unavailable-wheels

[[ $(cat "$stamp" 2>/dev/null) == "$sha256" ]] && exit 0
[[ ${1:-} == --once && $(cat "$failed" 2>/dev/null) == "$sha256" ]] && exit 0

without() {
  echo "setup: going on without Parquet support ($1; scripts/fetch_wheels.sh tries again)" >&2
  mkdir -p .deps
  echo "$sha256" >"$failed"
  exit 0
}

[[ $(uname -sm) == 'Linux x86_64' ]] || without "the wheel is for Linux on x86-64"
command -v python3 >/dev/null || without "python3 is missing"
python3 -m pip --version >/dev/null 2>&1 || without "python3-pip is missing"

mkdir -p .deps
work=$(mktemp -d .deps/arrow-XXXXXX)
trap 'rm -rf "$work"' EXIT

echo "setup: fetching Arrow $version (43 MB)" >&2
python3 -m pip download --quiet --disable-pip-version-check --retries 1 --no-deps --only-binary=:all: \
  --python-version 3.11 --implementation cp --abi cp311 --platform manylinux_2_28_x86_64 \
  -d "$work" "pyarrow==$version" >"$work/log" 2>&1 ||
  without "pyarrow $version could not be downloaded"
(cd "$work" && sha256sum --check --status <<<"$sha256  $wheel") || without "the checksum of $wheel is wrong"

# Only headers and the two libraries, with the names that a linker looks for.
python3 - "$work" "$wheel" "$soname" <<'PYTHON'
import os, sys, zipfile
work, wheel, soname = sys.argv[1:]
libraries = [f"pyarrow/lib{name}.so.{soname}" for name in ("arrow", "parquet")]
with zipfile.ZipFile(os.path.join(work, wheel)) as archive:
    names = archive.namelist()
    wanted = [n for n in names if n.startswith("pyarrow/include/")] + libraries
    # The licence of what is used here must stay with it.
    wanted += [n for n in names if os.path.basename(n) in ("LICENSE.txt", "NOTICE.txt")]
    archive.extractall(os.path.join(work, "wheel"), wanted)
PYTHON
mkdir -p "$work/arrow/lib"
mv "$work/wheel/pyarrow/include" "$work/arrow/include"
find "$work/wheel" \( -name LICENSE.txt -o -name NOTICE.txt \) -exec mv {} "$work/arrow/" \;
for name in arrow parquet; do
  mv "$work/wheel/pyarrow/lib$name.so.$soname" "$work/arrow/lib/"
  ln -s "lib$name.so.$soname" "$work/arrow/lib/lib$name.so"
done
echo "$sha256" >"$work/arrow/wheel.sha256"
rm -rf "$target" "$failed"
mv "$work/arrow" "$target"
