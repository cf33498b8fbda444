#include "train/run/tracer.h"

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "report/trace_reader.h"
#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

using detail::BarrierTimes;
using detail::clock_between;

TEST(ClockTest, BarriersBoundTheDifferenceOfClocks) {
  // This clock is 1000 ahead. Times of the first rank, then the same in this one's.
  const std::vector<BarrierTimes> first = {{0, 100}, {200, 210}, {400, 900}};
  std::vector<BarrierTimes> mine = {{1050, 1110}, {1195, 1212}, {1300, 1800}};
  const report::TraceClock clock = clock_between(first, mine);
  EXPECT_NEAR(static_cast<double>(clock.ahead_ns), 1000, static_cast<double>(clock.error_ns));
  EXPECT_LE(clock.error_ns, 14);  // of the second barrier
  EXPECT_EQ(clock_between(first, first).ahead_ns, 0);
}

TEST(TraceConfigTest, WhatDoesNothingIsRefused) {
  TraceConfig both{.steps = {3}, .repeat = 2};
  const auto error = base::error_of([&] { both.validate(); });
  ASSERT_TRUE(error);
  EXPECT_TRUE(base::contains(error->what(), "trace.steps and trace.repeat"));
  EXPECT_TRUE(base::error_of([] { TraceConfig{.wait = 2}.validate(); }));
  EXPECT_NO_THROW((TraceConfig{.wait = 2, .repeat = -1}.validate()));
}

class TracerTest : public LoopTest {
 protected:
  static RunConfig config() {
    RunConfig c = tiny_config();
    c.train.steps = 8;
    c.eval.at_end = false;
    return c;
  }
  std::vector<std::string> traces() const {
    std::set<std::string> names;
    if (!base::exists(folder + "/trace")) return {};
    for (const auto& file : std::filesystem::directory_iterator(folder + "/trace")) {
      names.insert(file.path().filename().string());
    }
    return {names.begin(), names.end()};
  }
  report::TraceContents read(const std::string& name) const {
    return report::read_trace(folder + "/trace/" + name);
  }
};

const report::TraceContents::Span* find(const report::TraceContents& trace,
                                        const std::string& name) {
  for (const report::TraceContents::Track& track : trace.tracks) {
    for (const report::TraceContents::Span& span : track.spans) {
      if (span.name == name) return &span;
    }
  }
  return nullptr;
}

TEST_F(TracerTest, AWindowHasItsStepsLayersAndMemory) {
  RunConfig c = config();
  c.trace.steps = {3};
  c.trace.active = 2;
  train_loop(c, folder);
  ASSERT_EQ(traces(), std::vector<std::string>{"trace_step3.json"});
  const report::TraceContents trace = read("trace_step3.json");
  EXPECT_NE(find(trace, "step 3"), nullptr);
  EXPECT_NE(find(trace, "step 4"), nullptr);
  EXPECT_EQ(find(trace, "step 2"), nullptr);  // the rehearsal
  EXPECT_EQ(find(trace, "step 5"), nullptr);
  const auto* layer = find(trace, "layer 0 forward");
  ASSERT_NE(layer, nullptr);
  const nlohmann::json facts = nlohmann::json::parse(layer->arguments);
  EXPECT_GT(facts.at("flop").get<double>(), 0);
  EXPECT_GT(facts.at("tokens").get<double>(), 0);
  std::set<std::string> counters;
  for (const auto& counter : trace.counters) counters.insert(counter.name);
  EXPECT_EQ(counters, (std::set<std::string>{"arena", "memory by purpose"}));
  EXPECT_EQ(report::summarize(trace).steps, 2);
}

TEST_F(TracerTest, WindowsRepeatAndTheLastOneMayBeShort) {
  RunConfig c = config();
  c.trace.wait = 1;
  c.trace.warm_up = 1;
  c.trace.active = 2;
  c.trace.repeat = -1;
  c.train.steps = 7;
  train_loop(c, folder);
  EXPECT_EQ(traces(), (std::vector<std::string>{"trace_step3.json", "trace_step7.json"}));
  EXPECT_EQ(report::summarize(read("trace_step7.json")).steps, 1);
}

TEST_F(TracerTest, ATraceThatCannotBeWrittenCostsNothingElse) {
  RunConfig c = config();
  c.trace.repeat = 3;
  c.trace.active = 1;
  std::filesystem::create_directories(folder);
  std::filesystem::create_symlink("/proc/self", folder + "/trace");  // nobody can write there
  testing::internal::CaptureStderr();
  const TrainSummary summary = train_loop(c, folder);
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(summary.finished);
  EXPECT_EQ(summary.steps, 8);
  const size_t first = log.find("a trace is lost, training goes on");
  EXPECT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("a trace is lost", first + 1), std::string::npos) << log;
}

TEST_F(TracerTest, ARunThatFailsInAWindowLeavesItsTrace) {
  RunConfig c = config();
  c.trace.steps = {1};
  c.trace.active = 5;
  c.optimizer.lr = 1e30;  // the second step cannot be finite
  c.optimizer.clip_norm = 0;
  ASSERT_TRUE(base::error_of([&] { train_loop(c, folder); }));
  ASSERT_EQ(traces(), std::vector<std::string>{"trace_step1.json"});
  const report::TraceContents trace = read("trace_step1.json");
  EXPECT_NE(find(trace, "step 1"), nullptr);
  EXPECT_NE(find(trace, "step 2"), nullptr);
  EXPECT_LT(report::summarize(trace).steps, 5);  // the last one is that which failed
  EXPECT_FALSE(base::recording_stages());
}

TEST_F(TracerTest, StepsThatNeverCameAreSaid) {
  RunConfig c = config();
  c.trace.steps = {9};  // the run has 8
  const auto warned = [&](const LoopOptions& options = {}) {
    testing::internal::CaptureStderr();
    train_loop(c, folder, options);
    return base::contains(testing::internal::GetCapturedStderr(), "nothing was traced");
  };
  EXPECT_TRUE(warned());
  EXPECT_TRUE(traces().empty());
  // A run that goes on beyond its windows has traced them before.
  c.trace.steps = {3};
  c.train.steps = 10;
  EXPECT_FALSE(warned({.allow_config_changes = {"train.steps"}}));
  // One that goes on inside of a window has missed its beginning.
  c.trace.steps = {9};
  c.trace.active = 4;
  c.train.steps = 12;
  EXPECT_TRUE(warned({.allow_config_changes = {"train.steps"}}));
}

TEST_F(TracerTest, TracedAndTrackedRunsTrainTheSame) {
  RunConfig c = config();
  const std::string plain = folder + "_plain";
  train_loop(c, plain);
  c.trace.repeat = -1;
  c.trace.active = 2;
  c.train.track_layers_every = 1;
  train_loop(c, folder);
  EXPECT_EQ(checkpoint_bytes(folder, 8), checkpoint_bytes(plain, 8));
  std::vector<std::string> others;
  for (const std::string& line : metrics()) {
    if (value(line, "event") != "\"layers\"") others.push_back(line);
  }
  EXPECT_EQ(lasting(others), lasting(metrics_of(plain)));
  std::filesystem::remove_all(plain);
}

TEST_F(TracerTest, TrackedStepsAreInMetricsAndTensorboard) {
  RunConfig c = config();
  c.train.track_layers_every = 3;
  train_loop(c, folder);
  std::vector<int64_t> steps;
  for (const std::string& line : metrics()) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.at("event") != "layers") continue;
    steps.push_back(json.at("step"));
    double sum = 0;
    for (const auto& [name, part] : json.at("parts").items()) sum += part.at("s").get<double>();
    EXPECT_NEAR(sum, json.at("device_s").get<double>(), 1e-6);
    const auto& layer = json.at("parts").at("layer 0 backward");
    EXPECT_GT(layer.at("tflops").get<double>(), 0);
    EXPECT_TRUE(json.at("parts").contains("update dense"));
    EXPECT_FALSE(json.at("host").empty());
    EXPECT_FALSE(json.contains("imbalance"));  // there is one rank
  }
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 6}));
  EXPECT_EQ(scalars_of(folder).count({"layers/layer 0 forward/ms", 6}), 1u);
}

TEST_F(TracerTest, RanksAreSideBySide) {
  RunConfig c = config();
  c.train.track_layers_every = 2;
  c.trace.steps = {2};
  comm::run_as_threads(2, 60, [&](comm::World& world) {
    LoopOptions options;
    options.own_process = false;
    train_loop(c, folder, options, world);
  });
  int lines = 0;
  for (const std::string& line : metrics()) {
    const nlohmann::json json = nlohmann::json::parse(line);
    if (json.at("event") != "layers") continue;
    ++lines;
    EXPECT_EQ(json.at("ranks").at("device_s").size(), 2u);
    EXPECT_GE(json.at("imbalance").get<double>(), 1);
    EXPECT_TRUE(json.at("parts").at("layer 0 forward").contains("most_s"));
  }
  EXPECT_EQ(lines, 4);
  // They share a recorder: the first rank's file has the threads of both.
  EXPECT_EQ(traces(), std::vector<std::string>{"trace_step2_rank0.json"});
}

class GpuTracerTest : public TracerTest {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU";
    TracerTest::SetUp();
  }
};

TEST_F(GpuTracerTest, KernelsLieInTheStagesThatQueuedThem) {
  RunConfig c = config();
  c.train.device = "cuda";
  c.train.precision = Precision::kBf16;
  c.trace.steps = {4};
  c.trace.active = 3;
  train_loop(c, folder);
  const report::TraceContents trace = read("trace_step4.json");
  const report::TraceSummary sum = report::summarize(trace);
  if (!sum.has_device()) GTEST_SKIP() << "no CUPTI on this machine";
  EXPECT_FALSE(trace.flows.empty());
  std::set<std::string> stages;
  for (const report::TraceSummary::Entry& e : sum.stages) stages.insert(e.name);
  for (const char* name : {"layer 0 forward", "layer 0 backward", "update dense"}) {
    EXPECT_TRUE(stages.contains(name)) << name;
  }
  // Nearly all work belongs to some stage.
  double known = 0, all = 0;
  for (const report::TraceSummary::Entry& e : sum.stages) {
    all += e.own;
    known += e.name == "(no stage)" ? 0 : e.own;
  }
  EXPECT_GT(known, 0.9 * all);
  EXPECT_LE(sum.busy, sum.window);
}

}  // namespace
}  // namespace segue::train
