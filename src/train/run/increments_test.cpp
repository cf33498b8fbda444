// Checkpoints whose tables hold only what changed: together they are what full ones would be, a run
// goes on from them with the same bits, and a chain that is not whole is noticed.

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/hash.h"
#include "comm/world.h"
#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/checkpoint/checkpoint_test_util.h"
#include "train/run/loop.h"
#include "train/run/loop_test_util.h"
#include "train/step/ranks.h"
#include "train/step/source.h"
#include "train/step/trainer.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;
using sparse::SavedArrays;

constexpr double kTimeout = 60;
constexpr int64_t kSteps = 12, kEvery = 2;

/// Rows by key, and what else is saved of a table.
struct TableContent {
  std::map<int64_t, std::string> rows;
  std::map<std::string, std::string> rest;
  bool operator==(const TableContent&) const = default;
};

std::string bytes_of(const SavedArrays& saved, const std::string& name, DType dtype, int64_t first,
                     int64_t count) {
  const std::vector<int64_t> shape = *saved.shape(name);
  const int64_t row =
      std::accumulate(shape.begin() + 1, shape.end(), size_of(dtype), std::multiplies<>());
  std::string bytes(static_cast<size_t>(row * count), '\0');
  saved.read(name, dtype, first, count, bytes.data());
  return bytes;
}

TableContent content_of(const Checkpoint& checkpoint, const std::string& table) {
  const std::unique_ptr<SavedArrays> saved = table_arrays(checkpoint, table);
  TableContent content;
  const int64_t rows = saved->shape("weight")->front();
  std::vector<int64_t> keys(static_cast<size_t>(rows));
  std::iota(keys.begin(), keys.end(), int64_t{0});
  for (const char* name : {"row", "key"}) {
    if (saved->shape(name)) keys = sparse::saved_integers(*saved, name, 1);
  }
  EXPECT_EQ(std::ssize(keys), rows);
  for (int64_t i = 0; i < rows; ++i) {
    std::string& row = content.rows[keys[static_cast<size_t>(i)]];
    for (const char* name : {"weight", "state"}) row += bytes_of(*saved, name, DType::kF32, i, 1);
    if (saved->shape("stamp")) row += bytes_of(*saved, "stamp", DType::kI64, i, 1);
  }
  for (const char* name : {"candidate", "buckets", "totals", "clock"}) {
    if (!saved->shape(name)) continue;
    content.rest[name] = bytes_of(*saved, name, DType::kI64, 0, saved->shape(name)->front());
  }
  return content;
}

class IncrementsTest : public LoopTest {
 protected:
  /// Tables of all kinds, which have to forget and to be fetched.
  static RunConfig config(int64_t full_every) {
    RunConfig c = tiny_config();
    c.data.random.ids = {data::DistributionKind::kZipfBounded, 0, 4000};
    c.data.random.ids.alpha = 0.5;
    std::vector<sparse::TableConfig>& tables = c.sparse.tables;
    for (sparse::TableConfig& table : tables) {
      table.rows = 4000;
      table.init_bound = 0.1;
    }
    tables[1].placement = sparse::TierChoice::kCached;
    tables[1].cache_share = 0.02;
    tables[2].kind = sparse::TableKind::kDynamic;
    tables[2].max_rows = 128;
    tables[2].evict = sparse::Evict::kLfu;
    tables[3].kind = sparse::TableKind::kDynamic;
    tables[3].max_rows = 512;
    tables[3].admit_after = 2;
    tables[3].placement = sparse::TierChoice::kFile;
    tables[3].cache_share = 0.1;
    c.train.steps = kSteps;
    c.eval.at_end = false;
    c.checkpoint.every_steps = kEvery;
    c.checkpoint.every_seconds = 0;
    c.checkpoint.keep_last = 0;
    c.checkpoint.full_every = full_every;
    c.checkpoint.copy_gib = 0;  // written at once, so that none comes late
    return c;
  }
  /// Trains and saves every few steps; what is saved is written while training goes on.
  static void train_on(int ranks, const RunConfig& config, const std::string& run) {
    comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
      const Device device = choose_device(config.train.device);
      Ranks all(world, config, device);
      Trainer trainer(config, device, all);
      const std::unique_ptr<Source> source = make_source(config, world.rank(), ranks);
      const std::unique_ptr<model::PreparedBatch> prepared = trainer.model().new_batch();
      CheckpointWriter writer(run + "/checkpoints", config.checkpoint, kShardBytes,
                              {world.rank(), ranks, kTimeout});
      if (!all.alone()) all.results->barrier().throw_if_failed();
      source->start(source->first());
      Batch batch;
      for (int64_t step = 1; step <= kSteps; ++step) {
        ASSERT_TRUE(source->next(batch));
        trainer.prepare(batch, *prepared);
        trainer.step(*prepared);
        if (step % kEvery != 0) continue;
        const bool full = (step / kEvery - 1) % config.checkpoint.full_every == 0;
        CheckpointContents contents =
            trainer.contents(full ? sparse::Extent::kAll : sparse::Extent::kChanges);
        trainer.tables().mark_saved();
        writer.save(step, std::move(contents), "{}", trainer.stream(), {}, !full);
      }
      writer.wait().throw_if_failed();
    });
  }
  static std::string at(const std::string& run, int64_t step) {
    return checkpoint_path(run + "/checkpoints", step);
  }
  /// How many increments of `chain` were compared with a full checkpoint.
  static int64_t expect_same_tables(const std::string& full, const std::string& chain,
                                    const RunConfig& config) {
    int64_t increments = 0;
    const std::vector<int64_t> steps = steps_in(full + "/checkpoints");
    for (const int64_t step : steps_in(chain + "/checkpoints")) {
      if (std::ranges::find(steps, step) == steps.end()) continue;
      const Checkpoint one(at(full, step)), other(at(chain, step));
      EXPECT_EQ(one.before(), nullptr);
      increments += other.before() != nullptr ? 1 : 0;
      for (const sparse::TableConfig& table : config.sparse.tables) {
        EXPECT_TRUE(content_of(one, table.name) == content_of(other, table.name))
            << table.name << " of step " << step;
      }
    }
    return increments;
  }
  /// Leaves the run as if it had been killed after this step.
  static void forget_after(const std::string& run, int64_t step) {
    for (const CheckpointEntry& entry : list_checkpoints(run + "/checkpoints")) {
      if (entry.step > step) fs::remove_all(entry.path);
    }
  }
};

TEST_F(IncrementsTest, AChainIsWhatFullCheckpointsAre) {
  train_loop(config(1), folder + "/full");
  train_loop(config(3), folder + "/chain");
  for (int64_t step = kEvery; step <= kSteps; step += kEvery) {
    const int64_t save = step / kEvery - 1;
    const auto manifest = CheckpointManifest::read(at(folder + "/chain", step));
    const bool full = save % 3 == 0 || step == kSteps;
    ASSERT_EQ(manifest.increment.has_value(), !full) << step;
    if (full) continue;
    EXPECT_EQ(manifest.increment->number, save % 3);
    EXPECT_EQ(manifest.increment->step, step - kEvery);
    const auto table_bytes = [&](const char* run) {
      return fs::file_size(at(folder + run, step) + "/tables.safetensors");
    };
    EXPECT_LT(table_bytes("/chain"), table_bytes("/full") / 2);
  }
  EXPECT_EQ(expect_same_tables(folder + "/full", folder + "/chain", config(1)), 3);
  EXPECT_EQ(checkpoint_bytes(folder + "/full", kSteps),
            checkpoint_bytes(folder + "/chain", kSteps));
}

TEST_F(IncrementsTest, AChainIsWhatFullCheckpointsAreOnSeveralRanks) {
  for (const auto sharding : {sparse::Sharding::kRow, sparse::Sharding::kColumn}) {
    for (const int ranks : {1, 3}) {
      RunConfig full = config(1), chain = config(100);
      for (RunConfig* c : {&full, &chain}) {
        c->sparse.tables[0].sharding = sparse::Sharding::kReplicated;
        c->sparse.tables[1].sharding = sharding;
        c->checkpoint.copy_gib = 1;
      }
      const std::string name = std::to_string(static_cast<int>(sharding)) + std::to_string(ranks);
      train_on(ranks, full, folder + "/full" + name);
      train_on(ranks, chain, folder + "/chain" + name);
      EXPECT_EQ(expect_same_tables(folder + "/full" + name, folder + "/chain" + name, full), 5);
    }
  }
}

TEST_F(IncrementsTest, ARunGoesOnFromAnyIncrementWithTheSameBits) {
  const RunConfig c = config(10);
  train_loop(c, folder + "/whole");
  const auto expected = checkpoint_bytes(folder + "/whole", kSteps);
  for (const int64_t step : {4, 8, 10}) {
    const std::string run = folder + "/parts" + std::to_string(step);
    fs::copy(folder + "/whole", run, fs::copy_options::recursive);
    forget_after(run, step);
    ASSERT_TRUE(CheckpointManifest::read(at(run, step)).increment);
    EXPECT_TRUE(train_loop(c, run).resumed);
    EXPECT_EQ(checkpoint_bytes(run, kSteps), expected);
    // The first save of a process is full.
    EXPECT_FALSE(CheckpointManifest::read(at(run, step + kEvery)).increment);
  }
}

TEST_F(IncrementsTest, TablesChangeTheirPlaceBetweenIncrementsAndWhatFollows) {
  const RunConfig c = config(10);
  train_loop(c, folder + "/run");
  const auto expected = checkpoint_bytes(folder + "/run", kSteps);
  forget_after(folder + "/run", 8);
  RunConfig other = c;
  other.sparse.tables[0].placement = sparse::TierChoice::kHost;
  other.sparse.tables[1].placement = sparse::TierChoice::kDevice;
  other.sparse.tables[1].cache_share = 0;
  LoopOptions allow;
  allow.allow_config_changes = {"sparse"};
  EXPECT_TRUE(train_loop(other, folder + "/run", allow).resumed);
  EXPECT_EQ(checkpoint_bytes(folder + "/run", kSteps), expected);
}

TEST_F(IncrementsTest, WhatStaysHasAllThatItNeeds) {
  RunConfig c = config(4);
  c.checkpoint.keep_last = 1;
  c.train.steps = 7;  // saves at 2, 4, 6 and 7: full, two increments, full
  train_loop(c, folder + "/run");
  EXPECT_EQ(steps_in(folder + "/run/checkpoints"), std::vector<int64_t>({7}));
  c.checkpoint.keep_last = 2;
  train_loop(c, folder + "/two");
  EXPECT_EQ(steps_in(folder + "/two/checkpoints"), std::vector<int64_t>({2, 4, 6, 7}));
  EXPECT_EQ(Checkpoint(at(folder + "/two", 6)).before()->before()->step(), 2);
}

/// Every way in which a chain may not be whole, at every place.
TEST_F(IncrementsTest, AChainThatIsNotWholeIsNoticed) {
  train_loop(config(10), folder + "/run");
  const std::string run = folder + "/run";
  const auto damaged = [&](int64_t step, const auto& damage, const char* what) {
    const std::string copy = folder + "/copy";
    fs::remove_all(copy);
    fs::copy(run, copy, fs::copy_options::recursive);
    damage(copy);
    EXPECT_EQ(base::message_of(ErrorCode::kCorrupt, [&] { Checkpoint(at(copy, step)); })
                  .find(at(copy, step)),
              0u)
        << what << ": " << step;
    // What does not need the damaged one is still good.
    const NewestCheckpoint newest = newest_checkpoint(copy + "/checkpoints");
    ASSERT_TRUE(newest.checkpoint);
    EXPECT_EQ(newest.checkpoint->step(), kSteps);
  };
  for (const int64_t step : {4, 6, 8, 10}) {
    for (int64_t missing = 2; missing < step; missing += kEvery) {
      damaged(
          step, [&](const std::string& r) { fs::remove_all(at(r, missing)); }, "a gap");
    }
    for (int64_t flipped = 2; flipped <= step; flipped += kEvery) {
      damaged(
          step,
          [&](const std::string& r) {
            const std::string path = at(r, flipped) + "/tables.safetensors";
            std::string bytes = base::read_file(path);
            bytes[bytes.size() - 1 - static_cast<size_t>(step) * 7] ^= 4;
            base::put_file(path, bytes);
          },
          "a flip");
    }
    damaged(
        step,
        [&](const std::string& r) {
          fs::rename(at(r, step), r + "/aside");
          fs::rename(at(r, step - kEvery), at(r, step));
          fs::rename(r + "/aside", at(r, step - kEvery));
        },
        "another order");
    damaged(
        step,
        [&](const std::string& r) {
          fs::remove_all(at(r, step));
          fs::copy(at(r, step - kEvery), at(r, step), fs::copy_options::recursive);
        },
        "a repetition");
  }
}

/// Anybody can write a checksum.
TEST_F(IncrementsTest, IncrementsThatDoNotFitAreErrors) {
  train_loop(config(10), folder + "/run");
  const std::string path = at(folder + "/run", 6);
  CheckpointManifest manifest = CheckpointManifest::read(path);
  const IncrementOf right = *manifest.increment;
  for (const IncrementOf wrong : {IncrementOf{right.step - kEvery, right.checksum, right.number},
                                  IncrementOf{right.step, right.checksum + 1, right.number},
                                  IncrementOf{right.step, right.checksum, right.number + 1},
                                  IncrementOf{right.step - 1, right.checksum, right.number}}) {
    manifest.increment = wrong;
    base::put_file(path + "/manifest.json", manifest.text());
    EXPECT_TRUE(
        base::contains(base::message_of(ErrorCode::kCorrupt, [&] { Checkpoint{path}; }), "chain"));
  }
  manifest.increment = right;
  base::put_file(path + "/manifest.json", manifest.text());
  EXPECT_EQ(Checkpoint(path).before()->step(), right.step);
}

TEST(CheckpointWriterTest, AnIncrementFollowsOnlyWhatSucceeded) {
  const std::string folder = base::temp_path("increments");
  {
    CheckpointWriter writer(folder, {});
    EXPECT_FALSE(writer.succeeded());
    TestState state;
    writer.save(1, state.arrays(), test_json(1));
    writer.wait().throw_if_failed();
    EXPECT_TRUE(writer.succeeded());
    writer.save(2, state.arrays(), test_json(2), nullptr, Status(ErrorCode::kIo, "no"), true);
    EXPECT_FALSE(writer.wait().ok());
    EXPECT_FALSE(writer.succeeded());
  }
  fs::remove_all(folder);
}

class GpuIncrementsTest : public IncrementsTest {
 protected:
  void SetUp() override {
    IncrementsTest::SetUp();
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
};

/// Copies are made on the GPU and written while training goes on, or written at once.
TEST_F(GpuIncrementsTest, AChainIsWhatFullCheckpointsAre) {
  RunConfig full = config(1), chain = config(100), at_once = config(100);
  for (RunConfig* c : {&full, &chain, &at_once}) c->train.device = "cuda";
  full.checkpoint.copy_gib = chain.checkpoint.copy_gib = 1;
  train_on(1, full, folder + "/full");
  train_on(1, chain, folder + "/chain");
  train_loop(at_once, folder + "/at_once");
  EXPECT_EQ(expect_same_tables(folder + "/full", folder + "/chain", full), 5);
  EXPECT_GT(expect_same_tables(folder + "/full", folder + "/at_once", full), 0);
  const auto expected = checkpoint_bytes(folder + "/at_once", kSteps);
  forget_after(folder + "/at_once", 8);
  EXPECT_TRUE(train_loop(at_once, folder + "/at_once").resumed);
  EXPECT_EQ(checkpoint_bytes(folder + "/at_once", kSteps), expected);
}

}  // namespace
}  // namespace segue::train
