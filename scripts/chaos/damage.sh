# shellcheck shell=bash disable=SC2034,SC2154
# damage-run: half a run, one or more of whose files are damaged: bytes flipped, cut off, removed. It goes on and
# ends in the same bits (from an older checkpoint, or because the file does not matter), or is refused.
# damage-store: the same with the files of a store, which train, inspect and prep --verify read.

cannot_damage_run() { false; }
cannot_damage_store() { false; }

# damage FOLDER: one of its files; sets damaged and says what was done in $try/damage.
damage() {
  local files size at byte
  mapfile -t files < <(find "$1" -type f | sort)
  pick_of "${files[@]}"
  damaged=$REPLY
  size=$(stat -c %s "$damaged")
  pick_of flip flip flip cut remove
  local kind=$REPLY
  ((size > 0)) || kind=remove
  case $kind in
    flip)
      pick "$size" && at=$REPLY
      byte=$(od -An -tu1 -j "$at" -N 1 "$damaged")
      pick 255
      byte=$((byte ^ (REPLY + 1)))
      printf '%b' "\\x$(printf %02x "$byte")" | dd of="$damaged" bs=1 seek="$at" conv=notrunc status=none
      ;;
    cut) pick "$size" && at=$REPLY && truncate -s "$at" "$damaged" ;;
    remove) at=all && rm -f "$damaged" ;;
  esac
  hit=yes
  echo "$kind at ${at:-0} of $size: $damaged" >>"$try/damage"
}

try_damage_run() {
  local count i compare=metrics config_damaged=no
  cp -a "$work/half" "$try/run"
  pick 3 && count=$((REPLY / 2 + 1))
  for ((i = 0; i < count; ++i)); do
    damage "$try/run"
    case $damaged in
      */metrics.jsonl) compare=no-metrics ;;  # lines that are gone stay gone, with a warning
      */run/config.toml) config_damaged=yes ;;
    esac
  done
  train one "$try/run"
  run resume "${command[@]}"
  if ((rc == 0)); then
    compare_bits "$try/run" 1 $compare
  elif [[ $config_damaged == yes ]]; then
    require_refusal "2 3 4"
  else
    require_refusal "3 4"
  fi
  find "$try/run/checkpoints" -maxdepth 1 -name '.tmp-*' -exec rm -rf {} +  # of a run that was refused
}

try_damage_store() {
  local what
  cp -a "$store" "$try/store"
  damage "$try/store"
  for what in "inspect $try/store" "inspect $try/store --verify" "prep --out $try/store --verify"; do
    # shellcheck disable=SC2086
    run "${what%% *}" "$segue" $what
    ((rc == 0)) || require_refusal "2 3 4"
  done
  train one "$try/run" --set "data.store=$try/store"
  run train "${command[@]}"
  if ((rc == 0)); then
    compare_bits "$try/run" 1
  else
    require_refusal "2 3 4 5"
  fi
}
