# shellcheck shell=bash disable=SC2034,SC2154
# prep: SIGKILL while a store is made: it is whole or unfinished, and the same command makes it whole.
# prep-overwrite: SIGKILL while one replaces another: it is the old one or the new one, whole.

cannot_prep() { false; }
cannot_prep_overwrite() { false; }

# same_store STORE N: byte for byte the one that nothing disturbed. A killed prep leaves .tmp to the next one.
same_store() { diff -rq --exclude=.lock --exclude=.tmp "$work/prepared-$2" "$1" >"$try/store.diff"; }
compare_store() { same_store "$@" || fail_try "the store is not the undisturbed one: $(head -n 1 "$try/store.diff")"; }

kill_prep() {
  command=("${prep[@]}" "$@")
  start killed "${command[@]}"
  pick 250 && nap "$REPLY"
  kill -KILL "$pid" 2>/dev/null
  await 30
  ((rc != 137)) || hit=yes
  ((rc == 0 || rc == 137)) || fail_try "prep ended with exit code $rc: $(tail -n 1 "$log")"
}
# is_whole STORE: by prep's own judgement.
is_whole() {
  run verify "$segue" prep --out "$1" --verify
  died_by_signal "$rc" && fail_try "prep --verify ended with exit code $rc"
  ((rc == 0))
}
prep_again() {
  run again "${command[@]}"
  ((rc == 0)) || fail_try "started again, prep ended with exit code $rc: $(tail -n 1 "$log")"
  [[ ! -e $out/.tmp ]] || fail_try "prep ended well, but left $out/.tmp"
}

try_prep() {
  local out=$try/store
  kill_prep --raw "$work/raw-1" --out "$out"
  if is_whole "$out"; then
    compare_store "$out" 1
  else
    prep_again
  fi
  compare_store "$out" 1
}

try_prep_overwrite() {
  local out=$try/store
  cp -a "$work/prepared-1" "$out"
  kill_prep --raw "$work/raw-2" --out "$out" --overwrite
  is_whole "$out" || fail_try "neither the old store nor the new one is whole: $(tail -n 1 "$log")"
  same_store "$out" 1 || compare_store "$out" 2
  prep_again
  compare_store "$out" 2
}
