#!/usr/bin/env bash
# What `cmake --install` leaves works away from the checkout. Arguments: cmake, the build folder, the
# version that the program must state.
set -euo pipefail
cmake=$1 build=$2 version=$3
source=$(cd "$(dirname "$0")/../.." && pwd)

fail() {
  echo "failed: $1"
  exit 1
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >"$work/log" 2>&1 || { cat "$work/log"; fail "cmake --install"; }

cd "$work"
segue=prefix/bin/segue configs=prefix/share/segue/configs docs=prefix/share/doc/segue
for file in $docs/README.md $docs/LICENSE $docs/NOTICE $docs/docs/training.md $configs/schemas; do
  [[ -e $file ]] || fail "$file is missing"
done
[[ $("$segue" --version) == "segue $version "* ]] || fail "segue --version: $("$segue" --version)"
"$segue" config $configs/demo.toml >resolved.toml
grep -q '^\[model' resolved.toml || fail "segue config resolved nothing"
"$segue" plan $configs/demo.toml --set train.device=cpu | grep -q tables || fail "segue plan says nothing of tables"
if ldd "$segue" | grep -F "$source/"; then fail "a library comes from the checkout"; fi
