#include "bench/bench.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/test_util.h"
#include "bench/lap_timer.h"
#include "tensor/card_test_util.h"

namespace segue::bench {
namespace {

Settings small() {
  Settings s;
  s.repeats = {0, 2};
  s.device = "cpu";
  s.layer = {32, 2, 16, 4, 8, Lengths::kSpread, 0.1};
  s.ceiling = 64;
  s.table_rows = 100;
  s.index.slots = 4000;
  s.index.batch = 200;
  s.tables = {3, 8, 300};
  s.store_users = 20;
  s.store_events = 600;
  return s;
}

std::vector<std::string> lines_of(const std::string& name, bool json,
                                  const Settings& settings = small()) {
  std::vector<std::string> lines;
  Report report([&](const std::string& line) { lines.push_back(line); }, json);
  run_bench(name, settings, report);
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

TEST(BenchTest, RatesOfRunsThatDifferAreOfAllTheirWorkAndTime) {
  Result r;
  r.timing.seconds = {1, 1, 4};
  r.flop = 4e9;
  r.items = 10;
  const Report report([](const std::string&) {}, true);
  const auto row = [&] { return nlohmann::json::parse(report.row(r)); };
  EXPECT_EQ(row()["gflops_per_s"], 4);
  EXPECT_FALSE(row().contains("mean_s"));
  r.runs_differ = true;
  EXPECT_EQ(row()["gflops_per_s"], 2);
  EXPECT_EQ(row()["rows_per_s"], 5);
  EXPECT_EQ(row()["median_s"], 1);
  EXPECT_EQ(row()["mean_s"], 2);
}

TEST(BenchTest, StepsAreRunsThatDiffer) {
  for (const std::string& line : lines_of("step", true)) {
    const auto row = nlohmann::json::parse(line);
    EXPECT_EQ(row.contains("mean_s"), base::contains(row["name"].get<std::string>(), "step"))
        << line;
  }
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
    EXPECT_GE(lines.size(), 2u) << bench.name;
    for (const std::string& line : lines) {
      if (base::contains(line, "reckoned")) continue;  // from what the other lines have measured
      for (const char* key : {"\"name\": ", "\"shape\": {", "\"median_s\": ", "\"spread\": ",
                              "\"threads\": ", "\"gemm\": ", "\"version\": ", "\"commit\": "}) {
        EXPECT_TRUE(base::contains(line, key)) << bench.name;
      }
    }
  }
}

TEST(BenchTest, LapTimerCutsWorkIntoParts) {
  Arena arena(Device::cpu(), 1 << 20);
  Exec exec;
  exec.arena = &arena;
  LapTimer timer(exec);
  for (int i = 0; i < 3; ++i) timer.mark();
  const std::vector<double> laps = timer.laps();
  ASSERT_EQ(laps.size(), 2u);
  EXPECT_GE(laps[0], 0);
  EXPECT_TRUE(timer.laps().empty());
}

TEST(BenchTest, AttentionRunsOverEveryCellOfAGrid) {
  Settings s = small();
  s.grid.sequences = {1, 3};
  s.grid.lengths = {4, 9};
  s.grid.head_dims = {8, 16};
  s.grid.masks = {"causal", "context2+window3+full1"};
  const std::vector<std::string> lines = lines_of("attention", true, s);
  EXPECT_EQ(lines.size(), 2u + 2 * 16);  // ceilings, then forward and backward of each
  int found = 0;
  for (const std::string& line : lines) {
    found += base::contains(line, "\"lengths\": \"3x9\", \"mask\": \"context2+window3+full1\"") &&
             base::contains(line, "\"head_dim\": 8") && base::contains(line, "share_of_gemm");
  }
  EXPECT_EQ(found, 2);
  s.grid.masks = {"window"};
  const auto bad = base::error_of([&] { lines_of("attention", true, s); });
  ASSERT_TRUE(bad);
  EXPECT_TRUE(base::contains(bad->what(), "no mask `window`"));
}

TEST(BenchTest, SustainedRunsComeBesideRestedOnes) {
  Settings s = small();
  s.grid.sequences = {1};
  s.grid.lengths = {4};
  s.grid.head_dims = {8};
  s.grid.masks = {"causal"};
  s.grid.sustained = true;
  const std::vector<std::string> lines = lines_of("attention", true, s);
  ASSERT_EQ(lines.size(), 8u);  // ceilings, forward and backward, twice
  for (size_t i = 0; i < lines.size(); ++i) {
    const bool sustained = base::contains(lines[i], "\"protocol\": \"sustained\"");
    EXPECT_EQ(sustained, i >= 4) << lines[i];
    EXPECT_TRUE(base::contains(lines[i], sustained ? "\"repeats\": 100" : "\"repeats\": 2"));
  }
  EXPECT_TRUE(base::contains(lines[2], "\"kernel\": \"cpu\""));
}

TEST(BenchTest, AKernelOfAGpuIsNoneOfTheCpu) {
  Settings s = small();
  s.grid.kernel = "portable";
  const auto on_cpu = base::error_of([&] { lines_of("attention", true, s); });
  ASSERT_TRUE(on_cpu);
  EXPECT_TRUE(base::contains(on_cpu->what(), "runs on a GPU only"));
  const auto elsewhere = base::error_of([&] { lines_of("layer", true, s); });
  ASSERT_TRUE(elsewhere);
  EXPECT_TRUE(base::contains(elsewhere->what(), "of the bench `attention` alone"));
}

TEST(BenchTest, RowsSayWhatSlowsTheCardDown) {
  CardState state;
  state.sm_mhz = 1500;
  state.most_sm_mhz = 1980;
  state.watt_limit = state.usual_watt_limit = 700;
  state.out_of_power = true;
  const auto card = std::make_shared<FakeCard>(state, 5);
  Result r;
  r.name = "thing";
  r.timing = {{1}};
  for (const bool json : {true, false}) {
    std::vector<std::string> lines;
    Report report([&](const std::string& line) { lines.push_back(line); }, json);
    report.set_card(card);
    report.add(r);
    report.add(r);
    if (json) {
      ASSERT_EQ(lines.size(), 2u);
      EXPECT_TRUE(base::contains(lines[0], "\"sm_mhz\": 1500")) << lines[0];
      EXPECT_TRUE(base::contains(lines[0], "\"slowed_by\": [\"power limit\"]")) << lines[0];
      continue;
    }
    ASSERT_EQ(lines.size(), 4u);  // the warning in full, once; machine; two rows
    EXPECT_TRUE(base::contains(lines[0], "[power limit] the power limit (700 W)")) << lines[0];
    EXPECT_TRUE(base::contains(lines[2], "[power limit]")) << lines[2];
    EXPECT_TRUE(base::contains(lines[3], "[power limit]")) << lines[3];
  }
}

TEST(BenchTest, AStepTellsTheEnergyOfASample) {
  std::vector<std::string> lines;
  Report report([&](const std::string& line) { lines.push_back(line); }, true);
  report.set_card(std::make_shared<FakeCard>(CardState{}, 480));
  Settings s = small();
  s.repeats = {0, 1};
  s.sets = {"data.batch_size=8", "model.identities.distinct_rows=true"};
  run_bench("step", s, report);
  ASSERT_EQ(lines.size(), 2u);  // the ceiling, the step
  EXPECT_TRUE(base::contains(lines[1], "\"joules_per_item\": 60,")) << lines[1];
}

TEST(BenchTest, EmbeddingCountsRowsAndBytes) {
  const std::vector<std::string> lines = lines_of("embedding", true);
  ASSERT_EQ(lines.size(), 6u);
  EXPECT_TRUE(base::contains(lines[2], "\"ids_per_s\": "));
  for (size_t i = 3; i < lines.size(); ++i) {
    EXPECT_TRUE(base::contains(lines[i], "\"rows_per_s\": "));
    EXPECT_TRUE(base::contains(lines[i], "\"share_of_copy\": "));
  }
}

TEST(BenchTest, CacheIsComparedWithACopy) {
  Settings s = small();
  s.table_rows = 3200;
  const std::vector<std::string> lines = lines_of("cache", true, s);
  // Copy, two at each of three hit rates, two batch by batch, the host's part with and without
  // hits.
  ASSERT_EQ(lines.size(), 11u);
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_TRUE(base::contains(lines[i], "\"hit_rate\": "));
    EXPECT_TRUE(base::contains(lines[i], "\"rows_per_s\": "));
  }
  for (const size_t i : {1, 2, 7, 8}) {
    EXPECT_TRUE(base::contains(lines[i], "\"share_of_copy\": ")) << lines[i];
  }
}

TEST(BenchTest, IndexIsFilledStepByStep) {
  Settings s = small();
  s.index.loads = {1, 0.25};
  const std::vector<std::string> lines = lines_of("index", true, s);
  ASSERT_EQ(lines.size(), 1u + 2 * 4);
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_TRUE(base::contains(lines[i], i < 5 ? "\"load\": \"0.25\"" : "\"load\": \"1\""));
    EXPECT_TRUE(base::contains(lines[i], "\"keys_per_s\": "));
  }
  // For people: how full it was, and that new keys take the place of others when it is.
  const std::vector<std::string> text = lines_of("index", false, s);
  ASSERT_EQ(text.size(), 2u + 2 * 5);
  EXPECT_TRUE(base::contains(text[6], " 0.0 % of new keys took")) << text[6];
  EXPECT_TRUE(base::contains(text[11], " 100.0 % were in use; 100.0 % of")) << text[11];
  s.index.loads = {1.5};
  const auto bad = base::error_of([&] { lines_of("index", true, s); });
  ASSERT_TRUE(bad);
  EXPECT_TRUE(base::contains(bad->what(), "not 1.5"));
}

TEST(BenchTest, TablesTakeWholeStepsOfEveryKind) {
  const std::vector<std::string> lines = lines_of("tables", true);
  ASSERT_EQ(lines.size(), 1u + 10 * 4);  // copy; ids, forward, backward, step of each
  for (size_t i = 1; i < lines.size(); ++i) {
    EXPECT_TRUE(base::contains(lines[i], "\"ids_per_s\": ")) << lines[i];
    EXPECT_TRUE(base::contains(lines[i], "\"tables\": 3")) << lines[i];
  }
  EXPECT_TRUE(base::contains(lines[4], "\"kind\": \"static\"")) << lines[4];
  EXPECT_TRUE(base::contains(lines[4], "\"name\": \"step\"")) << lines[4];
  EXPECT_TRUE(base::contains(lines[16], "\"kind\": \"dynamic\"")) << lines[16];
  EXPECT_TRUE(base::contains(lines[17], "\"rows_in\": \"cache 0.8\"")) << lines[17];
  EXPECT_TRUE(base::contains(lines[28], "\"rows_in\": \"host\"")) << lines[28];
  EXPECT_TRUE(base::contains(lines[29], "\"kind\": \"dynamic\"")) << lines[29];
  EXPECT_TRUE(base::contains(lines[40], "\"rows_in\": \"host\"")) << lines[40];
}

TEST(BenchTest, Jagged40IsBuiltIn) {
  LayerShape s;
  s.lengths = Lengths::kJagged40;
  EXPECT_EQ(s.offsets().size(), 257u);
  EXPECT_EQ(s.offsets().back(), 423792);
}

class GpuBenchTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
};

TEST_F(GpuBenchTest, BenchesRunOnAGpu) {
  Settings s = small();
  s.device = "cuda";
  s.layer = {64, 2, 64, 4, 40, Lengths::kSpread, 0.1};
  s.ceiling = 256;
  for (const char* name :
       {"gemm", "layer", "ops", "embedding", "cache", "index", "tables", "stack"}) {
    for (const std::string& line : lines_of(name, true, s)) {
      EXPECT_TRUE(base::contains(line, "\"device\": \"cuda:0\"")) << name;
    }
  }
  s.grid.sequences = {2};
  s.grid.lengths = {70};
  s.grid.parts = true;
  EXPECT_GE(lines_of("attention", true, s).size(), 2u + 2 * 12);
}

TEST(BenchTest, LayerReportsItsShareOfTheGemmRate) {
  const std::vector<std::string> lines = lines_of("layer", false);
  ASSERT_EQ(lines.size(), 7u);  // machine, gemm, copy, layer, forward, backward, ratio
  EXPECT_TRUE(base::contains(lines[0], "threads"));
  EXPECT_TRUE(base::contains(lines[3], "% of gemm"));
  EXPECT_TRUE(base::contains(lines[6], " %"));
}

TEST(BenchTest, DefaultLayerIsTheReferenceLayer) {
  const LayerShape s;
  EXPECT_EQ(s.offsets().back(), 16384);
  EXPECT_EQ(s.offsets().size(), 33u);
}

TEST(BenchTest, JaggedLengthsKeepTheMean) {
  LayerShape s;
  s.lengths = Lengths::kSpread;
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
