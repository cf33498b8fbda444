#!/usr/bin/env bash
# Opens the page of `segue report` in Chromium, without a network: it must draw every chart, show the
# numbers of metrics.jsonl, and the browser must not complain. Exit code 77: skipped.
# usage: report_test.sh SEGUE
set -euo pipefail
segue=$1
source "$(dirname "$0")/browser.sh"

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
