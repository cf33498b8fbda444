#!/usr/bin/env bash
# fuzz_replay_test.sh TARGET: a replay of inputs fails when the target misbehaves, and when there is
# nothing to replay. TARGET is built from tests/fuzz/misbehaving_fuzz.cpp.
set -euo pipefail
target=$1
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
ulimit -c 0

complain() { echo "fuzz_replay: $*" >&2; exit 1; }

if "$target" >/dev/null 2>&1; then complain "succeeds without inputs"; fi
if "$target" "$folder" >/dev/null 2>&1; then complain "succeeds on an empty folder"; fi
if "$target" "$folder/none" >/dev/null 2>&1; then complain "succeeds on a file that is not there"; fi
printf 'e' >"$folder/error"
printf 'x' >"$folder/fine"
"$target" "$folder" >"$folder.out" || complain "fails on good inputs"
grep -q '^2 inputs$' "$folder.out" || complain "does not say how many inputs there were"
for what in message throw assert require; do
  printf '%s' "$what" >"$folder/bad"
  if "$target" "$folder" >"$folder.out" 2>&1; then complain "succeeds though: $what"; fi
  grep -qx "$folder/bad" "$folder.out" || complain "does not name the input: $what"
done
rm "$folder.out"
