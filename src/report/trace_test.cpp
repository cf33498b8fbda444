#include "report/trace.h"

#include <map>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_util.h"
#include "report/page/trace_page.h"
#include "report/trace_reader.h"

namespace segue::report {
namespace {

using Json = nlohmann::json;

Json of_kind(const Json& trace, const std::string& member, const std::string& value) {
  Json found = Json::array();
  for (const Json& event : trace.at("traceEvents")) {
    if (event.value(member, "") == value) found.push_back(event);
  }
  return found;
}

/// Empty if the spans of every track nest, else what does not.
std::string not_nested(const Json& trace) {
  struct Span {
    int64_t start, end;
  };
  std::map<std::pair<int64_t, int64_t>, std::vector<Span>> tracks;
  for (const Json& event : of_kind(trace, "ph", "X")) {
    const int64_t start = std::llround(event.at("ts").get<double>() * 1000);
    tracks[{event.at("pid"), event.at("tid")}].push_back(
        {start, start + std::llround(event.at("dur").get<double>() * 1000)});
  }
  for (auto& [key, spans] : tracks) {
    std::ranges::stable_sort(spans, [](const Span& a, const Span& b) {
      return std::pair(a.start, -a.end) < std::pair(b.start, -b.end);
    });
    std::vector<int64_t> open;
    for (const Span& s : spans) {
      while (!open.empty() && open.back() <= s.start) open.pop_back();
      if (!open.empty() && s.end > open.back()) {
        return "track " + std::to_string(key.second) + " at " + std::to_string(s.start);
      }
      open.push_back(s.end);
    }
  }
  return "";
}

TEST(Trace, EventsThreadsAndRank) {
  base::StageRecording recording;
  recording.start_ns = 5000;
  recording.threads = {"main", "loader \"0\""};
  recording.thread_ids = {11, 12};
  recording.events = {{"load", 1, 7, 45}, {"step", 0, 1000, 1'234'567}};
  recording.events[1].facts[0] = {"tokens", 640};
  recording.counters = {{"memory", 20, {{"table", 3e9}, {"batch", 5}}}};
  const std::string path = base::temp_path("trace.json");
  TraceFacts facts{.rank = 3, .ranks = 4, .steps = {{8, 10, 20}}};
  facts.clock = {.ahead_ns = -7, .error_ns = 9, .machine = "here"};
  write_trace(path, recording, facts);

  const Json trace = Json::parse(base::read_file(path));
  EXPECT_EQ(trace.at("otherData").at("clock").at("start_ns"), 5000);
  EXPECT_EQ(trace.at("otherData").at("clock").at("ahead_ns"), -7);
  EXPECT_EQ(trace.at("otherData").at("steps"), Json({8}));
  EXPECT_EQ(of_kind(trace, "name", "process_name")[0].at("args").at("name"), "rank 3");
  const Json names = of_kind(trace, "name", "thread_name");
  ASSERT_EQ(names.size(), 3u);
  EXPECT_EQ(names[0].at("args").at("name"), "steps");
  EXPECT_EQ(names[2].at("args").at("name"), "loader \"0\"");
  const Json step = of_kind(trace, "name", "step")[0];
  EXPECT_EQ(step.at("ph"), "X");
  EXPECT_EQ(step.at("pid"), 3);
  EXPECT_EQ(step.at("tid"), names[1].at("tid"));
  EXPECT_EQ(step.at("ts"), 1.0);
  EXPECT_EQ(step.at("dur"), 1234.567);
  EXPECT_EQ(step.at("args").at("tokens"), 640);
  EXPECT_EQ(of_kind(trace, "name", "load")[0].at("ts"), 0.007);
  EXPECT_EQ(of_kind(trace, "ph", "C")[0].at("args").at("table"), 3e9);
}

TEST(Trace, EmptyRecordingIsStillATrace) {
  const Json trace = Json::parse(trace_json({}, {}));
  EXPECT_TRUE(of_kind(trace, "ph", "X").empty());
  EXPECT_TRUE(parse_trace(trace.dump(), "empty").tracks.empty());
}

TEST(Trace, RecordingOfRealStages) {
  base::start_stage_recording();
  { const base::Stage stage("gather"); }
  const std::string text = trace_json(base::stop_stage_recording(), {});
  EXPECT_TRUE(base::contains(text, "\"gather\""));
  EXPECT_TRUE(Json::accept(text));
}

/// A forward stage with two kernels, a layer inside it, and a kernel that no stage queued.
base::StageRecording with_kernels() {
  base::StageRecording r;
  r.threads = {"main"};
  r.thread_ids = {42};
  r.events = {{"forward", 0, 100, 500}, {"layer 0", 0, 200, 300}};
  r.calls = {{"cudaLaunchKernel", 42, 120, 10},
             {"cudaLaunchKernel", 42, 250, 10},
             {"cudaLaunchKernel", 42, 300, 10},
             {"cudaLaunchKernel", 99, 700, 10}};
  const auto kernel = [](const char* name, int64_t start, int64_t length, int call) {
    base::DeviceWork w;
    w.name = name;
    w.stream = 7;
    w.start_ns = start;
    w.duration_ns = length;
    w.grid = {4, 2, 1};
    w.block = {128, 1, 1};
    w.registers = 64;
    w.call = call;
    return w;
  };
  r.work = {kernel("gather", 1000, 100, 0), kernel("gemm", 1200, 100, 1),
            kernel("attention", 1300, 400, 2), kernel("stray", 1800, 10, 3),
            kernel("beside", 1350, 100, -1)};
  return r;
}

TEST(Trace, StagesLieAroundTheKernelsThatTheyQueued) {
  const Json trace = Json::parse(trace_json(with_kernels(), {}));
  EXPECT_EQ(not_nested(trace), "");
  const Json stages = of_kind(trace, "cat", kStageSpan);
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].at("name"), "forward");
  EXPECT_EQ(stages[0].at("ts"), 1.0);
  EXPECT_EQ(stages[0].at("dur"), 0.7);
  EXPECT_EQ(stages[1].at("name"), "layer 0");
  EXPECT_EQ(stages[1].at("ts"), 1.2);
  EXPECT_EQ(stages[1].at("dur"), 0.5);
  const Json kernels = of_kind(trace, "cat", kKernelSpan);
  ASSERT_EQ(kernels.size(), 5u);
  EXPECT_EQ(kernels[0].at("tid"), stages[0].at("tid"));
  EXPECT_EQ(kernels[0].at("args").at("grid"), Json({4, 2, 1}));
  EXPECT_EQ(kernels[0].at("args").at("registers"), 64);
  EXPECT_EQ(kernels.back().at("name"), "beside");  // what overlaps has a track of its own
  EXPECT_NE(kernels.back().at("tid"), stages[0].at("tid"));
  // Arrows lead from calls of known threads.
  const Json from = of_kind(trace, "ph", "s"), to = of_kind(trace, "ph", "f");
  ASSERT_EQ(from.size(), 3u);
  EXPECT_EQ(to.size(), 3u);
  EXPECT_EQ(from[1].at("ts"), 0.25);
  EXPECT_EQ(to[1].at("ts"), 1.2);
  EXPECT_EQ(from[1].at("id"), to[1].at("id"));
}

TEST(Trace, SummaryOfKernelsStagesAndGaps) {
  base::StageRecording recording = with_kernels();
  const TraceContents trace =
      parse_trace(trace_json(recording, {.steps = {{1, 0, 900}, {2, 900, 1100}}}), "test");
  const TraceSummary sum = summarize(trace);
  EXPECT_EQ(sum.steps, 2);
  EXPECT_EQ(sum.ranks, 1);
  EXPECT_NEAR(sum.window, 2000e-9, 1e-15);
  EXPECT_NEAR(sum.busy, 610e-9, 1e-15);         // 1000-1100, 1200-1700, 1800-1810
  EXPECT_NEAR(sum.gap_seconds, 200e-9, 1e-15);  // 100 twice
  ASSERT_FALSE(sum.kernels.empty());
  EXPECT_EQ(sum.kernels[0].name, "attention");
  const auto stage = [&](const std::string& name) {
    for (const TraceSummary::Entry& e : sum.stages) {
      if (e.name == name) return e;
    }
    return TraceSummary::Entry{};
  };
  EXPECT_NEAR(stage("forward").seconds, 600e-9, 1e-15);
  EXPECT_NEAR(stage("forward").own, 100e-9, 1e-15);
  EXPECT_NEAR(stage("layer 0").own, 500e-9, 1e-15);
  EXPECT_EQ(sum.host[0].name, "main: layer 0");
  EXPECT_NEAR(sum.host[1].own, 200e-9, 1e-15);
}

/// Stages that nest, on threads, and work of streams that may overlap.
base::StageRecording random_recording(std::mt19937& random) {
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(n));
  };
  static const char* const kNames[] = {"a", "b\n\"<", "c\\u0000\xff", "layer 1"};
  base::StageRecording r;
  const auto stages = [&](const auto& self, int thread, int64_t begin, int64_t end,
                          int depth) -> void {
    while (begin < end && below(4) > 0) {
      const int64_t from = begin + below(end - begin), to = from + below(end - from + 1);
      base::StageEvent event{kNames[below(4)], thread, from, to - from};
      if (below(3) == 0) event.facts[0] = {"flop", static_cast<double>(below(1000))};
      r.events.push_back(event);
      if (depth < 4) self(self, thread, from, to, depth + 1);
      begin = to;
    }
  };
  for (int t = 0; t < 3; ++t) {
    r.threads.push_back("thread " + std::to_string(t));
    r.thread_ids.push_back(100 + t);
    stages(stages, t, 0, 10'000, 0);
  }
  std::ranges::stable_sort(r.events, {}, &base::StageEvent::start_ns);
  for (int i = 0; i < 60; ++i) {
    r.calls.push_back({"launch", 100 + below(4), below(10'000), below(50)});
  }
  for (int i = 0; i < 80; ++i) {
    base::DeviceWork work;
    work.kind = static_cast<base::DeviceWork::Kind>(below(3));
    work.name = kNames[below(4)];
    work.device = static_cast<int>(below(2));
    work.stream = below(3);
    work.start_ns = below(20'000);
    work.duration_ns = below(400);
    work.call = static_cast<int>(below(61)) - 1;
    r.work.push_back(work);
  }
  return r;
}

TEST(Trace, AnyRecordingIsStrictJsonWhoseSpansNest) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const base::StageRecording recording = random_recording(random);
    const std::string text = trace_json(recording, {.steps = {{1, 0, 10'000}}});
    const Json trace = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_FALSE(trace.is_discarded()) << "seed " << seed;
    ASSERT_EQ(not_nested(trace), "") << "seed " << seed;
    EXPECT_EQ(of_kind(trace, "cat", kKernelSpan).size() + of_kind(trace, "cat", kCopySpan).size() +
                  of_kind(trace, "cat", kFillSpan).size(),
              recording.work.size());
    EXPECT_EQ(of_kind(trace, "cat", kHostSpan).size(), recording.events.size());
    // What was written is read back, and drawn.
    const TraceContents contents = parse_trace(text, "random");
    EXPECT_EQ(contents.flows.size(), of_kind(trace, "ph", "s").size());
    const TraceSummary sum = summarize(contents);
    EXPECT_LE(sum.busy, sum.window + 1e-12) << "seed " << seed;
    const std::string page = trace_page(contents, "<t>", "now");
    EXPECT_EQ(page.find("b\n\"<"), std::string::npos);
  }
}

TEST(Trace, WorkInsideAStageSpanWasQueuedByThatStage) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    std::mt19937 random(seed);
    base::StageRecording recording = random_recording(random);
    const detail::TraceTracks tracks = detail::tracks_of(recording);
    // Every stage span on a stream is named after a stage that was open when something was queued.
    for (size_t t = recording.threads.size(); t < tracks.tracks.size(); ++t) {
      for (const detail::TraceSpan& span : tracks.tracks[t].spans) {
        if (span.category != kStageSpan) continue;
        const bool known = std::ranges::any_of(
            recording.events, [&](const base::StageEvent& e) { return e.name == span.name; });
        EXPECT_TRUE(known);
      }
    }
  }
}

// ---- several ranks ----

std::string rank_file(int rank, int64_t start_ns, int64_t ahead_ns, const std::string& machine) {
  base::StageRecording recording = with_kernels();
  recording.start_ns = start_ns;
  TraceFacts facts{.rank = rank, .ranks = 2, .steps = {{1, 0, 2000}}};
  facts.clock = {.ahead_ns = ahead_ns, .error_ns = 400, .machine = machine};
  const std::string path = base::temp_path("trace_rank" + std::to_string(rank) + ".json");
  write_trace(path, recording, facts);
  return path;
}

double start_of(const Json& trace, int pid, const std::string& name) {
  for (const Json& event : trace.at("traceEvents")) {
    if (event.value("name", "") == name && event.at("pid") == pid) return event.at("ts");
  }
  return -1;
}

TEST(TraceMerge, ClocksAreAlignedAndNumbersStayApart) {
  // Rank 1 read 9000 when rank 0 read 2000; its recording began 500 ns after rank 0's.
  const std::string first = rank_file(0, 1000, 0, "a"), second = rank_file(1, 8500, 7000, "b");
  const MergedTrace merged = merge_traces({second, first});
  EXPECT_TRUE(merged.warnings.empty());
  EXPECT_EQ(merged.error_us, 0.4);
  const Json trace = Json::parse(merged.json);
  EXPECT_EQ(not_nested(trace), "");
  EXPECT_EQ(start_of(trace, 0, "gemm"), 1.2);
  EXPECT_EQ(start_of(trace, 1, "gemm"), 1.7);
  std::map<int64_t, std::vector<int64_t>> flows;
  for (const Json& event : of_kind(trace, "ph", "s"))
    flows[event.at("id")].push_back(event.at("pid"));
  EXPECT_EQ(flows.size(), 6u);
  for (const Json& event : of_kind(trace, "ph", "f")) {
    ASSERT_EQ(flows[event.at("id")].size(), 1u);
    EXPECT_EQ(flows[event.at("id")][0], event.at("pid"));
  }
  EXPECT_EQ(summarize(parse_trace(merged.json, "merged")).ranks, 2);
}

TEST(TraceMerge, RanksOfOneMachineReadOneClock) {
  const std::string first = rank_file(0, 1000, 0, "a");
  Json trace = Json::parse(merge_traces({first, rank_file(1, 1200, 300, "a")}).json);
  EXPECT_EQ(start_of(trace, 1, "gemm"), 1.4);  // what was measured is within its error of none
  trace = Json::parse(merge_traces({first, rank_file(1, 9200, 8000, "a")}).json);
  EXPECT_EQ(start_of(trace, 1, "gemm"), 1.4);  // and here it says that the clocks are two
}

TEST(TraceMerge, TheSameRankTwiceIsTwoProcesses) {
  const std::string file = rank_file(0, 1000, 0, "a");
  const MergedTrace merged = merge_traces({file, file});
  ASSERT_EQ(merged.warnings.size(), 1u);
  EXPECT_TRUE(base::contains(merged.warnings[0], "rank 1 of 2"));
  const Json trace = Json::parse(merged.json);
  EXPECT_EQ(not_nested(trace), "");
  EXPECT_EQ(start_of(trace, 1, "gemm"), 1.2);
}

TEST(TraceMerge, WhatIsNoTraceIsRefused) {
  const std::string path = base::temp_path("trace_broken.json");
  for (const char* text :
       {"", "[]", "{}", R"({"traceEvents": 3})", R"({"traceEvents": [{"ph": "X"}]})",
        R"({"traceEvents": [{"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 1, "dur": -2}]})",
        R"({"traceEvents": [{"ph": "X", "name": "a", "pid": 0, "tid": 0, "ts": 1e300, "dur": 2}]})",
        R"({"traceEvents": [3]})"}) {
    base::write_file(path, text);
    const auto error = base::error_of([&] { read_trace(path); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt) << text;
    EXPECT_TRUE(base::contains(error->what(), path)) << text;
  }
  const auto error = base::error_of([&] { traces_of_run(base::temp_path("no_such_run")); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace segue::report
