"""Helper of report_test.sh.

make DIR           writes run folders DIR/one and DIR/two and an MLPerf log
check DOM RUN...   the page, as the browser had it, has all charts and the numbers of the runs
acted DOM          so has the page after clicks and keys: the tooltip of the last value against time
"""
import html.parser
import json
import math
import os
import random
import sys

CHARTS = ["auc", "loss", "entropy", "calibration", "throughput", "tokens", "mfu", "wait", "stage-history", "lengths", "gradient",
          "outliers", "rate"]


def make_run(folder, seed, name):
    rng = random.Random(seed)
    os.makedirs(folder)
    lines, wall = [], 0.0
    for step in range(10, 210, 10):
        wall += 2 + rng.random()
        samples = step * 64
        lines.append({
            "event": "train", "step": step, "wall_s": wall, "samples": samples,
            "loss_window": 0.7 - 0.001 * step + 0.01 * rng.random(), "auc_window": 0.5 + 0.001 * step, "lr": 1e-3,
            "sparse_lr": 2e-3, "grad_norm": None if step == 50 else math.exp(rng.gauss(0, 2)), "loss_z": rng.gauss(0, 1),
            "grad_norm_z": rng.gauss(0, 1), "samples_window": 640, "length_bin": 64,
            "lengths": [rng.randrange(100) for _ in range(12)], "samples_per_s": 300 + rng.random(),
            "tokens_per_s": 1e5 + rng.random(), "mfu_padded": 0.5, "mfu_jagged": 0.4,
            "stages": {"load": rng.random(), "</script>": rng.random()}, "loader_wait_s": 0.1})
        if step % 50 == 0:
            lines.append({"event": "eval", "step": step, "wall_s": wall, "samples": samples, "auc": 0.5 + 0.001 * step,
                          "auc_low": 0.48 + 0.001 * step, "auc_high": 0.52 + 0.001 * step, "baseline": "user",
                          "loss": 0.6, "normalized_entropy": 0.9, "oracle_auc": 0.88, "baseline_auc": 0.61,
                          "tasks": {"a": {"auc": 0.5 + 0.001 * step, "calibration_error": 0.02, "calibration_curve": [
                              {"labels": 50, "prediction": 0.1 * i, "share": 0.1 * i + 0.02 * rng.random()}
                              for i in range(1, 9)]}}})
    lines.append({"event": "end", "step": 200, "samples": 12800, "status": "finished"})
    with open(f"{folder}/metrics.jsonl", "w") as out:
        out.writelines(json.dumps(line) + "\n" for line in lines)
        out.write('{"event": "tra')
    with open(f"{folder}/config.toml", "w") as out:
        out.write(f'name = "{name}"\n[model]\nlayers = 3\n')


def make(folder):
    make_run(f"{folder}/one", 1, "</script><b>")
    make_run(f"{folder}/two", 2, "two")
    with open(f"{folder}/result_0.txt", "w") as out:
        for i, value in enumerate([0.6, 0.7]):
            event = {"namespace": "", "time_ms": 1000 * i, "event_type": "POINT_IN_TIME", "key": "eval_accuracy",
                     "value": value, "metadata": {"samples_count": 5000 * (i + 1)}}
            out.write(":::MLLOG " + json.dumps(event) + "\n")


class Page(html.parser.HTMLParser):
    """Paths and table rows by the id of their chart."""

    def __init__(self):
        super().__init__()
        self.chart = None
        self.paths, self.rows = {}, {}

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        if tag == "section":
            self.chart = a.get("id")
        elif tag == "path" and len(a.get("d", "")) > 12:
            self.paths.setdefault(self.chart, []).append(a["d"])
        elif tag == "tr":
            self.rows.setdefault(self.chart, []).append((a, []))
        elif tag == "td" and "data-v" in a:
            self.rows[self.chart][-1][1].append(float(a["data-v"]))

    def handle_endtag(self, tag):
        if tag == "section":
            self.chart = None


def values(page, chart, run, part, key):
    return [cells for a, cells in page.rows.get(chart, [])
            if (a.get("data-run"), a.get("data-part"), a.get("data-key")) == (run, part, key)]


def check_run(page, folder, failures):
    lines = []
    with open(f"{folder}/metrics.jsonl") as text:
        for line in text:
            if line.endswith("\n"):
                lines.append(json.loads(line))
    run = os.path.basename(folder)
    names = {"loss": "loss_window", "auc": "auc_window"}
    wanted = [("auc", "eval", "auc"), ("auc", "eval", "oracle_auc"), ("auc", "eval", "baseline_auc"), ("auc", "train", "auc"), ("loss", "train", "loss"),
              ("loss", "eval", "loss"), ("throughput", "train", "samples_per_s"), ("mfu", "train", "mfu_jagged"),
              ("gradient", "train", "grad_norm"), ("outliers", "train", "loss_z"), ("rate", "train", "sparse_lr")]
    for chart, part, key in wanted:
        name = names.get(key, key) if part == "train" else key
        # A value that is not finite has a row without the number.
        expected = [[line["step"], line["samples"], line["wall_s"]] + ([] if line[name] is None else [line[name]])
                    for line in lines if line["event"] == part]
        found = values(page, chart, run, part, key)
        if found != expected:
            failures.append(f"{run}: {chart} {part} {key}: expected {expected[:2]}..., found {found[:2]}...")
    curve = [line for line in lines if line["event"] == "eval"][-1]["tasks"]["a"]["calibration_curve"]
    expected = [[b["labels"], b["prediction"], b["share"]] for b in curve]
    found = [cells for a, cells in page.rows.get("calibration", []) if a.get("data-run") == run]
    if found != expected:
        failures.append(f"{run}: calibration: expected {expected[:2]}..., found {found[:2]}...")
    counts = [sum(c) for c in zip(*(line["lengths"] for line in lines if line["event"] == "train"))]
    found = [cells[0] for a, cells in page.rows.get("lengths", []) if a.get("data-run") == run]
    if found != counts:
        failures.append(f"{run}: lengths: expected {counts}, found {found}")
    for stage in ("load", "</script>"):
        expected = [line["stages"][stage] for line in lines if line["event"] == "train"]
        found = [cells[2] for a, cells in page.rows.get("stage-history", [])
                 if a.get("data-run") == run and a.get("data-stage") == stage]
        if found != expected:
            failures.append(f"{run}: stage {stage}: expected {expected[:2]}..., found {found[:2]}...")


def check(dom, folders):
    page = Page()
    with open(dom) as text:
        page.feed(text.read())
    failures = [f"chart {chart} has no drawn path" for chart in CHARTS if not page.paths.get(chart)]
    failures += [f"chart {chart} has a path that is no number" for chart in CHARTS
                 if any("NaN" in d or "Infinity" in d or "undefined" in d for d in page.paths.get(chart, []))]
    for folder in folders:
        check_run(page, folder, failures)
    for failure in failures:
        print("FAILED:", failure)
    sys.exit(1 if failures else 0)


def acted(dom):
    with open(dom) as text:
        page = text.read()
    start = page.index('<section class="card chart" id="auc"')
    chart = page[start:page.index("</section>", start)]
    failures = []
    if "AUC against time" not in chart:
        failures.append("the click on Time did not change the axis")
    if 'data-run="two"' in chart[:chart.index("<details")]:
        failures.append("the click on a run did not hide it")
    tip = chart[chart.index('<div class="tip"'):]
    tip = tip[:tip.index("<details")]
    if "hidden" in tip.split(">")[0] or "<b>0.7000</b>" not in tip or "evaluation" not in tip:
        failures.append("the End key did not show the last evaluation: " + tip)
    for failure in failures:
        print("FAILED:", failure)
    sys.exit(1 if failures else 0)


if sys.argv[1] == "make":
    make(sys.argv[2])
elif sys.argv[1] == "acted":
    acted(sys.argv[2])
else:
    check(sys.argv[2], sys.argv[3:])
