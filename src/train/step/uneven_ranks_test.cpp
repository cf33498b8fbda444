// Windows of a store that end with fewer samples than ranks: nobody waits for ever, and all train
// what one rank would.

#include <filesystem>
#include <random>

#include <gtest/gtest.h>

#include "base/log.h"
#include "base/test_util.h"
#include "data/synth/synth_output.h"
#include "train/run/loop.h"
#include "train/step/layouts_test_util.h"

namespace segue::train {
namespace {

constexpr double kTimeout = 30;

class UnevenRanksTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    base::set_log_level(base::LogLevel::kWarning);
    folder_ = base::temp_path("uneven");
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override {
    base::set_log_level(base::LogLevel::kInfo);
    std::filesystem::remove_all(folder_);
  }

  RunConfig config_for(uint64_t seed) const {
    RunConfig c = store_config(folder_ + "/store");
    for (sparse::TableConfig& table : c.sparse.tables) table.sharding = sparse::Sharding::kRow;
    // Batches of 1 and 2 samples leave ranks empty in every step, others at the end of a window.
    std::mt19937_64 random(seed);
    c.data.batch_size = 1 + static_cast<int64_t>(random() % 9);
    c.data.stream.shuffle_fraction = 1;
    c.data.stream.window_seconds = 43200;
    c.parallel.pipeline = random() % 2 == 0 ? Pipeline::kOn : Pipeline::kOff;
    c.balance.on = random() % 3 > 0;
    c.eval.every_windows = 3;
    c.eval.max_batches = 0;
    c.train.steps = 0;
    c.train.log_every = 5;
    c.checkpoint.every_steps = 9;
    return c;
  }

  TrainSummary train_on(int ranks, const RunConfig& config) const {
    std::vector<TrainSummary> summaries(static_cast<size_t>(ranks));
    const std::string run = folder_ + "/on" + std::to_string(ranks);
    comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
      LoopOptions options;
      options.own_process = false;
      summaries[static_cast<size_t>(world.rank())] = train_loop(config, run, options, world);
    });
    for (const TrainSummary& s : summaries) EXPECT_EQ(s.steps, summaries[0].steps);
    return summaries[0];
  }

  std::string folder_;
};

TEST_P(UnevenRanksTest, NeverHangAndTrainAsOneRank) {
  const auto seed = static_cast<uint64_t>(GetParam());
  data::SynthConfig log;
  log.users = 8;
  log.items = 150;
  log.days = 5;
  log.events_per_user = 25;
  log.seed = seed;
  data::SynthStoreConfig store;
  store.folder = folder_ + "/store";
  store.history_length = 16;
  store.min_history = {4};
  data::write_synth_store(data::SynthLog(log), store);

  const RunConfig config = config_for(seed);
  const TrainSummary one = train_on(1, config);
  ASSERT_GT(one.steps, 3);
  for (const int ranks : {2, 3, 5}) {
    const TrainSummary several = train_on(ranks, config);
    EXPECT_EQ(several.steps, one.steps) << ranks;
    EXPECT_EQ(several.samples, one.samples) << ranks;
    EXPECT_NEAR(several.last_loss, one.last_loss, 1e-5 * one.last_loss) << ranks;
    EXPECT_NEAR(several.held_out->loss, one.held_out->loss, 1e-5 * one.held_out->loss) << ranks;
  }
}
INSTANTIATE_TEST_SUITE_P(Seeds, UnevenRanksTest, testing::Range(1, 7));

}  // namespace
}  // namespace segue::train
