#include "bench/bench.h"

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::bench {
namespace {

Settings small() {
  Settings s;
  s.repeats = {0, 2};
  s.layer = {32, 2, 16, 4, 8, true, 0.1};
  s.yardstick = 64;
  s.store_users = 20;
  s.store_events = 600;
  return s;
}

std::vector<std::string> lines_of(const std::string& name, bool json) {
  std::vector<std::string> lines;
  Report report([&](const std::string& line) { lines.push_back(line); }, json);
  run_bench(name, small(), report);
  return lines;
}

TEST(BenchTest, TimingGivesMedianAndSpread) {
  const Timing odd{{3, 1, 2}}, even{{4, 1, 2, 3}};
  EXPECT_EQ(odd.median(), 2);
  EXPECT_EQ(even.median(), 2.5);
  EXPECT_EQ(odd.fastest(), 1);
  EXPECT_EQ(odd.slowest(), 3);
  EXPECT_EQ(odd.spread(), 1);
  EXPECT_EQ(Timing{}.median(), 0);
}

TEST(BenchTest, MeasureRunsWarmUpAndTimedRuns) {
  int runs = 0;
  const Timing timing = measure({2, 3}, [&] { ++runs; });
  EXPECT_EQ(runs, 5);
  EXPECT_EQ(timing.seconds.size(), 3u);
}

TEST(BenchTest, EveryBenchRunsAndGivesJson) {
  for (const Bench& bench : benches()) {
    const std::vector<std::string> lines = lines_of(bench.name, true);
    EXPECT_GE(lines.size(), 3u) << bench.name;
    for (const std::string& line : lines) {
      for (const char* key : {"\"name\": ", "\"shape\": {", "\"median_s\": ", "\"spread\": ",
                              "\"threads\": ", "\"gemm\": ", "\"version\": ", "\"commit\": "}) {
        EXPECT_TRUE(base::contains(line, key)) << bench.name;
      }
    }
  }
}

TEST(BenchTest, LayerReportsItsShareOfTheGemmRate) {
  const std::vector<std::string> lines = lines_of("layer", false);
  ASSERT_EQ(lines.size(), 6u);  // machine, gemm, layer, forward, backward, ratio
  EXPECT_TRUE(base::contains(lines[0], "threads"));
  EXPECT_TRUE(base::contains(lines[2], "% of gemm"));
  EXPECT_TRUE(base::contains(lines[5], " %"));
}

TEST(BenchTest, DefaultLayerIsTheReferenceLayer) {
  const LayerShape s;
  EXPECT_EQ(s.offsets().back(), 16384);
  EXPECT_EQ(s.offsets().size(), 33u);
}

TEST(BenchTest, JaggedLengthsKeepTheMean) {
  LayerShape s;
  s.jagged = true;
  const std::vector<int64_t> offsets = s.offsets();
  EXPECT_NEAR(static_cast<double>(offsets.back()), 16384, 32);
  int64_t longest = 0, shortest = offsets.back();
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    longest = std::max(longest, offsets[b + 1] - offsets[b]);
    shortest = std::min(shortest, offsets[b + 1] - offsets[b]);
  }
  EXPECT_EQ(shortest, 1);
  EXPECT_EQ(longest, 1023);
}

TEST(BenchTest, UnknownBenchAndBadSizesAreErrors) {
  const auto unknown = base::error_of([] { lines_of("layr", false); });
  ASSERT_TRUE(unknown);
  EXPECT_EQ(unknown->code(), ErrorCode::kInvalidArgument);
  EXPECT_TRUE(base::contains(unknown->what(), "did you mean `layer`?"));
  LayerShape s;
  s.length = 0;
  EXPECT_THROW(s.validate(), Error);
}

}  // namespace
}  // namespace segue::bench
