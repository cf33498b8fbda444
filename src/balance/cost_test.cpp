#include "balance/cost.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "balance/config.h"
#include "base/test_util.h"

namespace segue::balance {
namespace {

TEST(CostTest, ReferenceFormulaGivesItsPublishedValues) {
  const std::pair<int64_t, int64_t> golden[] = {{0, 0},
                                                {1, 21'037'056},
                                                {64, 1'610'612'736},
                                                {1024, 90'194'313'216},
                                                {4096, 1'185'410'973'696}};
  for (const auto& [length, cost] : golden) {
    EXPECT_EQ(reference_cost(2 * length, 4, 256), cost) << length;
  }
}

Batch batch_of(const std::vector<std::pair<int64_t, int64_t>>& lengths) {
  Batch batch;
  const int history = batch.add_group("history");
  const int candidates = batch.add_group("candidates");
  batch.add_column("item", history);
  batch.add_column("next", candidates);
  for (const auto& [h, t] : lengths) {
    batch.sample_index.push_back(batch.num_samples());
    for (int64_t i = 0; i < h; ++i) batch.column("item").values.push_back(i);
    for (int64_t i = 0; i < t; ++i) batch.column("next").values.push_back(i);
    batch.group("history").offsets.push_back(batch.column("item").values.size());
    batch.group("candidates").offsets.push_back(batch.column("next").values.size());
  }
  return batch;
}

TEST(CostTest, CostsOfABatch) {
  SampleShape shape;
  shape.history = "item";
  shape.candidate = "next";
  shape.contextual_tokens = 2;
  shape.tokens_per_event = 2;
  shape.pairs = [](int64_t tokens, int64_t targets) { return 100 * tokens + targets; };
  shape.heads = 4;
  shape.head_dim = 256;
  const Batch batch = batch_of({{3, 1}, {0, 0}, {64, 2}});
  const std::vector<SampleCost> costs =
      sample_costs(batch, shape, CostKind::kCalibrated, {1000, 10});
  ASSERT_EQ(costs.size(), 3u);
  EXPECT_EQ(costs[0].tokens, 2 + 6 + 1);
  EXPECT_EQ(costs[0].cost, 9 * 1000 + 10 * (900 + 1));
  EXPECT_EQ(costs[1].tokens, 2);
  const std::vector<SampleCost> published = sample_costs(batch, shape, CostKind::kReference, {});
  EXPECT_EQ(published[2].cost, 1'610'612'736);
  EXPECT_EQ(published[1].cost, 0);
  EXPECT_TRUE(sample_costs(batch_of({}), shape, CostKind::kCalibrated, {1, 1}).empty());
  shape.pairs = nullptr;  // a model without attention
  EXPECT_EQ(sample_costs(batch, shape, CostKind::kCalibrated, {1000, 10})[0].cost, 9 * 1000);
  shape.history = "itme";
  const auto error = base::error_of([&] { sample_costs(batch, shape, CostKind::kReference, {}); });
  EXPECT_EQ(error->code(), ErrorCode::kNotFound);
}

TEST(CalibrateTest, FindsTheWeightsBack) {
  std::vector<Timing> timings;
  for (int i = 1; i <= 8; ++i) {
    const double tokens = 1000.0 * i;
    const double pairs = tokens * (200.0 + 137.0 * (i % 3));
    timings.push_back({tokens, pairs, 70e-9 * tokens + 26e-12 * pairs});
  }
  const CostWeights w = calibrate(timings);
  EXPECT_NEAR(w.token_ps, 70e3, 1e-3);
  EXPECT_NEAR(w.pair_ps, 26, 1e-6);
}

TEST(CalibrateTest, NeverNegative) {
  // Time falls where there are more pairs: only tokens can explain it.
  const std::vector<Timing> timings{{100, 10, 2e-6}, {100, 1000, 1e-6}, {100, 2000, 0.5e-6}};
  const CostWeights w = calibrate(timings);
  EXPECT_GT(w.token_ps, 0);
  EXPECT_EQ(w.pair_ps, 0);
  // Work that always comes in one proportion cannot be told apart; all of it is explained by one.
  const std::vector<Timing> same{{100, 1000, 1e-6}, {200, 2000, 2e-6}};
  const CostWeights one = calibrate(same);
  EXPECT_NEAR(one.token_ps * 100 + one.pair_ps * 1000, 1e6, 1);
}

TEST(CalibrateTest, NothingToLearnFromIsAnError) {
  EXPECT_EQ(base::error_of([] { calibrate({}); })->code(), ErrorCode::kInvalidArgument);
  const std::vector<Timing> idle{{0, 0, 1}, {10, 10, 0}};
  EXPECT_TRUE(base::contains(base::error_of([&] { calibrate(idle); })->what(), "2 timings"));
}

TEST(BalanceConfigTest, ReadsAndChecks) {
  BalanceConfig c;
  base::load_config(
      c, {.file = "test", .text = "cost = \"reference\"\nmode = \"reference\"\ntoken_ps = 7"});
  EXPECT_EQ(c.cost, CostKind::kReference);
  EXPECT_EQ(c.mode, PartitionMode::kReference);
  EXPECT_TRUE(c.has_weights());
  EXPECT_NO_THROW(c.validate());
  c.pair_ps = -1;
  EXPECT_TRUE(base::contains(base::error_of([&] { c.validate(); })->what(), "balance.pair_ps"));
  c.pair_ps = std::nan("");
  EXPECT_EQ(base::error_of([&] { c.validate(); })->code(), ErrorCode::kConfig);
}

}  // namespace
}  // namespace segue::balance
