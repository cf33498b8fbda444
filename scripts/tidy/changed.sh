#!/usr/bin/env bash
# changed.sh BUILD [REVISION]: clang-tidy of the .cpp files that differ from the revision; without one, of
# those that the newest commits changed. At most 40, newest first: `make tidy` reads all.
set -euo pipefail
cd "$(dirname "$0")/../.."
most=40

if [[ -n ${2:-} ]]; then
  changed=$(git diff --name-only --diff-filter=d "$2" -- 'src/*.cpp' 'tests/golden/*.cpp')
else
  changed=$(git log --max-count=200 --name-only --pretty=format: -- 'src/*.cpp' 'tests/golden/*.cpp')
fi
files=()
while read -r file; do
  [[ -f $file ]] && files+=("$file")
done < <(awk 'NF && !seen[$0]++' <<<"$changed")
files=("${files[@]:0:most}")
echo "clang-tidy of ${#files[@]} files"
(( ${#files[@]} > 0 )) || exit 0
printf '%s\0' "${files[@]}" | xargs -0 -r -n 1 -P "$(nproc)" scripts/tidy/run.sh "$1" 2>"$1/tidy.log"
