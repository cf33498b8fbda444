#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "base/test_util.h"
#include "cli/test_util.h"

namespace segue::cli {
namespace {

using base::contains;

constexpr const char* kBenchmark = "configs/mlperf_dlrmv4.toml";

TEST(PlanCommandTest, OneRankByPurpose) {
  const auto plan = [](const char* device) {
    const Outcome o = run({"plan", "configs/random.toml", "--set", device});
    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_TRUE(contains(o.out, "activations"));
    return o.out;
  };
  EXPECT_FALSE(contains(plan("train.device=cpu"), "context"));
  EXPECT_TRUE(contains(plan("train.device=cuda:0"), "context, code and libraries"));
}

TEST(PlanCommandTest, PlacesTablesAndSaysWhy) {
  const Outcome o = run({"plan", kBenchmark, "--ranks", "8", "--hbm", "139GiB"});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"device total", "user_x_artist", "rows split over all 8 ranks",
                           "whole on rank", "191.11 ", "fits", "yes"}) {
    EXPECT_TRUE(contains(o.out, part));
  }
}

TEST(PlanCommandTest, JsonHasTheSame) {
  const Outcome o = run({"plan", kBenchmark, "--ranks", "8", "--hbm", "139GiB", "--json"});
  const auto json = nlohmann::json::parse(o.out);
  EXPECT_EQ(json["verdict"]["fits"], "yes");
  EXPECT_EQ(json["tables"]["item_id"]["sharding"], "row");
  double total = 0;
  for (const auto& [rank, line] : json["ranks"].items())
    total += line["device_total"].get<double>();
  EXPECT_GT(total, 0);
  EXPECT_EQ(json["why"].size(), 11u);
}

TEST(PlanCommandTest, APlanThatDoesNotFitSaysWhatHelps) {
  const Outcome o = run({"plan", kBenchmark, "--ranks", "4", "--hbm", "80GiB"});
  EXPECT_EQ(o.code, kExitOutOfMemory);
  EXPECT_TRUE(contains(o.out, "missing GiB"));
  for (const char* part : {"does not fit", "ranks of this size", "--host", "user_x_artist"}) {
    EXPECT_TRUE(contains(o.err, part));
  }
  const Outcome host =
      run({"plan", kBenchmark, "--ranks", "4", "--hbm", "80GiB", "--host", "500GiB"});
  EXPECT_EQ(host.code, 0) << host.err;
  EXPECT_TRUE(contains(host.out, "in host memory"));
}

TEST(PlanCommandTest, OverridesOfTables) {
  const Outcome o =
      run({"plan", kBenchmark, "--ranks", "8", "--set", "sparse.tables.0.sharding=column"});
  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_TRUE(contains(o.out, "columns cut into 8 blocks: as the config asks"));
}

TEST(PlanCommandTest, PredictsScaling) {
  const Outcome o = run({"plan", kBenchmark, "--simulate", "--ranks", "1,64", "--set",
                         "simulate.draws=1", "--set", "simulate.network_gb_s=25"});
  EXPECT_EQ(o.code, 0) << o.err;
  for (const char* part : {"efficiency balanced", "\n  64 ", "25 GB/s beyond", "assumptions"}) {
    EXPECT_TRUE(contains(o.out, part));
  }
}

TEST(PlanCommandTest, WrongNumbersOfRanks) {
  for (const char* ranks : {"0", "four", "1..", "-2", "1,,2", "99999999"}) {
    const Outcome o = run({"plan", kBenchmark, "--simulate", "--ranks", ranks});
    EXPECT_EQ(o.code, kExitUsage) << ranks;
    EXPECT_TRUE(contains(o.err, "--ranks")) << ranks;
  }
  EXPECT_TRUE(contains(run({"plan", kBenchmark, "--ranks", "2,4"}).err, "--simulate"));
  EXPECT_TRUE(contains(run({"plan", kBenchmark, "--simulate", "--set", "simulate.netwrk=1"}).err,
                       "simulate.netwrk"));
}

}  // namespace
}  // namespace segue::cli
