#!/usr/bin/env bash
# Opens the page of `segue trace view` in Chromium, without a network: it must draw the spans, zoom in, show the
# details of a span that is clicked, and the browser must not complain. Exit code 77: skipped.
# usage: trace_test.sh SEGUE
set -euo pipefail
segue=$1
source "$(dirname "$0")/browser.sh"

# Two ranks of 400 steps with a stage inside, a kernel with an arrow to it, a counter, and a name that is markup.
python3 - "$work/trace.json" <<'PY'
import json
import sys
events = []
for rank in range(2):
    events.append({"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}})
    events.append({"name": "thread_name", "ph": "M", "pid": rank, "tid": 1, "args": {"name": "</script><b>"}})
    for step in range(400):
        at = step * 1000.0
        where = {"pid": rank, "tid": 1}
        events.append({"name": f"step {step}", "cat": "step", "ph": "X", **where, "ts": at, "dur": 900})
        events.append({"name": "</script>", "cat": "host", "ph": "X", **where, "ts": at + 100, "dur": 300,
                       "args": {"flop": 6e8}})
        events.append({"name": "gemm", "cat": "kernel", "ph": "X", "pid": rank, "tid": 2, "ts": at + 200, "dur": 100})
        flow = {"name": "queued", "cat": "flow", "id": rank * 1000 + step, "pid": rank}
        events.append({**flow, "ph": "s", "tid": 1, "ts": at + 150})
        events.append({**flow, "ph": "f", "bp": "e", "tid": 2, "ts": at + 200})
    events.append({"name": "memory", "ph": "C", "pid": rank, "tid": 0, "ts": 5, "args": {"table": 7.5}})
with open(sys.argv[1], "w") as out:
    json.dump({"traceEvents": events}, out)
PY
"$segue" trace view "$work/trace.json" --out "$work/page.html" --title 'a <b> & "c"' >/dev/null
dom "$work/page.html"

# Zooms in to step 7 of the first rank, clicks the stage in it, and moves on by a key.
actions='look(7e6, 8e6); const row = rows[0];
const at = { clientX: x_of(7.25e6) + canvas.getBoundingClientRect().left, clientY: row.y + ROW + 5 + canvas.getBoundingClientRect().top,
  pointerId: 1, bubbles: true };
canvas.setPointerCapture = () => {};
canvas.dispatchEvent(new PointerEvent("pointerdown", at)); canvas.dispatchEvent(new PointerEvent("pointerup", at));
canvas.dataset.ink = new Set(context.getImageData(0, 0, canvas.width, canvas.height).data).size;'
python3 - "$work/page.html" "$work/acted.html" "$actions" <<'PY'
import sys
page = open(sys.argv[1]).read()
open(sys.argv[2], "w").write(page.replace("</body>", f"<script>{sys.argv[3]}</script></body>"))
PY
dom "$work/acted.html"
python3 - "$work/page.html.dom" "$work/acted.html.dom" <<'PY'
import re
import sys
whole, acted = (open(path).read() for path in sys.argv[1:3])
failures = []
def data(page, key):
    found = re.search(rf'<canvas[^>]*data-{key}="([^"]*)"', page)
    return float(found.group(1)) if found else -1
if '<h1>a &lt;b&gt; &amp; "c"</h1>' not in whole:
    failures.append("the title is not escaped")
if data(whole, "drawn") < 100 or data(whole, "to") - data(whole, "from") < 3.9e8:
    failures.append(f"the whole trace was not drawn: {data(whole, 'drawn')}")
if not 6 <= data(acted, "drawn") <= 20 or data(acted, "to") - data(acted, "from") > 1.01e6:
    failures.append(f"zoomed in, {data(acted, 'drawn')} spans were drawn")
if data(acted, "ink") < 10:
    failures.append("the canvas is empty")
details = acted[acted.index('<dl id="details"'):acted.index("</dl>")]
for text in ("&lt;/script&gt;", "300.0 µs", "rank 0", "2.0 TFLOP/s"):
    if text not in details:
        failures.append(f"a click does not show {text}: {details}")
for failure in failures:
    print("FAILED:", failure)
sys.exit(1 if failures else 0)
PY
