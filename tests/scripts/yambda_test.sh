#!/usr/bin/env bash
# Tests scripts/yambda against a server on this machine. Exit code 77: skipped.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
scripts=$root/scripts/yambda

skip() {
  echo "skipped: $1"
  exit 77
}
python3 -c 'import http.server' 2>/dev/null || skip "python3 is missing"
command -v curl >/dev/null || skip "curl is missing"

work=$(mktemp -d)
server=
cleanup() {
  [[ -z $server ]] || kill "$server" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT

# ---- a small data set and its server ----
mkdir -p "$work/site/flat/50m"
for file in artist_item_mapping album_item_mapping flat/50m/multi_event; do
  { printf PAR1; head -c 60000 /dev/urandom; printf PAR1; } >"$work/site/$file.parquet"
done
(cd "$work/site" && exec python3 "$root/tests/scripts/range_server.py" "$work/port" "$work/requests") &
server=$!
for _ in $(seq 100); do [[ ! -f $work/port ]] || break; sleep 0.1; done
[[ -f $work/port ]] || skip "no server could be started on 127.0.0.1"
address=http://127.0.0.1:$(cat "$work/port")

unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export no_proxy=127.0.0.1 YAMBDA_RETRY_SECONDS=0
unset YAMBDA_RETRIES YAMBDA_TOOL YAMBDA_REVISION

failures=0
fail() {
  echo "FAILED: $1"
  sed 's/^/    /' "$work/output"
  failures=$((failures + 1))
}
# run WANTED_EXIT_CODE WORDS COMMAND...: checks the code and that the output contains the words.
run() {
  local wanted=$1 words=$2 rc=0
  shift 2
  "$@" >"$work/output" 2>&1 || rc=$?
  [[ $rc == "$wanted" ]] || fail "exit code $rc instead of $wanted: $*"
  grep -qF -- "$words" "$work/output" || fail "no '$words' from: $*"
}
download() { YAMBDA_MIRROR=$address/$1 "$scripts/download.sh" 50m "$work/$2"; }
# Folder $1 gets the sums of the small data set, which are not the published ones.
put_sums() {
  mkdir -p "$work/$1"
  (cd "$work/site" && md5sum ./*.parquet flat/50m/*.parquet | sed 's|  \./|  |') >"$work/$1/checksums.md5"
}
same_as_site() {
  diff -r "$work/site" "$work/$1" -x checksums.md5 >"$work/output" 2>&1 || fail "$1 differs from the site"
}

# ---- cases ----
put_sums plain_run
run 0 'multi_event.parquet: ok (md5)' download whole plain_run
same_as_site plain_run

: >"$work/requests"
run 0 'is here' download whole plain_run
[[ ! -s $work/requests ]] || fail "a complete download asked the server again"

put_sums retried
: >"$work/requests"
run 0 'ok (md5)' download cut retried
same_as_site retried
grep -qE '/multi_event.parquet 30004 206' "$work/requests" || fail "the second attempt did not go on at 30004"
grep -qE '/multi_event.parquet 45006 206' "$work/requests" || fail "the third attempt did not go on at 45006"

# Stopped after one attempt, then started again: goes on where it stopped.
mkdir -p "$work/again"
for part in artist_item_mapping album_item_mapping; do cp "$work/site/$part.parquet" "$work/again/"; done
put_sums again
head -c 12345 "$work/site/flat/50m/multi_event.parquet" >"$work/prefix"
mkdir -p "$work/again/flat/50m" && cp "$work/prefix" "$work/again/flat/50m/multi_event.parquet.part"
: >"$work/requests"
run 0 'going on after 12345 bytes' download whole again
same_as_site again
grep -qE '/multi_event.parquet 12345 206' "$work/requests" || fail "a new start did not go on at 12345"

YAMBDA_RETRIES=1 run 5 'start again to go on' env YAMBDA_MIRROR="http://127.0.0.1:1/whole" \
  "$scripts/download.sh" 50m "$work/nobody"

put_sums busy_run
run 0 'attempt 1 failed' download busy busy_run
same_as_site busy_run

# A part that is no beginning of the file, and a server that cannot go on in the middle.
put_sums stale
mkdir -p "$work/stale" && head -c 70000 /dev/zero >"$work/stale/artist_item_mapping.parquet.part"
run 0 'starting again' download whole stale
same_as_site stale
# A complete part, only the renaming is missing.
put_sums complete
cp "$work/site/artist_item_mapping.parquet" "$work/complete/artist_item_mapping.parquet.part"
run 0 'ok (md5)' download whole complete
same_as_site complete
! grep -q 'starting again' "$work/output" || fail "a complete part was fetched again"
put_sums no_ranges
mkdir -p "$work/no_ranges" && head -c 100 "$work/site/artist_item_mapping.parquet" >"$work/no_ranges/artist_item_mapping.parquet.part"
run 0 'ok (md5)' download plain no_ranges
same_as_site no_ranges

if command -v wget >/dev/null; then
  put_sums with_wget
  : >"$work/requests"
  YAMBDA_TOOL=wget run 0 'ok (md5)' download cut with_wget
  same_as_site with_wget
  YAMBDA_TOOL=wget run 3 'not found' download whole/nowhere wget_nowhere
fi

run 3 "not found: $address/whole/nowhere/artist_item_mapping.parquet" download whole/nowhere nowhere
[[ ! -e $work/nowhere/artist_item_mapping.parquet ]] || fail "a missing file left something behind"

# Without sums of our own the published ones count.
run 4 'artist_item_mapping.parquet: wrong checksum' download whole published
printf x | dd of="$work/plain_run/flat/50m/multi_event.parquet" bs=1 seek=100 conv=notrunc 2>/dev/null
run 4 'multi_event.parquet: wrong checksum' "$scripts/verify.sh" 50m "$work/plain_run"
: >"$work/again/checksums.md5"
truncate -s 30000 "$work/again/flat/50m/multi_event.parquet"
run 4 'multi_event.parquet: not a whole Parquet file' "$scripts/verify.sh" 50m "$work/again"
rm "$work/retried/flat/50m/multi_event.parquet"
run 3 'multi_event.parquet: missing' "$scripts/verify.sh" 50m "$work/retried"

run 2 "there is no size '7b'" "$scripts/download.sh" 7b "$work/none"
run 2 'usage' "$scripts/download.sh" 50m
run 2 'usage' "$scripts/verify.sh"

mkdir -p "$work/bin"
for command in bash dirname; do ln -s "$(command -v "$command")" "$work/bin/"; done
run 6 'install curl or wget' env PATH="$work/bin" bash "$scripts/download.sh" 50m "$work/none"

if ((failures > 0)); then
  echo "$failures failures"
  exit 1
fi
echo "all fine"
