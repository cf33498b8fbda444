#!/usr/bin/env bash
# Every command of the docs works, and every link leads somewhere. doc_commands.txt says of each line of a
# shell block what is done with it; this script fails when the docs have a command that the list lacks, when
# the list has one that the docs lack, and when a command fails.
# usage: doc_commands.sh SEGUE [fast|slow]
set -uo pipefail
segue=$(realpath "$1") kind=${2:-fast}
seconds=300 # for one command, on a crowded machine
[[ $kind == fast ]] || seconds=1500
cd "$(dirname "$0")/../.." || exit 1
root=$PWD list=tests/scripts/doc_commands.txt
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0 ran=0 read=0
complain() {
  echo "FAILED: $1"
  failed=1
}

# ---- the docs ----

# Lines "FILE:LINE<tab>COMMAND" of all indented blocks: comments gone, continued lines joined. Of a block that
# does not begin with a command (a picture, a listing of files) only the first line.
commands_of() {
  awk '
    function flush() { if (text != "" && (shell || first)) print place "\t" text; text = ""; first = 0 }
    FNR == 1 { flush(); block = 0; blank = 1 }
    /^    / && (blank || block) {
      line = substr($0, 5)
      sub(/  +# .*/, "", line)
      joined = block && text != "" && (line ~ /^ / || text ~ /\\$/)
      if (!joined) {
        flush()
        place = FILENAME ":" FNR
        if (!block) {
          first = 1
          shell = line ~ /^(\[?[A-Z_]+=[^ ]+ )*(segue|build\/segue|make|cmake|scripts\/|\.ci\/|mpirun|srun|sbatch|export|\/usr\/bin|compute-sanitizer|\()/
        }
      }
      block = 1
      sub(/ *\\$/, "", text)
      if (!joined || shell) text = text " " line
      gsub(/ +/, " ", text)
      sub(/^ /, "", text); sub(/ $/, "", text)
      blank = 0
      next
    }
    /^[ \t]*$/ { blank = 1; next }
    { flush(); blank = block = 0 }
    END { flush() }
  ' "$@"
}

check_links() {
  local file target path anchor
  while IFS=: read -r file target; do
    target=${target#](} target=${target%)}
    [[ $target == *://* ]] && continue
    path=${target%%#*} anchor=${target#"$path"}
    path=${path:+$(dirname "$file")/$path}
    path=${path:-$file}
    [[ -e $path ]] || { complain "$file: the link $target leads nowhere"; continue; }
    [[ -z $anchor ]] && continue
    grep '^#' "$path" | sed 's/^#* //' | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g' |
      grep -qx -- "${anchor#\#}" || complain "$file: $path has no heading for $anchor"
  done < <(find . -name '*.md' -not -path './build*' -not -path './.*' -print0 |
    xargs -0 grep -oHE '\]\([^) ]+\)' | sed 's|^\./||')
}

# ---- the list ----

# What is done with a command: how (run, read, skip, text), and what else stands below it.
declare -A how=() with=() needs=() shows=() exits=() is_slow=()
order=()
read_list() {
  local line command=
  while IFS= read -r line; do
    case $line in
      '' | '#'*) ;;
      '  run') how[$command]=run ;;
      '  run with '*) how[$command]=run with[$command]=${line#'  run with '} ;;
      '  read') how[$command]=read ;;
      '  read with '*) how[$command]=read with[$command]=${line#'  read with '} ;;
      '  skip: '*) how[$command]=skip ;;
      '  text') how[$command]=text ;;
      '  slow') is_slow[$command]=1 ;;
      '  needs '*) needs[$command]=${line#'  needs '} ;;
      '  exits '*) exits[$command]=${line#'  exits '} ;;
      '  shows '*) shows[$command]+=${line#'  shows '}$'\n' ;;
      ' '*) complain "$list: \`$line\` is none of run, read, skip:, text, slow, needs, exits, shows" ;;
      *)
        command=$line
        [[ -z ${how[$command]:-} ]] || complain "$list: twice: $command"
        how[$command]=none
        order+=("$command")
        ;;
    esac
  done <$list
}

# ---- what is done ----

has() {
  case $1 in
    parquet) segue version | grep -q '^Parquet *yes' ;;
    mpi) command -v mpirun >/dev/null && ldd "$segue" 2>/dev/null | grep -q libmpi ;;
    *) command -v "$1" >/dev/null ;;
  esac
}

# expand COMMAND OVERRIDES: optional parts [...] go; NAME=value puts the value in place of the word NAME,
# `--option value` takes the place of that option, anything else is added.
expand() {
  local text=$1 words=() i
  while [[ $text =~ \[[^][]*\] ]]; do text=${text/"${BASH_REMATCH[0]}"/}; done
  text=$(sed -E 's/\.\.\.//g; s/ +/ /g' <<<"$text")
  eval "words=($2)"
  for (( i = 0; i < ${#words[@]}; ++i )); do
    local word=${words[i]} value=${words[i + 1]:-}
    if [[ $word == --set ]]; then
      text+=" --set $value"
      ((++i))
    elif [[ $word == --* && " $text " == *" $word "* && $value != --* ]]; then
      text=$(sed -E "s|( $word) [^ ]+|\1 $value|" <<<"$text")
      ((++i))
    elif [[ $word != --* && $word == *=* ]]; then
      text=$(sed -E "s|\b${word%%=*}\b|${word#*=}|g" <<<"$text")
    else
      text+=" $word"
    fi
  done
  echo "$text"
}

declare -A help=()
# Every option that the command names is one of its program, also where it is optional or not run.
check_options() {
  local command=$1 sub option
  [[ $command =~ (^|[ /])segue\ ((checkpoint|mllog|edu|trace)\ [a-z-]+|bench\ report|bench\ suite|bench\ map|publish\ verify|publish\ apply|[a-z]+)(.*) ]] || return 0
  sub=${BASH_REMATCH[2]}
  local rest=${BASH_REMATCH[4]}
  [[ -n ${help[$sub]:-} ]] || help[$sub]=$(segue $sub --help 2>&1)
  for option in $(grep -oE -- '(^|[ []|\| )--[a-z-]+' <<<"$rest" | tr -d ' [|'); do
    grep -qE -- "$option([ ,]|\$)" <<<"${help[$sub]}" || complain "\`segue $sub\` has no $option: $command"
  done
}

run() {
  local command=$1 text code=0 part
  text=$(expand "$command" "${with[$command]:-}")
  (cd "$work" && timeout $seconds bash -c "$text") >"$work/out" 2>&1 </dev/null || code=$?
  ((++ran))
  if [[ $code != "${exits[$command]:-0}" ]]; then
    complain "exit code $code of: $text"
    tail -n 20 "$work/out"
  fi
  while IFS= read -r part; do
    [[ -n $part ]] || continue
    grep -qF -- "$part" "$work/out" || complain "\`$part\` is not what it prints: $text"
    grep -qF -- "$part" "${docs[@]}" || complain "\`$part\` is not in the docs: $command"
  done <<<"${shows[$command]:-}"
}

# A config is resolved, a script parsed, a target of make looked up; nothing is done.
read_only() {
  local command=$1 text words
  text=$(expand "$command" "${with[$command]:-}")
  ((++read))
  if [[ $text =~ (^|[ /])(segue\ train\ .*) ]]; then
    (cd "$work" && bash -c "${BASH_REMATCH[2]} --print-config") >"$work/out" 2>&1 ||
      { complain "$command"; cat "$work/out"; }
  elif [[ $text == make* ]]; then
    bash -c "make -n ${text#make}" >"$work/out" 2>&1 || { complain "$command"; tail -n 3 "$work/out"; }
  else
    words=($text)
    bash -n "${words[0]}" || complain "$command"
    for option in $(grep -oE -- '--[a-z-]+' <<<"$command"); do
      grep -qF -- "$option" "${words[0]}" || complain "${words[0]} has no $option"
    done
  fi
}

mkdir -p "$work/build" "$work/bin"
ln -s "$segue" "$work/build/segue"
ln -s "$segue" "$work/bin/segue"
ln -s "$root/configs" "$root/scripts" "$root/tests" "$work"
cp -r docs "$work/docs"  # `segue bench report` may write there
export PATH=$work/bin:$PATH
unset "${!SEGUE_@}"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

docs=(README.md CONTRIBUTING.md docs/*.md)
read_list
declare -A in_docs=()
while IFS=$'\t' read -r place command; do
  in_docs[$command]=$place
  [[ -n ${how[$command]:-} ]] || complain "$place: not in $list: $command"
done < <(commands_of "${docs[@]}")
for command in "${order[@]}"; do
  [[ -n ${in_docs[$command]:-} ]] || { complain "$list: in no doc any more: $command"; continue; }
  [[ ${how[$command]} == none ]] && { complain "$list: does not say what to do with: $command"; continue; }
  [[ $kind == "${is_slow[$command]:+slow}" || ( $kind == fast && -z ${is_slow[$command]:-} ) ]] || continue
  check_options "$command"
  missing=
  for need in ${needs[$command]:-}; do has "$need" || missing=$need; done
  if [[ -n $missing ]]; then
    echo "not run, there is no $missing: $command"
    continue
  fi
  case ${how[$command]} in
    run) run "$command" ;;
    read) read_only "$command" ;;
  esac
done
if [[ $kind == fast ]]; then
  check_links
  while IFS= read -r command; do check_options "$command"; done < <(
    grep -ohE '"command": "[^"]*"' docs/rows/*.jsonl | cut -d'"' -f4 | sort -u)
fi
echo "$ran commands of the docs run, $read read"
exit $failed
