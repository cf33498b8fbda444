// Runs whose tables are dynamic: as good as static ones, saved and resumed, on any number of ranks.

#include <string>
#include <vector>

#include "comm/world.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

constexpr double kTimeout = 60;

RunConfig with_bounds(RunConfig c) {
  for (sparse::TableConfig& table : c.sparse.tables) table.init_bound = 0.1;
  return c;
}

RunConfig dynamic_config(RunConfig c = tiny_config()) {
  c = with_bounds(c);
  for (sparse::TableConfig& table : c.sparse.tables) {
    table.kind = sparse::TableKind::kDynamic;
    table.max_rows = 1024;
    table.start_rows = 128;
  }
  return c;
}

/// Every policy at once, in tables that have to forget.
RunConfig forgetful_config() {
  RunConfig c = dynamic_config();
  for (sparse::TableConfig& table : c.sparse.tables) table.rows = 4000;
  c.data.random.ids = {data::DistributionKind::kZipfBounded, 0, 4000};
  c.data.random.ids.alpha = 0.5;
  c.sparse.tables[0].evict = sparse::Evict::kLfu;
  c.sparse.tables[0].max_rows = 128;
  c.sparse.tables[0].start_rows = 0;
  c.sparse.tables[1].admit_after = 2;
  c.sparse.tables[1].evict = sparse::Evict::kScore;
  c.sparse.tables[1].score = {"action_timestamp", "item_query_time"};
  c.sparse.tables[2].evict = sparse::Evict::kAge;
  c.sparse.tables[3].ttl_seconds = 3600;
  return c;
}

class DynamicTablesTest : public LoopTest {
 protected:
  /// Of a run with every policy: on the device, elsewhere, and half of it in each of two places.
  void compare_tiers(const std::string& device, int64_t steps) const {
    using sparse::TierChoice;
    const auto config_of = [&](TierChoice placement) {
      RunConfig c = forgetful_config();
      c.train.device = device;
      c.train.steps = steps;
      c.eval.every_steps = 5;
      c.eval.at_end = false;
      c.checkpoint.every_steps = 4;
      c.sparse.spill_folder = folder + "_spill";
      for (sparse::TableConfig& table : c.sparse.tables) {
        table.placement = placement;
        if (placement == TierChoice::kCached) table.cache_share = 0.05;
      }
      return c;
    };
    train_loop(config_of(TierChoice::kDevice), folder + "/device");
    const auto expected = checkpoint_bytes(folder + "/device", steps);
    LoopOptions allow;
    allow.allow_config_changes = {"train.steps"};
    TierChoice before = TierChoice::kDevice;
    for (const TierChoice tier :
         {TierChoice::kCached, TierChoice::kHost, TierChoice::kFile, TierChoice::kDevice}) {
      const std::string name = folder + "/" + std::to_string(static_cast<int>(tier));
      for (const Pipeline pipeline : {Pipeline::kOff, Pipeline::kOn}) {
        RunConfig c = config_of(tier);
        c.parallel.pipeline = pipeline;
        const std::string run = name + (pipeline == Pipeline::kOn ? "ahead" : "");
        train_loop(c, run);
        EXPECT_TRUE(checkpoint_bytes(run, steps) == expected) << run;
        EXPECT_EQ(lasting(metrics_of(run)), lasting(metrics_of(folder + "/device")));
      }
      RunConfig half = config_of(before);
      half.train.steps = steps / 2 + 1;
      train_loop(half, name + "parts");
      EXPECT_TRUE(train_loop(config_of(tier), name + "parts", allow).resumed);
      EXPECT_TRUE(checkpoint_bytes(name + "parts", steps) == expected) << name;
      before = tier;
    }
  }
};

TEST_F(DynamicTablesTest, TheSameBitsAsStaticTables) {
  for (const bool every_item : {false, true}) {
    RunConfig c = tiny_config();
    if (every_item) {
      c.model.labels = model::LabelKind::kEveryItem;
      c.model.tokens = model::TokenKind::kInterleaved;
      c.model.max_seq_len = 48;
    }
    EXPECT_EQ(losses_of(with_bounds(c)), losses_of(dynamic_config(c)));
    c.train.precision = Precision::kBf16;
    EXPECT_EQ(losses_of(with_bounds(c)), losses_of(dynamic_config(c)));
  }
}

TEST_F(DynamicTablesTest, TheSameBitsWithAndWithoutAPipelineAndAcrossAResume) {
  RunConfig c = forgetful_config();
  c.train.steps = 12;
  c.eval.every_steps = 5;
  c.eval.at_end = false;  // one more evaluation would show in the lifetime metrics
  c.checkpoint.every_steps = 4;
  train_loop(c, folder + "/whole");
  c.parallel.pipeline = Pipeline::kOn;
  train_loop(c, folder + "/ahead");
  EXPECT_TRUE(checkpoint_bytes(folder + "/whole", 12) == checkpoint_bytes(folder + "/ahead", 12));
  EXPECT_EQ(lasting(metrics_of(folder + "/whole")), lasting(metrics_of(folder + "/ahead")));

  LoopOptions allow;
  allow.allow_config_changes = {"train.steps"};
  RunConfig half = c;
  half.train.steps = 7;
  train_loop(half, folder + "/parts");
  EXPECT_TRUE(train_loop(c, folder + "/parts", allow).resumed);
  EXPECT_TRUE(checkpoint_bytes(folder + "/parts", 12) == checkpoint_bytes(folder + "/whole", 12));
}

TEST_F(DynamicTablesTest, TheSameBitsInEveryTierAndFromOneToAnother) { compare_tiers("cpu", 12); }

class GpuDynamicTablesTest : public DynamicTablesTest {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
    DynamicTablesTest::SetUp();
  }
};

TEST_F(GpuDynamicTablesTest, TheSameBitsInEveryTierAndFromOneToAnother) {
  compare_tiers("cuda", 40);
}

TEST_F(DynamicTablesTest, MetricsTellHowFullTablesAre) {
  RunConfig c = forgetful_config();
  c.sparse.tables[2].placement = sparse::TierChoice::kHost;
  c.train.steps = 12;
  train_loop(c, folder);
  const std::vector<std::string> lines = metrics();
  const std::string& last = lines[lines.size() - 3];
  for (const char* key : {"load_factor", "inserted", "evicted", "refused", "growths"}) {
    EXPECT_NE(value(last, key), "missing") << key;
  }
  const auto scalars = scalars_of(folder);
  EXPECT_TRUE(scalars.contains({"tables/item/evicted", 12}));
  EXPECT_GT(scalars.find({"tables/item/evicted", 12})->second, 0);
  EXPECT_GT(scalars.find({"tables/artist/candidates", 12})->second, 0);
  EXPECT_GT(scalars.find({"tables/user/load_factor", 12})->second, 0);
  const std::string in_host = "tables/" + c.sparse.tables[2].name + "/";
  for (const char* key : {"load_factor", "cache_misses", "stored_rows"}) {
    EXPECT_GT(scalars.find({in_host + key, 12})->second, 0) << key;
  }
}

TrainSummary train_on(int ranks, const RunConfig& config, const std::string& folder) {
  std::vector<TrainSummary> summaries(static_cast<size_t>(ranks));
  comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
    LoopOptions options;
    options.own_process = false;
    options.allow_config_changes = {"train.steps"};
    summaries[static_cast<size_t>(world.rank())] = train_loop(config, folder, options, world);
  });
  return summaries[0];
}

TEST_F(DynamicTablesTest, AnyNumberOfRanksSavesAndGoesOn) {
  RunConfig c = forgetful_config();
  for (sparse::TableConfig& table : c.sparse.tables) {
    table.sharding = sparse::Sharding::kRow;
    table.max_rows = std::max<int64_t>(table.max_rows, 2048);
  }
  c.train.steps = 10;
  const TrainSummary one = train_on(1, c, folder + "/one");
  const auto expect_near = [&](const TrainSummary& other) {
    EXPECT_NEAR(other.last_loss, one.last_loss, 1e-5 * one.last_loss);
    EXPECT_NEAR(other.held_out->loss, one.held_out->loss, 1e-5 * one.held_out->loss);
  };
  for (const int ranks : {2, 4}) {
    expect_near(train_on(ranks, c, folder + "/on" + std::to_string(ranks)));
  }
  const std::string parts = folder + "/parts";
  for (const auto& [ranks, steps] : {std::pair(1, 3), std::pair(4, 6), std::pair(2, 10)}) {
    c.train.steps = steps;
    const TrainSummary summary = train_on(ranks, c, parts);
    if (steps == 10) expect_near(summary);
  }
}

/// Items and artists by a column beside them, users and hours by one of the sample.
RunConfig scored_config() {
  RunConfig c = forgetful_config();
  for (sparse::TableConfig& table : c.sparse.tables) {
    table.max_rows = 512;
    table.start_rows = 0;
    table.evict = sparse::Evict::kScore;
    table.admit_after = 1;
    table.ttl_seconds = 0;
    table.score = {"hour"};
  }
  c.sparse.tables[0].score = {"item", "candidate_item"};
  c.sparse.tables[1].score = {"item_query_time", "action_timestamp"};
  c.data.batch_size = 8;  // rows of a step and the one before cannot go
  c.train.steps = 30;
  return c;
}

/// Keys and stamps of a table in the last checkpoint.
std::vector<int64_t> entries_of(const std::string& run, const std::string& table) {
  const Checkpoint checkpoint = open_checkpoint(run);
  const auto saved = table_arrays(checkpoint, table);
  std::vector<int64_t> entries = sparse::saved_integers(*saved, "key", 1);
  const std::vector<int64_t> stamps = sparse::saved_integers(*saved, "stamp", 3);
  entries.insert(entries.end(), stamps.begin(), stamps.end());
  return entries;
}

/// The score of an item is its number, so large ones stay; without scores that does not matter.
TEST_F(DynamicTablesTest, TheScoreDecidesWhoStays) {
  const auto mean_of_items = [&](const RunConfig& c, const std::string& run) {
    train_loop(c, run);
    const std::vector<int64_t> entries = entries_of(run, "item");
    const size_t rows = entries.size() / 4;
    double sum = 0;
    for (size_t r = 0; r < rows; ++r) {
      const int64_t id = sparse::id_of_key(entries[r]);
      sum += static_cast<double>(id);
      if (c.sparse.tables[0].evict == sparse::Evict::kScore) {
        EXPECT_EQ(entries[rows + 3 * r + 1], id);
      }
    }
    EXPECT_GT(rows, 400u);
    return sum / static_cast<double>(rows);
  };
  RunConfig by_use = scored_config();
  by_use.sparse.tables[0].evict = sparse::Evict::kLru;
  by_use.sparse.tables[0].score.clear();
  EXPECT_GT(mean_of_items(scored_config(), folder + "/scored"),
            1.4 * mean_of_items(by_use, folder + "/lru"));
}

TEST_F(DynamicTablesTest, TheSameScoresOnAnyNumberOfRanksAndAcrossAResume) {
  RunConfig c = scored_config();
  for (sparse::TableConfig& table : c.sparse.tables) {
    table.sharding = sparse::Sharding::kRow;
    table.max_rows = 1024;  // several shards
  }
  train_on(1, c, folder + "/one");
  const auto expect_same = [&](const std::string& run) {
    for (const sparse::TableConfig& table : c.sparse.tables) {
      EXPECT_EQ(entries_of(run, table.name), entries_of(folder + "/one", table.name)) << table.name;
    }
  };
  for (const int ranks : {2, 3}) {
    const std::string run = folder + "/on" + std::to_string(ranks);
    train_on(ranks, c, run);
    expect_same(run);
  }
  for (const auto& [ranks, steps] : {std::pair(3, 11), std::pair(2, 30)}) {
    c.train.steps = steps;
    train_on(ranks, c, folder + "/parts");
  }
  expect_same(folder + "/parts");
}

TEST_F(DynamicTablesTest, ScoresNeedColumnsOfIntegersBesideTheIds) {
  const auto message = [&](std::vector<std::string> score) {
    RunConfig c = scored_config();
    c.sparse.tables[0].score = std::move(score);
    return base::message_of(ErrorCode::kConfig, [&] { c.validate(); });
  };
  EXPECT_TRUE(base::contains(message({"action_timestamp"}),
                             "table `item`: no column of `score` has a value for each id of column "
                             "`candidate_item` (model.item.candidate)"));
  EXPECT_TRUE(base::contains(message({"played_for"}), "names column `played_for`, which samples"));
  RunConfig c = scored_config();
  c.sparse.tables[2].score = {"user"};  // its own ids
  EXPECT_NO_THROW(c.validate());
}

TEST_F(DynamicTablesTest, AStaticRunGoesOnWithDynamicTables) {
  RunConfig c = with_bounds(tiny_config());
  c.eval.at_end = false;
  train_loop(c, folder);
  RunConfig more = dynamic_config(c);
  more.train.steps = 8;
  LoopOptions allow;
  allow.allow_config_changes = {"train.steps", "sparse"};
  const TrainSummary dynamic = train_loop(more, folder, allow);
  EXPECT_TRUE(dynamic.resumed);
  c.train.steps = 8;
  EXPECT_EQ(dynamic.last_loss, train_loop(c, folder + "_static").last_loss);
}

TEST_F(DynamicTablesTest, ForgettingByTimeNeedsTimes) {
  RunConfig c = dynamic_config();
  EXPECT_NO_THROW(c.validate());
  c.sparse.tables[0].ttl_seconds = 5;
  EXPECT_NO_THROW(c.validate());  // the ranker reads timestamps
}

}  // namespace
}  // namespace segue::train
