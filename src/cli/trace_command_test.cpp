// `segue trace`: files of real ranks, merged, summed up, compared and drawn.

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/test_util.h"
#include "cli/run_test_util.h"
#include "cli/test_util.h"
#include "report/trace_reader.h"

namespace segue::cli {
namespace {

namespace fs = std::filesystem;
using base::contains;

class TraceCommand : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = base::temp_path("traces");
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    base::write_file(folder_ + "/small.toml", kSmallConfig);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  std::vector<std::string> train(int ranks) const {
    std::vector<std::string> all = {
        "train", path("small.toml"),  "--run", path("run"),       "--steps", "6",
        "--set", "eval.at_end=false", "--set", "trace.steps=[2]", "--set",   "trace.active=3"};
    for (const char* set : {"data.random.lengths.high=18", "data.batch_size=16",
                            "eval.every_windows=0", "train.track_layers_every=2"}) {
      all.insert(all.end(), {"--set", set});
    }
    if (ranks > 1) all.insert(all.end(), {"--ranks", std::to_string(ranks)});
    return all;
  }

  std::string folder_;
};

TEST_F(TraceCommand, TopDiffAndViewOfOneRank) {
  ASSERT_EQ(run(train(1)).code, 0);
  const std::string file = path("run/trace/trace_step2.json");
  Outcome o = run({"trace", "top", file});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "main: layer 1 backward")) << o.out;
  EXPECT_TRUE(contains(o.out, "ms per step")) << o.out;
  o = run({"trace", "top", path("run"), "--json"});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "\"steps\": 3")) << o.out;
  o = run({"trace", "diff", file, file});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "host, by stage")) << o.out;
  EXPECT_FALSE(contains(o.out, "-0.")) << o.out;  // nothing differs
  o = run({"trace", "view", path("run"), "--out", path("page.html")});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(base::read_file(path("page.html")), "layer 0 forward"));

  EXPECT_EQ(run({"trace", "top", path("run"), "--step", "4"}).code, 3);
  EXPECT_EQ(run({"trace", "top", path("nothing.json")}).code, 3);
  EXPECT_EQ(run({"trace", "top", path("small.toml")}).code, 4);

  // The page of the run has the tracked steps.
  ASSERT_EQ(run({"report", path("run")}).code, 0);
  EXPECT_TRUE(contains(base::read_file(path("run/report.html")), "3 tracked steps"));
}

/// How far the ranks of a merged trace are apart: in every barrier all ranks have come before the
/// first one leaves.
struct Apart {
  int barriers = 0;
  double worst_us = -1e9;  // below 0: as it must be
  double leaving_us = 0;   // between the first and the last rank to leave
};
Apart apart(const report::TraceContents& trace, size_t ranks) {
  std::map<int64_t, std::vector<report::TraceContents::Span>> of_rank;
  for (const auto& track : trace.tracks) {
    for (const auto& span : track.spans) {
      if (span.name == "barrier") of_rank[track.process].push_back(span);
    }
  }
  Apart result;
  if (of_rank.size() != ranks) return result;
  size_t count = of_rank.begin()->second.size();
  for (const auto& [rank, spans] : of_rank) count = std::min(count, spans.size());
  for (size_t i = 0; i < count; ++i) {
    int64_t last_came = INT64_MIN, first_left = INT64_MAX, last_left = INT64_MIN;
    for (const auto& [rank, spans] : of_rank) {
      last_came = std::max(last_came, spans[i].start_ns);
      first_left = std::min(first_left, spans[i].end_ns());
      last_left = std::max(last_left, spans[i].end_ns());
    }
    ++result.barriers;
    result.worst_us = std::max(result.worst_us, static_cast<double>(last_came - first_left) / 1000);
    result.leaving_us =
        std::max(result.leaving_us, static_cast<double>(last_left - first_left) / 1000);
  }
  return result;
}

TEST_F(TraceCommand, FourRanksMeetInTheSameBarrier) {
  Process process({}, train(4));
  const Outcome trained = process.wait();
  ASSERT_EQ(trained.code, 0) << trained.err;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(base::exists(path("run/trace/trace_step2_rank" + std::to_string(rank) + ".json")));
  }
  const Outcome o = run({"trace", "merge", path("run"), "--out", path("all.json")});
  ASSERT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "4 files")) << o.out;
  ASSERT_TRUE(nlohmann::json::accept(base::read_file(path("all.json"))));
  const report::TraceContents trace = report::read_trace(path("all.json"));
  EXPECT_EQ(report::summarize(trace).ranks, 4);
  EXPECT_EQ(report::summarize(trace).steps, 12);
  const Apart a = apart(trace, 4);
  EXPECT_GE(a.barriers, 1);
  EXPECT_LE(a.worst_us, 100);
  RecordProperty("barrier_apart_us", std::to_string(a.worst_us));
  RecordProperty("leaving_apart_us", std::to_string(a.leaving_us));
  // Measured by the exchange alone, clocks of one machine must come out the same.
  for (int rank = 1; rank < 4; ++rank) {
    const nlohmann::json file = nlohmann::json::parse(
        base::read_file(path("run/trace/trace_step2_rank" + std::to_string(rank) + ".json")));
    const nlohmann::json& clock = file.at("otherData").at("clock");
    EXPECT_LE(std::abs(clock.at("ahead_ns").get<int64_t>()), clock.at("error_ns").get<int64_t>());
  }
  EXPECT_EQ(run({"trace", "top", path("run")}).code, 0);
}

}  // namespace
}  // namespace segue::cli
