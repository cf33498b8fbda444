// What samples cost, measured: by made-up clocks, and on the CPU.

#include "train/plan/calibration.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "base/test_util.h"
#include "comm/world.h"
#include "train/plan/scaling_model.h"
#include "train/run/loop.h"
#include "train/step/layouts_test_util.h"

namespace segue::train {
namespace {

/// A clock by which tokens, pairs and a step itself cost what is said.
auto clock_of(const RunConfig& config, double token_ps, double pair_ps, double step_seconds) {
  return [=, shape = make_model(config)->work().shape](const Batch& batch) {
    double seconds = step_seconds;
    for (const balance::SampleCost& s :
         balance::sample_costs(batch, shape, balance::CostKind::kCalibrated, {token_ps, pair_ps})) {
      seconds += static_cast<double>(s.cost) * 1e-12;
    }
    return seconds;
  };
}

TEST(CalibrationTest, CostsOfAnArtificialClockAreFound) {
  const RunConfig config = tiny_config();
  for (const auto& [token, pair] : {std::pair(5000.0, 70.0), std::pair(1000.0, 0.0),
                                    std::pair(0.0, 300.0), std::pair(2e6, 1e5)}) {
    for (const int ranks : {1, 4}) {
      const Calibration found =
          calibrate_cost(config, ranks, clock_of(config, token, pair, /*step_seconds=*/0.25));
      EXPECT_NEAR(found.weights.token_ps, token, 1e-3 * (token + pair));
      EXPECT_NEAR(found.weights.pair_ps, pair, 1e-3 * (token + pair));
      for (const Calibration::Step& step : found.steps) {
        EXPECT_LE(step.samples, config.data.batch_size / ranks);
        EXPECT_LE(step.events, 19);
      }
    }
  }
}

TEST(CalibrationTest, AClockThatStandsStillIsRefused) {
  const auto error =
      base::error_of([] { calibrate_cost(tiny_config(), 2, [](const Batch&) { return 1.0; }); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::kInvalidArgument);
}

/// Steps of long samples on the CPU: both parts are there, and times add up.
TEST(CalibrationTest, TheCpuIsMeasured) {
  RunConfig config = tiny_config();
  config.model.max_seq_len = 260;
  config.data.random.lengths.high = 250;
  const Calibration found = calibrate_cost(config, 2, Device::cpu());
  EXPECT_GT(found.weights.token_ps + found.weights.pair_ps, 0);
  ASSERT_EQ(found.steps.size(), 6u);
  for (const Calibration::Step& step : found.steps) EXPECT_GT(step.timing.seconds, 0);
}

/// What the first rank measures counts on all, is kept with the run, and is used when it goes on.
TEST(CalibrationTest, ARunKeepsWhatWasMeasured) {
  RunConfig config = layout_config({2, sparse::Sharding::kRow, sparse::Wire::kF32, true});
  config.balance.calibrate = true;
  const auto train = [&](const std::string& folder, int64_t steps) {
    config.train.steps = steps;
    TrainSummary first;
    comm::run_as_threads(2, 60, [&](comm::World& world) {
      LoopOptions options;
      options.own_process = false;
      options.allow_config_changes = {"train.steps"};
      const TrainSummary summary = train_loop(config, folder, options, world);
      if (world.rank() == 0) first = summary;
    });
    return first;
  };
  const auto kept = [](const std::string& folder) {
    RunConfig run;
    base::ConfigSources sources;
    sources.file = folder + "/config.toml";
    base::load_config(run, sources);
    return run.balance;
  };
  const std::string parts = base::temp_path("parts"), whole = base::temp_path("whole");
  train(parts, 4);
  const balance::BalanceConfig measured = kept(parts);
  EXPECT_TRUE(measured.has_weights());
  const TrainSummary resumed = train(parts, 8);
  EXPECT_TRUE(resumed.resumed);
  EXPECT_EQ(kept(parts).token_ps, measured.token_ps);
  EXPECT_EQ(kept(parts).pair_ps, measured.pair_ps);
  config.balance = measured;
  EXPECT_EQ(train(whole, 8).held_out->loss, resumed.held_out->loss);
}

}  // namespace
}  // namespace segue::train
