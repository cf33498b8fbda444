#!/usr/bin/env bash
# run.sh BUILD FILE: clang-tidy of one file, from the root of the sources. Findings go to stdout; stderr
# only counts the suppressed ones.
set -euo pipefail

# The command lines without g++'s precompiled headers, which clang cannot read.
commands=$1/tidy/compile_commands.json
if [[ ! $commands -nt $1/compile_commands.json ]]; then
  mkdir -p "$1/tidy"
  sed -E 's/ -Winvalid-pch -include [^ ]*cmake_pch\.hxx//' "$1/compile_commands.json" >"$commands.$$"
  mv "$commands.$$" "$commands"
fi

# clang reads g++'s command lines here: it does not know all of g++'s warnings, finds omp.h only when
# told where g++ keeps it, and std::source_location only beside this script.
arguments=(-p "$1/tidy" --quiet --extra-arg=-Wno-unknown-warning-option --extra-arg=-Wno-unknown-pragmas
  --extra-arg=-idirafter"$(g++ -print-file-name=include)"
  --extra-arg=-isystem"$(realpath "$(dirname "$0")")")
# What a test does slowly costs nobody anything.
[[ $2 != *_test.cpp ]] || arguments+=('--checks=-performance-*')
exec clang-tidy-14 "${arguments[@]}" "$2"
