# shellcheck shell=bash
# Sourced by download.sh and verify.sh: what belongs to a size of the data set.

yambda_sizes="50m 500m 5b"

# yambda_files SIZE: the files that `segue prep` reads, relative to the data set's root.
yambda_files() {
  printf '%s\n' artist_item_mapping.parquet album_item_mapping.parquet "flat/$1/multi_event.parquet"
}

say() { printf 'yambda: %s\n' "$*" >&2; }
die() {
  local code=$1
  shift
  say "$*"
  exit "$code"
}

# check_arguments USAGE "$@": SIZE and DIR.
check_arguments() {
  local usage=$1 size=${2:-} folder=${3:-}
  [[ $# -eq 3 && -n $folder ]] || die 2 "usage: $usage"
  [[ " $yambda_sizes " == *" $size "* ]] || die 2 "there is no size '$size'; there are: $yambda_sizes"
}

file_bytes() { if [[ -f $1 ]]; then wc -c <"$1" | tr -d ' '; else echo 0; fi; }
