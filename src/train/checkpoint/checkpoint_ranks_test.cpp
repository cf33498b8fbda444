// Several ranks save one checkpoint: what goes wrong on one of them, and what is left behind.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/config.h"
#include "base/hash.h"
#include "base/test_util.h"
#include "base/time.h"
#include "train/checkpoint/checkpoint_records.h"
#include "train/checkpoint/checkpoint_test_util.h"
#include "train/run/run_state.h"
#include "train/run/scoring.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

namespace fs = std::filesystem;
using base::contains;
using base::error_of;
using base::temp_path;

/// The writers of all ranks; saves run in the background, so one thread can be all of them.
struct Writers {
  Writers(const std::string& path, int ranks, double timeout = 20, CheckpointConfig config = {})
      : folder(path) {
    for (int r = 0; r < ranks; ++r) {
      all.push_back(std::make_unique<CheckpointWriter>(folder, config, kShardBytes,
                                                       WriterRanks{r, ranks, timeout}));
      states.emplace_back();
    }
  }

  /// Of the state that all have: "dense" and "metrics" are equal, the rows of the table are split.
  std::vector<CheckpointArray> arrays(int rank) {
    std::vector<CheckpointArray> list = states[static_cast<size_t>(rank)].arrays();
    for (CheckpointArray& array : list) {
      if (array.file != "tables") continue;
      const int64_t rows = array.name == "weight/item" ? 40 : 0, columns = array.value.size(1);
      array.part = ArrayPart{
          {rows, columns}, {rows, static_cast<int64_t>(all.size())}, rank, {{0, columns}}};
      array.value =
          Tensor(array.value.data, DType::kF32, Device::cpu(), {array.part->rows(), columns});
    }
    return list;
  }

  /// Filled so that a read of the whole finds TestState::fill(step).
  void fill(int rank, int64_t step) {
    TestState whole;
    whole.fill(step);
    TestState& state = states[static_cast<size_t>(rank)];
    state.fill(step);
    const ArrayPart part = *arrays(rank)[3].part;
    for (int64_t slot = 0; slot < part.rows(); ++slot) {
      std::copy_n(whole.table.begin() + part.partition.row_of(rank, slot) * 8, 8,
                  state.table.begin() + slot * 8);
    }
  }

  void save(int rank, int64_t step, const Status& ready = {}) {
    fill(rank, step);
    all[static_cast<size_t>(rank)]->save(step, arrays(rank), rank == 0 ? test_json(step) : "{}",
                                         nullptr, ready);
  }
  void save(int64_t step) {
    for (int r = static_cast<int>(all.size()) - 1; r >= 0; --r) save(r, step);
  }
  Status wait(int rank) { return all[static_cast<size_t>(rank)]->wait(); }

  std::string folder;
  std::vector<TestState> states;
  std::vector<std::unique_ptr<CheckpointWriter>> all;
};

TEST(CheckpointRanksTest, RanksSaveTogether) {
  Writers writers(temp_path("run"), 3);
  for (const int64_t step : {2, 4, 6}) {
    writers.save(step);
    for (const int r : {2, 1, 0}) EXPECT_TRUE(writers.wait(r).ok());
  }
  EXPECT_EQ(steps_in(writers.folder), (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(files_in(writers.folder).size(), 2u) << "a temporary folder was left";
  const Checkpoint checkpoint(checkpoint_path(writers.folder, 6));
  EXPECT_TRUE(is_whole(checkpoint));
  EXPECT_EQ(checkpoint.manifest().ranks, 3);
  EXPECT_EQ(checkpoint.arrays().size(), 6u);
}

TEST(CheckpointRanksTest, ARankMayBeASaveAhead) {
  CheckpointConfig config;
  config.keep_last = 0;
  Writers writers(temp_path("run"), 2, 20, config);
  for (const int64_t step : {1, 2, 3}) writers.save(1, step);
  EXPECT_TRUE(writers.wait(1).ok());
  for (const int64_t step : {1, 2, 3}) writers.save(0, step);
  EXPECT_TRUE(writers.wait(0).ok());
  for (const int64_t step : {1, 2, 3}) {
    EXPECT_TRUE(is_whole(Checkpoint(checkpoint_path(writers.folder, step))));
  }
}

TEST(CheckpointRanksTest, ARankThatCannotWriteFailsTheSaveAlone) {
  Writers writers(temp_path("run"), 3);
  writers.save(5);
  ASSERT_TRUE(writers.wait(0).ok());
  const auto before = files_in(checkpoint_path(writers.folder, 5));
  // A folder where rank 1 would write its file.
  base::make_folders(writers.folder + "/.tmp-step-7-2/tables-rank0001.safetensors/in/the/way");
  writers.save(7);
  const Status failed = writers.wait(0);
  EXPECT_EQ(failed.code(), ErrorCode::kIo);
  EXPECT_TRUE(contains(failed.message(), "step 7 was not saved: rank 1: "));
  EXPECT_TRUE(contains(failed.message(), "tables-rank0001.safetensors"));
  EXPECT_FALSE(writers.wait(1).ok());
  EXPECT_TRUE(writers.wait(2).ok());
  EXPECT_EQ(files_in(writers.folder).size(), 1u);
  EXPECT_EQ(files_in(checkpoint_path(writers.folder, 5)), before);
  writers.save(7);
  EXPECT_TRUE(writers.wait(0).ok());
  EXPECT_TRUE(is_whole(Checkpoint(checkpoint_path(writers.folder, 7))));

  base::make_folders(writers.folder + "/.tmp-step-9-4/dense-rank0000.safetensors/in/the/way");
  writers.save(9);
  EXPECT_TRUE(contains(writers.wait(0).message(), "dense-rank0000.safetensors"));
  EXPECT_TRUE(writers.wait(1).ok());
  EXPECT_EQ(steps_in(writers.folder), (std::vector<int64_t>{5, 7}));
}

/// Refused before there is a folder to leave a record in; the others cannot know.
TEST(CheckpointRanksTest, ARankThatRefusesASaveFailsItAndTheNextOneWorks) {
  Writers writers(temp_path("run"), 3);
  for (const int refusing : {0, 1}) {
    const int64_t step = 1 + refusing;
    for (const int r : {1, 2, 0}) {
      writers.save(r, step, r == refusing ? Status(ErrorCode::kIo, "no room") : Status());
    }
    EXPECT_TRUE(contains(writers.wait(0).message(), "no room")) << refusing;
    EXPECT_TRUE(files_in(writers.folder).empty());
  }
  writers.save(3);
  EXPECT_TRUE(writers.wait(0).ok());
  EXPECT_TRUE(is_whole(Checkpoint(checkpoint_path(writers.folder, 3))));
}

TEST(CheckpointRanksTest, ARankThatDoesNotComeIsNamed) {
  Writers writers(temp_path("run"), 3, 0.1);
  writers.save(1, 1);
  EXPECT_TRUE(writers.wait(1).ok());
  writers.save(0, 1);
  const Status failed = writers.wait(0);
  EXPECT_EQ(failed.code(), ErrorCode::kPeer);
  EXPECT_TRUE(contains(failed.message(), "step 1 was not saved: rank 2: wrote nothing for 0.1 s"));
  EXPECT_TRUE(files_in(writers.folder).empty());
  writers.save(2, 1);  // late: nobody waits any more
  EXPECT_TRUE(writers.wait(2).ok());
  for (const int r : {1, 2}) {
    writers.save(r, 2);
    EXPECT_TRUE(writers.wait(r).ok());
  }
  writers.save(0, 2);
  EXPECT_TRUE(writers.wait(0).ok());
  EXPECT_EQ(files_in(writers.folder).size(), 1u) << "what came late was left";
}

TEST(SlowCheckpointRanksTest, TheEndOfARunDoesNotWaitForADeadRank) {
  const base::Stopwatch watch;
  {
    Writers writers(temp_path("run"), 2, 300);
    writers.save(0, 1);
  }
  EXPECT_LT(watch.seconds(), base::kSlowness * 30);
  EXPECT_TRUE(files_in(temp_path("run")).empty());
}

TEST(CheckpointRanksTest, WhileSomethingGrowsNobodyIsGivenUp) {
  const std::string folder = temp_path("run");
  base::make_folders(folder);
  std::thread slow([&] {
    std::string text;
    for (int i = 0; i < 16; ++i) {  // longer than the timeout in all
      base::put_file(folder + "/tables-rank0001.safetensors", text += "more");
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    RankRecord record;
    record.step = 3;
    record.rank = 1;
    leave_record(folder, record);
  });
  const std::vector<RankRecord> records = collect_records(folder, 3, 2, 0.5, false);
  slow.join();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_TRUE(records[0].status.ok()) << records[0].status.message();
}

TEST(CheckpointRanksTest, RecordsOfAnotherStepOrDamagedOnesAreRefused) {
  const std::string folder = temp_path("run");
  base::make_folders(folder);
  RankRecord record;
  record.step = 3;
  record.rank = 1;
  leave_record(folder, record);
  base::put_file(folder + "/rank0002.json", "{}");
  record.rank = 3;
  record.step = 4;
  record.status = Status(ErrorCode::kOutOfMemory, "no \"room\"");
  leave_record(folder, record);
  const std::vector<RankRecord> records = collect_records(folder, 4, 4, 1, false);
  EXPECT_TRUE(contains(records[0].status.message(), "is that of rank 1 at step 3"));
  EXPECT_TRUE(contains(records[1].status.message(), "checksum is wrong"));
  EXPECT_EQ(records[2].status.message(), "no \"room\"");
  EXPECT_TRUE(files_in(folder).empty());
}

TEST(CheckpointRanksTest, LeftoversOfAKilledRunGoWithTheFirstWriter) {
  const std::string folder = temp_path("run");
  RankRecord stale;
  stale.step = 1;
  stale.rank = 1;
  base::make_folders(folder + "/.tmp-step-1-1");
  leave_record(folder + "/.tmp-step-1-1", stale);
  base::put_file(folder + "/.tmp-step-1-1/tables-rank0001.safetensors", "half of it");
  { const CheckpointWriter other(folder, {}, kShardBytes, {1, 2}); }
  EXPECT_TRUE(base::exists(folder + "/.tmp-step-1-1")) << "not for other ranks to clear";
  Writers writers(folder, 2);
  EXPECT_TRUE(files_in(folder).empty());
  writers.save(1);
  EXPECT_TRUE(writers.wait(0).ok());
  EXPECT_TRUE(is_whole(Checkpoint(checkpoint_path(folder, 1))));
}

TEST(CheckpointRanksTest, PartsThatNobodySavesFailTheSave) {
  Writers writers(temp_path("run"), 2);
  writers.fill(0, 1);
  writers.fill(1, 1);
  std::vector<CheckpointArray> arrays = writers.arrays(1);
  for (CheckpointArray& array : arrays) array.saved_here = false;
  writers.all[1]->save(1, arrays, "{}");
  writers.all[0]->save(1, writers.arrays(0), "{}");
  EXPECT_TRUE(contains(writers.wait(0).message(), "tables `weight/item` lacks some of 2 parts"));
  EXPECT_TRUE(files_in(writers.folder).empty());
}

TEST(CheckpointRanksTest, DamageOfOneRanksFileIsNamed) {
  const std::string folder = temp_path("run");
  {
    Writers writers(folder, 3);
    writers.save(8);
    ASSERT_TRUE(writers.wait(0).ok());
  }
  const std::string path = checkpoint_path(folder, 8);
  const std::string shard = path + "/tables-rank0001.safetensors";
  const std::string whole = base::read_file(shard);
  const auto message = [&] { return std::string(error_of([&] { Checkpoint c(path); })->what()); };
  std::string damaged = whole;
  damaged.back() ^= 1;
  base::put_file(shard, damaged);
  EXPECT_TRUE(contains(message(), "tables-rank0001.safetensors was changed"));
  const Checkpoint unverified(path, Verify::kSizes);  // another rank looks at the bytes
  base::put_file(shard, whole + "x");
  EXPECT_TRUE(contains(error_of([&] { Checkpoint c(path, Verify::kSizes); })->what(),
                       "tables-rank0001.safetensors has"));
  fs::remove(shard);
  EXPECT_TRUE(contains(message(), "tables-rank0001.safetensors is missing"));
  EXPECT_THROW(Checkpoint(path, Verify::kSizes), Error);
  base::put_file(shard, whole);
  EXPECT_TRUE(is_whole(Checkpoint(path)));

  // Manifests that are whole but tell another story.
  const CheckpointManifest good = CheckpointManifest::read(path);
  const auto with = [&](auto change) {
    CheckpointManifest manifest = good;
    change(manifest);
    base::put_file(path + "/manifest.json", manifest.text());
    return message();
  };
  EXPECT_TRUE(contains(with([](auto& m) { m.parts.pop_back(); }), "tables `"));
  EXPECT_TRUE(contains(with([](auto& m) { m.parts[0].rank = 7; }), "`rank`: 7"));
  EXPECT_TRUE(contains(with([](auto& m) { m.parts[0].part.shape = {41, 8}; }), "weight/item"));
  EXPECT_TRUE(contains(with([](auto& m) { m.parts[0].part.part = -1; }), "weight/item"));
  EXPECT_TRUE(contains(with([](auto& m) { m.parts[0].part.partition.parts = 0; }), "weight/item"));
}

TEST(CheckpointRanksTest, AnotherDealIsALaterFormat) {
  CheckpointManifest manifest;
  manifest.ranks = 2;
  manifest.state_json = "{}";
  std::string text = manifest.text();
  EXPECT_EQ(CheckpointManifest::parse(text, "m").ranks, 2);
  const size_t at = text.find("splitmix64");
  text.replace(at, 10, "other");
  const size_t end = text.find(",\n  \"checksum\"");
  text = fmt::format("{},\n  \"checksum\": \"{:016x}\"\n}}\n", text.substr(0, end),
                     base::xxh64(text.substr(0, end)));
  EXPECT_EQ(error_of([&] { CheckpointManifest::parse(text, "m"); })->code(),
            ErrorCode::kUnsupported);
}

/// Both ranks in one process that is killed at any moment; the next one goes on.
TEST(CheckpointRanksTest, KilledWhileSaving) {
  const unsigned seed = std::random_device{}();
  std::mt19937 random(seed);
  const std::string folder = temp_path("run");
  const ThreadsScope no_pool(1);  // a child of a process with threads may not start any under TSan
  int64_t last_step = 0;
  for (int i = 0; i < 4; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      const NewestCheckpoint newest = newest_checkpoint(folder);
      Writers writers(folder, 2);
      for (int64_t step = newest.checkpoint ? newest.checkpoint->step() : 0;;) {
        writers.save(++step);
      }
    }
    // The first one lives until there is something to lose.
    const base::Stopwatch watch;
    while (i == 0 && steps_in(folder).empty() && watch.seconds() < 20) ::usleep(1000);
    ::usleep(static_cast<useconds_t>(random() % 150000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const NewestCheckpoint newest = newest_checkpoint(folder);
    EXPECT_TRUE(newest.damaged.empty()) << "seed " << seed << ", kill " << i;
    ASSERT_TRUE(newest.checkpoint) << "seed " << seed << ", kill " << i;
    EXPECT_TRUE(is_whole(*newest.checkpoint)) << "seed " << seed << ", kill " << i;
    EXPECT_GE(newest.checkpoint->step(), last_step) << "seed " << seed << ", kill " << i;
    last_step = newest.checkpoint->step();
  }
}

/// Files as the first version of the format left them.
TEST(CheckpointRanksTest, TheFirstFormatLoads) {
  const std::string path = temp_path("step");
  base::make_folders(path);
  const std::vector<float> w = {1, 2, 3, 4, 5, 6};
  const std::string header =
      R"({"weight/a.rows-0":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
      R"("weight/a.rows-2":{"dtype":"F32","shape":[1,2],"data_offsets":[16,24]}}  )";
  const uint64_t length = header.size();
  std::string shard(reinterpret_cast<const char*>(&length), 8);
  shard += header;
  shard.append(reinterpret_cast<const char*>(w.data()), w.size() * sizeof(float));
  base::put_file(path + "/tables.safetensors", shard);
  base::put_file(path + "/manifest.json", R"({
  "format": "segue checkpoint",
  "version": 1,
  "step": 12,
  "segue": "0.1.0",
  "files": [
    {
      "name": "tables.safetensors",
      "bytes": 176,
      "xxh64": "4ea7e11de4a5581f"
    }
  ],
  "state": {
    "samples": 768
  },
  "checksum": "e18e62e16e72be17"
}
)");
  std::vector<float> found(6);
  const std::vector<CheckpointArray> arrays = {
      {"tables", "weight/a", Tensor(found.data(), DType::kF32, Device::cpu(), {3, 2})}};
  const Checkpoint checkpoint(path);
  checkpoint.read(arrays);
  EXPECT_EQ(found, w);
  EXPECT_EQ(checkpoint.step(), 12);
  EXPECT_EQ(checkpoint.state_json(), R"({"samples":768})");
}

/// `segue eval` and `segue score` open what several ranks saved.
TEST(CheckpointRanksTest, OneRankScoresWhatSeveralTrained) {
  const RunConfig config = tiny_config();
  Trainer trainer(config, Device::cpu());
  const data::RandomBatches batches = random_batches(config);
  Batch batch;
  batches.fill(1, batch);
  step_on(trainer, batch);
  RunState state;
  state.step = 1;
  state.config = base::to_toml(config);
  constexpr int kRanks = 2;
  const std::string folder = temp_path("run") + "/checkpoints";
  std::vector<std::unique_ptr<CheckpointWriter>> writers;
  for (int r = 0; r < kRanks; ++r) {
    writers.push_back(std::make_unique<CheckpointWriter>(folder, CheckpointConfig{}, kShardBytes,
                                                         WriterRanks{r, kRanks, 20}));
    std::vector<CheckpointArray> arrays = trainer.arrays();
    std::vector<std::vector<float>> memory;
    for (CheckpointArray& array : arrays) {
      if (array.file != "tables") continue;
      const int64_t rows = array.value.size(0), columns = array.value.size(1);
      const ArrayPart part{{rows, columns}, {rows, kRanks}, r, {{0, columns}}};
      memory.emplace_back(static_cast<size_t>(part.rows() * columns));
      for (int64_t slot = 0; slot < part.rows(); ++slot) {
        std::copy_n(array.value.row<float>(part.partition.row_of(r, slot)), columns,
                    memory.back().begin() + slot * columns);
      }
      array.part = part;
      array.value =
          Tensor(memory.back().data(), DType::kF32, Device::cpu(), {part.rows(), columns});
    }
    writers.back()->save(1, arrays, to_json(state));
  }
  ASSERT_TRUE(writers[0]->wait().ok());
  const TrainedModel model = open_model(temp_path("run"), {});
  batches.fill(2, batch);
  const model::Pass wanted = predict_on(trainer, batch), found = predict_on(*model.trainer, batch);
  EXPECT_EQ(wanted.loss, found.loss);
  EXPECT_TRUE(std::isfinite(wanted.loss));
}

}  // namespace
}  // namespace segue::train
