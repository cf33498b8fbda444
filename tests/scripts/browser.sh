# Sourced by tests of pages: finds Chromium and opens pages in it, without a network. Sets `here` (this folder) and
# `work` (a folder that goes away at the end). Exit code 77: skipped.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

skip() {
  echo "skipped: $1"
  exit 77
}
command -v python3 >/dev/null || skip "python3 is missing"
browser=
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then browser=$name; break; fi
done
[[ -n $browser ]] || skip "there is no Chromium (Debian: apt-get install chromium)"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# dom FILE: what the page is after its scripts ran goes to FILE.dom; the browser must not complain.
dom() {
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" \
    --host-resolver-rules='MAP * ~NOTFOUND' --enable-logging=stderr --v=0 --window-size=1280,900 --dump-dom "file://$1" \
    >"$1.dom" 2>"$1.log" || { tail -5 "$1.log"; skip "$browser does not run here"; }
  if grep CONSOLE "$1.log"; then
    echo "FAILED: the browser complains about $1"
    exit 1
  fi
}
