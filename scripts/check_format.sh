#!/usr/bin/env bash
# Checks the sources against .clang-format; with --fix rewrites them. Version 14 only, because other
# versions lay out some code differently.
set -euo pipefail
cd "$(dirname "$0")/.."

format=
for candidate in clang-format-14 clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then
    format=$candidate
    break
  fi
done
if [[ -z $format ]]; then
  echo "check_format: clang-format 14 is missing (Debian and Ubuntu: apt-get install clang-format-14)" >&2
  exit 1
fi

# Tracked files and new ones; deleted ones are still listed by git until the deletion is staged.
sources() {
  if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
    git ls-files -z --cached --others --exclude-standard -- '*.h' '*.cpp' '*.cu' '*.cuh'
  else
    find src tests -regex '.*\.\(h\|cpp\|cu\|cuh\)' -print0
  fi | while IFS= read -r -d '' file; do [[ ! -f $file ]] || printf '%s\0' "$file"; done | sort -zu
}

# One file: the first finding only, printed in one piece because several files are checked at a time.
check() {
  local findings
  findings=$("$format" --dry-run -Werror --ferror-limit=1 "$1" 2>&1) || { head -n 3 <<<"$findings"; exit 1; }
}
export -f check
export format

case ${1:-} in
  --fix) sources | xargs -0 -r -n 20 -P "$(nproc)" "$format" -i ;;
  '')
    if ! sources | xargs -0 -r -n 1 -P "$(nproc)" bash -c 'check "$0"'; then
      echo "check_format: run 'make format'" >&2
      exit 1
    fi
    ;;
  *)
    echo "usage: check_format.sh [--fix]" >&2
    exit 2
    ;;
esac
