#include "report/trace.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_util.h"

namespace segue::report {
namespace {

TEST(Trace, EventsThreadsAndRank) {
  base::StageRecording recording;
  recording.threads = {"main", "loader \"0\""};
  recording.events = {{"step", 0, 1000, 1'234'567}, {"load", 1, 7, 45}};
  const std::string path = base::temp_path("trace.json");
  write_trace(path, recording, 3);

  const nlohmann::json trace = nlohmann::json::parse(base::read_file(path));
  const auto& events = trace.at("traceEvents");
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].at("args").at("name"), "rank 3");
  EXPECT_EQ(events[2].at("name"), "thread_name");
  EXPECT_EQ(events[2].at("tid"), 1);
  EXPECT_EQ(events[2].at("args").at("name"), "loader \"0\"");
  EXPECT_EQ(events[3].at("ph"), "X");
  EXPECT_EQ(events[3].at("pid"), 3);
  EXPECT_EQ(events[3].at("ts"), 1.0);
  EXPECT_EQ(events[3].at("dur"), 1234.567);
  EXPECT_EQ(events[4].at("ts"), 0.007);
  EXPECT_EQ(events[4].at("dur"), 0.045);
  EXPECT_EQ(events[4].at("name"), "load");
}

TEST(Trace, EmptyRecordingIsStillATrace) {
  EXPECT_EQ(nlohmann::json::parse(trace_json({}, 0)).at("traceEvents").size(), 1u);
}

TEST(Trace, RecordingOfRealStages) {
  base::start_stage_recording();
  { const base::Stage stage("gather"); }
  const std::string text = trace_json(base::stop_stage_recording(), 0);
  EXPECT_TRUE(base::contains(text, "\"gather\""));
  EXPECT_TRUE(nlohmann::json::accept(text));
}

/// The files a training loop over [0, steps) would save, as "name first..last".
std::vector<std::string> saved(const TracePlan& plan, int64_t steps) {
  std::vector<std::string> files;
  int64_t first = -1;
  for (int64_t step = 0; step < steps; ++step) {
    if (plan.starts_at(step)) first = step;
    if (plan.ends_after(step)) {
      files.push_back(plan.file_name(step) + " " + std::to_string(first) + ".." +
                      std::to_string(step));
    }
  }
  return files;
}

TEST(TracePlan, WindowsApartTouchingAndOverlapping) {
  using Files = std::vector<std::string>;
  EXPECT_EQ(saved({{20, 5}, 3}, 40), (Files{"trace_step5.json 5..7", "trace_step20.json 20..22"}));
  EXPECT_EQ(saved({{5, 8}, 3}, 40), (Files{"trace_step5.json 5..7", "trace_step8.json 8..10"}));
  EXPECT_EQ(saved({{5, 7, 7, 9}, 3}, 40), (Files{"trace_step5.json 5..11"}));
  EXPECT_EQ(saved({{5}, 1}, 40), (Files{"trace_step5.json 5..5"}));
}

TEST(TracePlan, NothingToRecord) {
  EXPECT_TRUE(saved({{}, 3}, 10).empty());
  EXPECT_TRUE(saved({{5}, 0}, 10).empty());
  EXPECT_EQ(TracePlan({{5}, 3}).file_name(8), "");
}

TEST(TracePlan, WindowCutByTheEndOfTraining) {
  const TracePlan plan{{5}, 10};
  EXPECT_TRUE(saved(plan, 8).empty());
  EXPECT_EQ(plan.window_of(7), 5);
  EXPECT_EQ(plan.file_name(7), "trace_step5.json");
}

}  // namespace
}  // namespace segue::report
