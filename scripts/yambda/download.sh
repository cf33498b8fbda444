#!/usr/bin/env bash
# Downloads what `segue prep` needs of the public data set yandex/yambda (a Hugging Face data set).
#
#   scripts/yambda/download.sh SIZE DIR        SIZE: 50m, 500m or 5b
#
# Fetches the events of that size and the two item mappings into DIR, nothing else. An interrupted
# download goes on where it stopped when the script is started again; complete files are not fetched
# again. Ends with verify.sh.
#
#   YAMBDA_MIRROR         base address that the files lie under (http, https)
#   YAMBDA_REVISION       revision of the data set at the default address
#   YAMBDA_RETRIES        attempts per file (5)
#   YAMBDA_RETRY_SECONDS  pause before the second attempt, doubled every time (2)
#   YAMBDA_TOOL           curl or wget; default: curl if there is one
#   http_proxy, https_proxy, no_proxy  as usual
#
# Exit codes: 2 usage, 3 not found, 4 wrong checksum or damaged file, 5 network, 6 no tool or no room.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=files.sh
source "$here/files.sh"

check_arguments "download.sh SIZE DIR   (SIZE: $yambda_sizes)" "$@"
size=$1
folder=$2

revision=${YAMBDA_REVISION:-dd6f3a19eef5866e346c3270e098baa641a44948}
base=${YAMBDA_MIRROR:-https://huggingface.co/datasets/yandex/yambda/resolve/$revision}
base=${base%/}
retries=${YAMBDA_RETRIES:-5}
pause=${YAMBDA_RETRY_SECONDS:-2}

tool=${YAMBDA_TOOL:-}
if [[ -z $tool ]]; then
  for tool in curl wget ''; do
    [[ -z $tool ]] || ! command -v "$tool" >/dev/null || break
  done
fi
[[ $tool == curl || $tool == wget ]] || die 6 "install curl or wget"
command -v "$tool" >/dev/null || die 6 "there is no $tool here"

curl_bytes_of() {  # URL: its size, or nothing
  curl --fail --location --silent --head --connect-timeout 30 "$1" | tr -d '\r' |
    awk 'tolower($1) == "content-length:" { bytes = $2 } END { print bytes }' || true
}

# Each prints one word: done, again (worth another attempt), restart (the part is of no use), missing,
# refused, or full (the disk).
fetch_with_curl() {
  local url=$1 part=$2 rc=0 code
  code=$(curl --fail --location --silent --show-error ${progress:+$progress} --continue-at - \
    --connect-timeout 30 --speed-limit 1000 --speed-time 60 \
    --write-out '%{http_code}' --output "$part" "$url") || rc=$?
  case $rc:$code in
    0:*) echo "done" ;;
    *:404 | *:410) echo missing ;;
    *:401 | *:403) echo refused ;;
    *:416)  # nothing is left: the part is the whole file, or not its beginning
      if [[ $(curl_bytes_of "$url") == "$(file_bytes "$part")" ]]; then echo "done"; else echo restart; fi
      ;;
    33:*) echo restart ;;    # the server cannot go on in the middle
    23:*) echo full ;;
    *) echo again ;;
  esac
}

fetch_with_wget() {
  local url=$1 part=$2 rc=0 log=$2.log
  wget --continue --tries=1 --timeout=60 --no-verbose --server-response --output-document="$part" "$url" \
    2>"$log" || rc=$?
  local code
  code=$(sed -n 's/^ *HTTP\/[0-9.]* \([0-9]*\).*/\1/p' "$log" | tail -n 1)
  case $rc:$code in
    0:*) echo "done" ;;
    *:404 | *:410) echo missing ;;
    *:401 | *:403) echo refused ;;
    *:416) echo restart ;;
    3:*) echo full ;;
    *)
      tail -n 1 "$log" >&2
      echo again
      ;;
  esac
  rm -f "$log"
}

# fetch FILE: into FILE.part, renamed when complete.
fetch() {
  local file=$1 url=$base/$1 target=$folder/$1 wait=$pause attempt had
  local part=$target.part
  mkdir -p "$(dirname "$target")" || die 6 "cannot make the folder of $target"
  had=$(file_bytes "$part")
  if ((had > 0)); then say "$file: going on after $had bytes"; else say "$file: fetching"; fi
  for ((attempt = 1; ; ++attempt)); do
    case $("fetch_with_$tool" "$url" "$part") in
      done)
        mv "$part" "$target"
        say "$file: $(file_bytes "$target") bytes"
        return
        ;;
      restart)
        say "$file: the server does not go on with the part that is here; starting again"
        rm -f "$part"
        ;;
      missing)
        [[ -s $part ]] || rm -f "$part"
        die 3 "not found: $url (check the address in YAMBDA_MIRROR and YAMBDA_REVISION)"
        ;;
      refused) die 5 "the server refuses $url" ;;
      full) die 6 "cannot write $part (is the disk full?); start again to go on" ;;
      *) ;;
    esac
    if ((attempt >= retries)); then
      die 5 "$url: no success in $attempt attempts; $(file_bytes "$part") bytes are here, start again to go on"
    fi
    say "$file: attempt $attempt failed with $(file_bytes "$part") bytes here; next in $wait s"
    sleep "$wait"
    wait=$((wait * 2))
  done
}

progress=
[[ ! -t 2 ]] || progress=--progress-bar
while IFS= read -r file; do
  if [[ -f $folder/$file ]]; then
    say "$file: is here"
  else
    fetch "$file"
  fi
done < <(yambda_files "$size")

"$here/verify.sh" "$size" "$folder"
