#include "train/plan/shard_planning.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "model/flops.h"
#include "train/plan/memory_plan.h"
#include "train/plan/scaling_model.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

using base::contains;

RunConfig benchmark() {
  return load_run_config({.file = "configs/mlperf_dlrmv4.toml", .use_environment = false});
}
/// Its lengths and tables with a small dense model, which is quicker to plan.
RunConfig small_benchmark() {
  RunConfig c = benchmark();
  c.model.dim = 128;
  c.model.qk_dim = c.model.v_dim = 32;
  c.model.hidden = c.model.item_hidden = c.model.head_hidden = 64;
  return c;
}
constexpr double kGib = 1 << 30;

TEST(ShardPlanningTest, DemandsComeFromTheFeatures) {
  RunConfig c = tiny_config();  // 24 samples, up to 19 events and a candidate
  const sparse::PlannerInput in = planner_input(c, {.ranks = 4});
  ASSERT_EQ(in.tables.size(), 4u);
  EXPECT_EQ(in.tables[0].lookups, 6 * 20);  // item
  EXPECT_EQ(in.tables[1].lookups, 6 * 20);  // artist
  EXPECT_EQ(in.tables[2].lookups, 6);       // user, one id a sample
  EXPECT_EQ(in.tables[0].dim, 8);
  EXPECT_LE(in.tables[1].distinct, 20);
  EXPECT_LT(in.tables[2].distinct, 6);  // two samples may have one user
  EXPECT_EQ(in.forward_wire_bytes, 4);
  c.sparse.forward_wire = sparse::Wire::kF16;
  c.sparse.tables[1].sharding = sparse::Sharding::kColumn;
  sparse::PlannerInput asked = planner_input(c, {.ranks = 4});
  set_demands(c, 5, asked);
  EXPECT_EQ(asked.forward_wire_bytes, 2);
  EXPECT_EQ(asked.tables[0].lookups, 6 * 6);
  EXPECT_EQ(asked.tables[1].sharding, sparse::Sharding::kColumn);
}

TEST(ShardPlanningTest, TablesArePlannedByTheirOwnWidthAndOptimizer) {
  RunConfig c = tiny_config();
  for (sparse::TableConfig& t : c.sparse.tables) t.dim = 12;
  c.sparse.tables[2].optimizer = sparse::OptimizerChoice::kAdam;
  const sparse::PlannerInput in = planner_input(c, {.ranks = 2});
  EXPECT_EQ(in.tables[2].dim, 12);
  EXPECT_EQ(in.tables[1].optimizer, ops::RowOptimizer::kRowwiseAdagrad);
  EXPECT_EQ(in.tables[2].optimizer, ops::RowOptimizer::kAdam);
  const sparse::PlannedTables planned = plan_shards(c, {});
  EXPECT_EQ(planned.ranks[0].tables, 144 * 12 * 4);
  EXPECT_EQ(planned.ranks[0].optimizer, (104 + 40 * 24) * 4);
  EXPECT_EQ(planned.ranks[0].device(), memory_plan(c, planned_device(c)).total());
}

/// Which rows others ask for is copied to a GPU beside the batch.
TEST(ShardPlanningTest, RequestsTakeMemoryOfAGpu) {
  RunConfig c = tiny_config();
  c.sparse.tables[0].sharding = sparse::Sharding::kRow;
  const auto requests = [&](const Cluster& cluster) {
    double bytes = 0;
    for (const MemoryPlan::Part& p : rank_memory(c, cluster, 0).parts) {
      if (p.what == "rows asked for") bytes += p.bytes;
    }
    EXPECT_EQ(bytes, plan_shards(c, cluster).ranks[0].requests);
    return bytes;
  };
  EXPECT_EQ(requests({.ranks = 2}), 0);  // a CPU reads them where they were made
  c.train.device = "cuda";
  EXPECT_EQ(requests({.ranks = 1}), 0);
  EXPECT_GT(requests({.ranks = 2}), kBatchesInFlight * 20 * 20);
}

TEST(ShardPlanningTest, OneRankAddsUpToItsMemoryPlan) {
  const RunConfig c = tiny_config();
  const sparse::PlannedTables planned = plan_shards(c, {});
  EXPECT_EQ(planned.ranks[0].device(), memory_plan(c, planned_device(c)).total());
}

TEST(ShardPlanningTest, MemoryOfARankComesFromTheConfig) {
  RunConfig c = tiny_config();
  EXPECT_EQ(cluster_of(c, 4, 2).device_bytes, 0);
  c.parallel.device_gib = 0.25;
  EXPECT_EQ(cluster_of(c, 4, 2).device_bytes, kGib / 4);
  EXPECT_FALSE(plan_shards(c, cluster_of(c, 4, 2)).fits());  // the arena alone has 0.5 GiB
}

TEST(ShardPlanningTest, BenchmarkFitsEightLargeGpus) {
  const RunConfig c = small_benchmark();
  const sparse::PlannedTables planned =
      plan_shards(c, {.ranks = 8, .ranks_per_machine = 8, .device_bytes = 139 * kGib});
  EXPECT_TRUE(planned.fits());
  EXPECT_EQ(planned.plan.tables[0].sharding, sparse::Sharding::kRow);  // item_id
  const sparse::PlannedTables small =
      plan_shards(c, {.ranks = 4, .ranks_per_machine = 8, .device_bytes = 80 * kGib});
  EXPECT_GT(small.missing_device, 50 * kGib);
  EXPECT_FALSE(small.advice.empty());
}

TEST(ScalingModelTest, AgreesWithTheStepItIsMadeFrom) {
  // 256 samples of 1 to 3,276 tokens took 36.4 ms with identities on, 60.7 off.
  RunConfig c = benchmark();
  c.data.batch_size = 256;
  SimulationConfig rates;
  rates.lengths.low = 0;
  rates.lengths.high = 3277 - c.model.contextual_tokens() - kStoreCandidates;
  rates.step_ms = 0;
  EXPECT_NEAR(simulate(c, {}, rates).balanced.step_ms, 36.4, 2);
  c.model.identities = {false, false, false};
  EXPECT_NEAR(simulate(c, {}, rates).balanced.step_ms, 60.7, 3);
}

/// Rates that predictions use may be measured again, those that runs balance by may not: the same
/// samples would go to other ranks.
TEST(ScalingModelTest, RunsBalanceAsVersion010Did) {
  RunConfig c = benchmark();
  const balance::CostWeights w = cost_weights(make_model(c)->work(), balancing_rates());
  const double layers = 2 * 6.0 * 512 * (2048 + 1536), pairs = 2 * 7.0 * 4 * 256;
  EXPECT_NEAR(w.token_ps, layers / 427 + 22'000, 0.5);
  EXPECT_NEAR(w.pair_ps, pairs / 548, 0.01);
}

TEST(ScalingModelTest, CostsFollowTheFormula) {
  // Rates of 1 TFLOP/s and nothing else: picoseconds are FLOPs.
  RunConfig c = benchmark();
  c.model.identities.last_layer_targets = false;
  SimulationConfig rates;
  rates.linear_tflops = rates.attention_tflops = 1;
  rates.other_plain_ns = 0;
  const balance::CostWeights w = cost_weights(make_model(c)->work(), rates);
  const std::vector<int64_t> offsets{0, 1000};
  c.model.tasks.clear();
  const double flops = model::formula_flops(c.model, offsets, true);
  EXPECT_NEAR(w.token_ps * 1000 + w.pair_ps * 500'000, flops, 1e-9 * flops);
}

TEST(ScalingModelTest, BalancingHelpsAndRanksCost) {
  const RunConfig c = small_benchmark();
  SimulationConfig rates;
  rates.draws = 2;
  const ScalingPoint one = simulate(c, {}, rates);
  const ScalingPoint many = simulate(c, {.ranks = 256}, rates);
  EXPECT_DOUBLE_EQ(one.as_they_come.imbalance, 1);
  EXPECT_EQ(one.exchange_ms, 0);
  EXPECT_GT(one.balanced.efficiency, 0.99);
  EXPECT_EQ(many.samples, 8192);
  EXPECT_LT(many.balanced.imbalance, many.as_they_come.imbalance);
  EXPECT_LT(many.balanced.step_ms, many.as_they_come.step_ms);
  EXPECT_LT(many.balanced.efficiency, one.balanced.efficiency);
  EXPECT_GT(many.exchange_mb, 0);
  rates.network_gb_s *= 2;
  EXPECT_LT(simulate(c, {.ranks = 256}, rates).exchange_ms, many.exchange_ms);
  rates.samples_per_rank = 64;
  EXPECT_EQ(simulate(c, {.ranks = 16}, rates).samples, 1024);
}

TEST(ScalingModelTest, ReadsRatesOfBenches) {
  RunConfig c = benchmark();
  const model::SampleWork work = make_model(c)->work();
  // A made-up machine: 100 TFLOP/s in products, 50 in attention, 10 ns a token for the rest.
  const double tokens = 1e5, pairs = 1e8;
  const double linear = 6.0 * 512 * (2048 + 1536) * tokens, attention = 7.0 * 4 * 256 * pairs;
  const double layer = linear / 100e12 + attention / 50e12;
  const auto row = [](const std::string& name, double seconds, double flop, int layers) {
    return "{\"name\":\"" + name +
           "\",\"mask\":\"causal\",\"shape\":{\"layers\":" + std::to_string(layers) +
           ",\"heads\":4,\"head_dim\":128,\"dim\":512,\"tokens\":100000},\"median_s\":" +
           std::to_string(seconds) + ",\"gflop\":" + std::to_string(flop / 1e9) + "}\n";
  };
  const std::string path = base::temp_path("rates.json");
  base::write_file(
      path,
      row("attention forward", attention * 2 / 7 / 50e12, attention * 2 / 7, 1) +
          row("attention backward", attention * 5 / 7 / 50e12, attention * 5 / 7, 1) +
          // Slow, and of another mask or width: not what the model does.
          R"({"name":"attention forward","mask":"window512","shape":{"heads":4,"head_dim":128},)"
          R"("median_s":9,"gflop":1})"
          "\n"
          R"({"name":"attention forward","mask":"causal","shape":{"heads":4,"head_dim":256},)"
          R"("median_s":9,"gflop":1})"
          "\n" +
          row("stack", 3 * layer, 3 * (linear + attention), 3) +
          row("step, identities on", 2 * layer + 10e-9 * tokens, 3 * (linear + attention), 3));
  SimulationConfig rates;
  read_rates(path, work, rates);
  EXPECT_NEAR(rates.attention_tflops, 50, 0.1);
  EXPECT_NEAR(rates.linear_tflops, 100, 0.2);
  EXPECT_NEAR(rates.other_ns, 10, 0.2);
  EXPECT_EQ(rates.other_plain_ns, SimulationConfig{}.other_plain_ns);

  base::put_file(path, "not json\n");
  EXPECT_EQ(base::error_of([&] { read_rates(path, work, rates); })->code(), ErrorCode::kCorrupt);
  base::put_file(path, "{\"name\":\"ops\",\"median_s\":1}\n");
  EXPECT_TRUE(contains(base::error_of([&] { read_rates(path, work, rates); })->what(), "dim 512"));
}

TEST(ScalingModelTest, ImpossibleRatesAreErrors) {
  SimulationConfig rates;
  RunConfig shared = tiny_config();
  shared.parallel.tensor_parallel = 2;
  EXPECT_EQ(base::error_of([&] { simulate(shared, {}, rates); })->code(), ErrorCode::kUnsupported);
  rates.network_gb_s = 0;
  EXPECT_TRUE(contains(base::error_of([&] { rates.validate(); })->what(), "simulate.network_gb_s"));
  rates = {};
  rates.draws = 0;
  EXPECT_EQ(base::error_of([&] { rates.validate(); })->code(), ErrorCode::kConfig);
}

}  // namespace
}  // namespace segue::train
