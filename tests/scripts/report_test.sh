#!/usr/bin/env bash
# Opens the page of `segue report` in Chromium, without a network: it must draw every chart, show the
# numbers of metrics.jsonl, and the browser must not complain. Exit code 77: skipped.
# usage: report_test.sh SEGUE
set -euo pipefail
segue=$1
here=$(cd "$(dirname "$0")" && pwd)

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

# dom FILE: what the page is after its scripts ran; the browser's messages go to FILE.log.
dom() {
  timeout 120 "$browser" --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --user-data-dir="$work/profile" \
    --host-resolver-rules='MAP * ~NOTFOUND' --enable-logging=stderr --v=0 --window-size=1280,900 --dump-dom "file://$1" \
    >"$1.dom" 2>"$1.log" || { tail -5 "$1.log"; skip "$browser does not run here"; }
  if grep CONSOLE "$1.log"; then
    echo "FAILED: the browser complains about $1"
    exit 1
  fi
}

python3 "$here/report_check.py" make "$work"
"$segue" report "$work/one" >/dev/null
"$segue" report "$work/one" "$work/two" "$work/result_0.txt" --out "$work/several.html" --title 'a <b> & "c"' >/dev/null
dom "$work/one/report.html"
dom "$work/several.html"
python3 "$here/report_check.py" check "$work/one/report.html.dom" "$work/one"
python3 "$here/report_check.py" check "$work/several.html.dom" "$work/one" "$work/two"
grep -q '<h1>a &lt;b&gt; &amp; "c"</h1>' "$work/several.html.dom"

# Keys move along the values, a click changes the axis, a chip hides a run.
actions='document.querySelector("[data-x=time]").click();
document.querySelectorAll(".chips button")[1].click();
document.querySelector("#auc svg[tabindex]").dispatchEvent(new KeyboardEvent("keydown", { key: "End" }));'
sed "s|</body>|<script>$(tr '\n' ' ' <<<"$actions")</script></body>|" "$work/several.html" >"$work/acted.html"
dom "$work/acted.html"
python3 "$here/report_check.py" acted "$work/acted.html.dom"
