#!/usr/bin/env bash
# Checks the #include lines of src/ and tests/golden/runner and prints file:line for each that breaks a rule:
#  - a room (or the golden runner) includes only itself and the rooms that the table in cmake/rooms.cmake grants it;
#  - our headers are named from src/ (the runner's from tests/golden/) and in quotes: #include "base/error.h";
#  - only .cpp files include fmt, spdlog or toml++: nvcc cannot compile them, and a header may end up
#    in a .cu file;
#  - only the .cpp files of src/data/parquet include Arrow, which may be missing.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -d src ]] || exit 0

find src tests/golden/runner -regex '.*\.\(h\|cuh\|cpp\|cu\)' -print0 | sort -z |
  xargs -0 -r grep -nHE '^[[:space:]]*#[[:space:]]*include[[:space:]]*["<]' |
  awk '
    function complain(why) { print place ": " why; bad = 1 }

    # The table: lines of the form   "room: other rooms"
    FNR == NR {
      if (match($0, /^ *"[a-z]+:.*"/)) {
        gsub(/[":]/, "")
        rooms[$1] = 1
        for (i = 1; i <= NF; ++i) granted[$1, $i] = 1
      }
      next
    }

    {
      split($0, part, ":")
      file = part[1]
      place = file ":" part[2]
      split(file, folder, "/")
      room = folder[1] == "src" ? folder[2] : folder[3]
      match($0, /["<][^">]*/)
      quoted = substr($0, RSTART, 1) == "\""
      header = substr($0, RSTART + 1, RLENGTH - 1)
      first = header
      known = sub(/\/.*/, "", first) && (first in rooms)

      if (!(room in rooms)) complain(file " is in no room of cmake/rooms.cmake")
      else if (known && !granted[room, first]) complain(room " must not include " header)
      else if (known && !quoted) complain("write #include \"" header "\"")
      else if (quoted && !known) complain("\"" header "\" is not named from src/ (third-party headers take <>)")
      if (file !~ /\.cpp$/ && header ~ /^(fmt|spdlog|toml\+\+)\//)
        complain("only .cpp files may include " header)
      if (file !~ /^src\/data\/parquet\/.*\.cpp$/ && header ~ /^(arrow|parquet)\//)
        complain("only .cpp files in src/data/parquet may include " header)
    }

    END { exit bad }
  ' cmake/rooms.cmake - || { echo "check_includes: see the table in cmake/rooms.cmake" >&2; exit 1; }
