// Runs whose tables lie outside of device memory: the bits of those that do not, saved and resumed,
// from one tier to another and on any number of ranks.

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "comm/world.h"
#include "train/checkpoint/checkpoint.h"
#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

constexpr double kTimeout = 60;

using sparse::TierChoice;

constexpr TierChoice kElsewhere[] = {TierChoice::kHost, TierChoice::kCached, TierChoice::kFile};

class TiersTest : public LoopTest {
 protected:
  /// More rows than a small cache holds.
  RunConfig config(TierChoice placement) const {
    RunConfig c = tiny_config();
    for (sparse::TableConfig& table : c.sparse.tables) {
      table.rows = 4000;
      table.placement = placement;
      if (placement != TierChoice::kDevice && placement != TierChoice::kHost) {
        table.cache_share = 0.02;
      }
    }
    c.sparse.tables[1].cache_policy = sparse::CachePolicy::kLfu;
    c.sparse.tables[2].optimizer = sparse::OptimizerChoice::kAdam;
    c.sparse.spill_folder = folder + "_spill";
    c.data.random.ids = {data::DistributionKind::kZipfBounded, 0, 4000};
    c.data.random.ids.alpha = 0.5;
    c.train.steps = 12;
    c.eval.every_steps = 5;
    c.eval.at_end = false;  // a run in parts has an end of each, and counts it
    c.checkpoint.every_steps = 4;
    return c;
  }
  /// Far more than there is memory for; ids are the same.
  RunConfig huge_config() const {
    RunConfig c = config(TierChoice::kCached);
    for (sparse::TableConfig& table : c.sparse.tables) {
      table.rows = int64_t{1} << 33;
      table.cache_share = 1e-8;
      table.init_bound = 0.1;
    }
    return c;
  }
  /// Files that are not the same; what they hold would be too much to show.
  using Files = std::map<std::string, std::string>;
  static std::string differences(const Files& a, const Files& b) {
    std::string names;
    for (const auto& [name, bytes] : a) {
      if (!b.contains(name) || b.at(name) != bytes) names += name + " ";
    }
    return a.size() == b.size() ? names : names + "(not the same files)";
  }
  static TrainSummary train_on(int ranks, const RunConfig& config, const std::string& folder) {
    std::vector<TrainSummary> summaries(static_cast<size_t>(ranks));
    comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
      LoopOptions options;
      options.own_process = false;
      options.allow_config_changes = {"train.steps", "sparse"};
      summaries[static_cast<size_t>(world.rank())] = train_loop(config, folder, options, world);
    });
    return summaries[0];
  }
};

TEST_F(TiersTest, TheSameBitsInEveryTierWithAndWithoutAPipeline) {
  train_loop(config(TierChoice::kDevice), folder + "/device");
  const auto expected = checkpoint_bytes(folder + "/device", 12);
  const auto lines = lasting(metrics_of(folder + "/device"));
  int number = 0;
  for (const TierChoice tier : kElsewhere) {
    for (const Pipeline pipeline : {Pipeline::kOff, Pipeline::kOn}) {
      RunConfig c = config(tier);
      c.parallel.pipeline = pipeline;
      const std::string run = folder + "/run" + std::to_string(number++);
      train_loop(c, run);
      EXPECT_EQ(differences(checkpoint_bytes(run, 12), expected), "");
      EXPECT_EQ(lasting(metrics_of(run)), lines);
    }
  }
}

TEST_F(TiersTest, ARunGoesOnInAnotherTier) {
  train_loop(config(TierChoice::kDevice), folder + "/whole");
  const auto expected = checkpoint_bytes(folder + "/whole", 12);
  LoopOptions allow;
  allow.allow_config_changes = {"train.steps", "sparse"};
  int number = 0;
  for (const auto& [first, second] : {std::pair(TierChoice::kDevice, TierChoice::kCached),
                                      std::pair(TierChoice::kCached, TierChoice::kDevice),
                                      std::pair(TierChoice::kHost, TierChoice::kFile),
                                      std::pair(TierChoice::kFile, TierChoice::kFile)}) {
    const std::string run = folder + "/parts" + std::to_string(number++);
    RunConfig half = config(first);
    half.train.steps = 7;
    half.parallel.pipeline = Pipeline::kOn;
    train_loop(half, run, allow);
    RunConfig rest = config(second);
    rest.parallel.pipeline = Pipeline::kOn;
    EXPECT_TRUE(train_loop(rest, run, allow).resumed);
    EXPECT_EQ(differences(checkpoint_bytes(run, 12), expected), "");
  }
}

TEST_F(TiersTest, TheSameBitsOnSeveralRanks) {
  for (const sparse::Sharding sharding : {sparse::Sharding::kRow, sparse::Sharding::kColumn}) {
    RunConfig device = config(TierChoice::kDevice), cached = config(TierChoice::kCached);
    cached.parallel.pipeline = Pipeline::kOn;
    for (RunConfig* c : {&device, &cached}) {
      c->train.steps = 8;
      for (sparse::TableConfig& table : c->sparse.tables) table.sharding = sharding;
    }
    const std::string name = std::to_string(static_cast<int>(sharding));
    train_on(2, device, folder + "/device" + name);
    train_on(2, cached, folder + "/cached" + name);
    EXPECT_EQ(differences(checkpoint_bytes(folder + "/device" + name, 8),
                          checkpoint_bytes(folder + "/cached" + name, 8)),
              "");
  }
}

TEST_F(TiersTest, ATableFarLargerThanMemoryIsTrainedSavedAndResumed) {
  RunConfig c = huge_config();
  train_loop(c, folder + "/whole");
  const auto expected = checkpoint_bytes(folder + "/whole", 12);
  {
    const Checkpoint saved(checkpoint_path(folder + "/whole/checkpoints", 12));
    const auto& arrays = saved.arrays();
    const auto rows = std::ranges::find(arrays, "row/item", &Checkpoint::Array::name);
    ASSERT_NE(rows, arrays.end());
    EXPECT_LE(rows->shape[0], 4000) << "rows that were touched";
  }
  c.parallel.pipeline = Pipeline::kOn;
  c.checkpoint.copy_gib = 0;  // written from where the rows lie
  train_loop(c, folder + "/ahead");
  EXPECT_EQ(differences(checkpoint_bytes(folder + "/ahead", 12), expected), "");

  LoopOptions allow;
  allow.allow_config_changes = {"train.steps", "sparse"};
  RunConfig half = c;
  half.train.steps = 7;
  train_loop(half, folder + "/parts", allow);
  for (sparse::TableConfig& table : c.sparse.tables) table.placement = TierChoice::kFile;
  EXPECT_TRUE(train_loop(c, folder + "/parts", allow).resumed);
  EXPECT_EQ(differences(checkpoint_bytes(folder + "/parts", 12), expected), "");
}

TEST_F(TiersTest, AnyNumberOfRanksSavesSomeRowsAndGoesOn) {
  for (const sparse::Sharding sharding : {sparse::Sharding::kRow, sparse::Sharding::kColumn}) {
    RunConfig c = huge_config();
    for (sparse::TableConfig& table : c.sparse.tables) table.sharding = sharding;
    c.train.steps = 10;
    c.eval.at_end = true;
    const std::string name = folder + "/of" + std::to_string(static_cast<int>(sharding));
    const TrainSummary one = train_on(1, c, name + "one");
    for (const auto& [ranks, steps] :
         {std::pair(1, 3), std::pair(4, 6), std::pair(2, 8), std::pair(1, 10)}) {
      c.train.steps = steps;
      const TrainSummary summary = train_on(ranks, c, name + "parts");
      if (steps == 10) {
        EXPECT_NEAR(summary.last_loss, one.last_loss, 1e-5 * one.last_loss);
        EXPECT_NEAR(summary.held_out->loss, one.held_out->loss, 1e-5 * one.held_out->loss);
      }
    }
  }
}

TEST_F(TiersTest, MetricsTellWhatCachesDo) {
  train_loop(config(TierChoice::kCached), folder);
  const auto scalars = scalars_of(folder);
  for (const char* key : {"cache_hits", "cache_misses", "cache_evicted", "cache_bytes_in",
                          "cache_bytes_out", "stored_rows"}) {
    const auto found = scalars.find({std::string("tables/item/") + key, 12});
    ASSERT_NE(found, scalars.end()) << key;
    EXPECT_GT(found->second, 0) << key;
  }
  EXPECT_FALSE(scalars.contains({"tables/item/load_factor", 12}));
}

TEST_F(TiersTest, TablesThatDoNotFitGoElsewhereByThemselves) {
  RunConfig c = config(TierChoice::kAuto);
  c.sparse.tables[2].rows = 4'000'000;  // 384 MB with Adam's state
  c.parallel.device_gib = 0.7;          // of which the arena takes 0.5
  c.parallel.host_gib = 1;
  Trainer trainer(c, Device::cpu());
  EXPECT_EQ(trainer.tables().plan().tables[2].tier, sparse::Tier::kCached);
  EXPECT_GT(trainer.tables().plan().tables[2].cache_rows, 0);
  EXPECT_EQ(trainer.tables().plan().tables[0].tier, sparse::Tier::kDevice);
  c.parallel.host_gib = 0.01;
  EXPECT_EQ(plan_run(c, Device::cpu()).tables.plan.tables[2].tier, sparse::Tier::kFile);
  c.parallel.device_gib = 0;
  EXPECT_EQ(plan_run(c, Device::cpu()).tables.plan.tables[2].tier, sparse::Tier::kDevice);

  c.sparse.tables[2].kind = sparse::TableKind::kDynamic;
  c.sparse.tables[2].max_rows = 4'000'000;
  c.parallel.device_gib = 0.7;
  c.parallel.host_gib = 1;
  EXPECT_EQ(Trainer(c, Device::cpu()).tables().plan().tables[2].tier, sparse::Tier::kCached);
  c.parallel.host_gib = 0.4;  // for the index, not for the rows
  EXPECT_EQ(plan_run(c, Device::cpu()).tables.plan.tables[2].tier, sparse::Tier::kFile);
}

class GpuTiersTest : public TiersTest {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
    TiersTest::SetUp();
  }
};

TEST_F(GpuTiersTest, TheSameBitsInEveryTier) {
  RunConfig device = config(TierChoice::kDevice);
  device.train.device = "cuda";
  device.train.steps = 50;
  train_loop(device, folder + "/device");
  const auto expected = checkpoint_bytes(folder + "/device", 50);
  int number = 0;
  for (const TierChoice tier : kElsewhere) {
    for (const Pipeline pipeline : {Pipeline::kOff, Pipeline::kOn}) {
      RunConfig c = config(tier);
      c.train.device = "cuda";
      c.train.steps = 50;
      c.parallel.pipeline = pipeline;
      const std::string run = folder + "/run" + std::to_string(number++);
      train_loop(c, run);
      EXPECT_EQ(differences(checkpoint_bytes(run, 50), expected), "");
    }
  }
}

}  // namespace
}  // namespace segue::train
