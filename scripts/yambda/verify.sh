#!/usr/bin/env bash
# Checks a download of yandex/yambda.
#
#   scripts/yambda/verify.sh SIZE DIR          SIZE: 50m, 500m or 5b
#
# Every file must be there and be a whole Parquet file (marker at both ends). MD5 sums are compared
# where one is known: checksums.md5 beside this script, then DIR/checksums.md5 (same format, names
# relative to DIR), which wins and may name files that the first does not. To keep sums of a download:
#   (cd DIR && md5sum *.parquet flat/*/*.parquet >checksums.md5)
#
# Exit codes: 0 all fine, 2 usage, 3 a file is missing, 4 wrong checksum or damaged file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=files.sh
source "$here/files.sh"

check_arguments "verify.sh SIZE DIR   (SIZE: $yambda_sizes)" "$@"
size=$1
folder=$2

md5_of() {
  if command -v md5sum >/dev/null; then
    md5sum <"$1" | cut -d ' ' -f 1
  else
    md5 -q "$1"
  fi
}

# known_md5 FILE: empty when no list names it.
known_md5() {
  local lists=("$here/checksums.md5")
  [[ ! -f $folder/checksums.md5 ]] || lists+=("$folder/checksums.md5")
  awk -v file="$1" '{ sum = $1; sub(/^[^ ]+ [ *]/, ""); if ($0 == file) found = sum } END { print found }' \
    "${lists[@]}"
}

is_parquet() {
  (($(file_bytes "$1") >= 12)) && [[ $(head -c 4 "$1") == PAR1 && $(tail -c 4 "$1") == PAR1 ]]
}

result=0
trouble() {  # CODE TEXT; the first kind of trouble decides the exit code
  say "$2"
  ((result != 0)) || result=$1
}

while IFS= read -r file; do
  path=$folder/$file
  if [[ ! -f $path ]]; then
    trouble 3 "$file: missing; run download.sh $size $folder"
    continue
  fi
  wanted=$(known_md5 "$file")
  if [[ -n $wanted ]]; then
    found=$(md5_of "$path")
    if [[ $found == "$wanted" ]]; then
      say "$file: ok (md5)"
    else
      trouble 4 "$file: wrong checksum $found, should be $wanted; remove the file and download it again"
    fi
  elif is_parquet "$path"; then
    say "$file: ok (a whole Parquet file; no checksum is known)"
  else
    trouble 4 "$file: not a whole Parquet file; remove it and download it again"
  fi
done < <(yambda_files "$size")
exit "$result"
