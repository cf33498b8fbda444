# shellcheck shell=bash disable=SC2034,SC2154
# disk, disk-prep: the disk fills up. A command then says so and ends with exit code 3, or does without (a
# checkpoint that cannot be saved is a warning); given room, the same command ends as if nothing had been.
# A small tmpfs is the disk; where none may be mounted, a limit on the size of files stands for it.

can_mount() {
  mkdir -p "$work/mount-test" && mount -t tmpfs -o size=1m none "$work/mount-test" 2>/dev/null &&
    umount "$work/mount-test"
}
if can_mount; then disk_kind=tmpfs; else disk_kind=limit; fi

cannot_disk() { [[ $disk_kind == limit ]] && ! (ulimit -f 100) 2>/dev/null && echo 'neither tmpfs nor ulimit -f'; }
cannot_disk_prep() { cannot_disk; }

unmount_try() {
  [[ -z $try ]] || ! mountpoint -q "$try/disk" 2>/dev/null || umount -l "$try/disk"
}

# on_small_disk KIB COMMAND...: runs it with that much room in $try/disk; more_room takes the limit away.
on_small_disk() {
  local kib=$1
  shift
  mkdir -p "$try/disk"
  if [[ $disk_kind == tmpfs ]]; then
    mount -t tmpfs -o "size=${kib}k" none "$try/disk" || fail_try "mount failed"
    run small "$@"
  else
    # shellcheck disable=SC2016
    run small bash -c 'ulimit -f "$0" && exec "$@"' $((kib / 4 + 1)) "$@"  # of one file
  fi
  if ((rc != 0)) || grep -q 'could not be saved' "$log"; then hit=yes; fi
  ((rc == 0)) || require_refusal "3"
}
more_room() {
  [[ $disk_kind == limit ]] || mount -o remount,size=256m "$try/disk" || fail_try "remount failed"
}

try_disk() {
  pick_of one ranks2
  local layout=$REPLY
  train "$layout" "$try/disk/run"
  pick 12000
  on_small_disk $((REPLY + 20)) "${command[@]}"
  more_room
  end_run "$layout" "$try/disk/run"
}

try_disk_prep() {
  local out=$try/disk/store
  command=("${prep[@]}" --raw "$work/raw-1" --out "$out")
  pick 450
  on_small_disk $((REPLY + 10)) "${command[@]}"
  more_room
  if ((rc != 0)); then
    run again "${command[@]}"
    ((rc == 0)) || fail_try "given room, prep ended with exit code $rc: $(tail -n 1 "$log")"
  fi
  compare_store "$out" 1
}
