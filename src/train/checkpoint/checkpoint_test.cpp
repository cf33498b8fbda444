#include "train/checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/safetensors.h"
#include "base/test_util.h"
#include "base/time.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/checkpoint/checkpoint_test_util.h"
#include "train/test_util.h"

namespace segue::train {
namespace {

using base::contains;
using base::error_of;
using base::temp_path;

// ---- when ----

TEST(CheckpointConfigTest, CadencesInOrderOfPrecedence) {
  const auto config = [](int64_t batches, int64_t steps, double seconds) {
    CheckpointConfig c;
    c.every_batches = batches;
    c.every_steps = steps;
    c.every_seconds = seconds;
    return c;
  };
  const CheckpointConfig off = config(0, 0, 0), all = config(4, 10, 60);
  struct Case {
    CheckpointConfig config;
    int64_t batches, steps;
    double seconds;
    SaveReason wanted;
  };
  const std::vector<Case> cases = {
      {off, 4, 10, 1e9, SaveReason::kNone},
      {all, 3, 9, 59.9, SaveReason::kNone},
      {all, 4, 9, 0, SaveReason::kBatchesInWindow},
      {all, 8, 10, 99, SaveReason::kBatchesInWindow},
      {all, 3, 10, 99, SaveReason::kSteps},
      {all, 3, 9, 60, SaveReason::kSeconds},
      {all, 0, 0, 0, SaveReason::kNone},  // nothing done yet
      {all, 0, 10, 0, SaveReason::kSteps},
      {config(4, 0, 0), 4, 1, 0, SaveReason::kBatchesInWindow},
      {config(0, 10, 0), 4, 20, 0, SaveReason::kSteps},
      {config(0, 10, 0), 4, 21, 1e9, SaveReason::kNone},
      {config(0, 0, 0.5), 0, 0, 0.5, SaveReason::kSeconds},
      {config(1, 1, 1), 1, 1, 1, SaveReason::kBatchesInWindow},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    const Case& c = cases[i];
    EXPECT_EQ(due(c.config, c.batches, c.steps, c.seconds), c.wanted) << "case " << i;
  }
}

TEST(CheckpointConfigTest, RefusesNegativeAndNotFinite) {
  CheckpointConfig config;
  config.validate();
  config.keep_last = -1;
  EXPECT_TRUE(contains(error_of([&] { config.validate(); })->what(), "checkpoint.keep_last"));
  config = {};
  config.every_seconds = std::nan("");
  EXPECT_EQ(error_of([&] { config.validate(); })->code(), ErrorCode::kConfig);
  config = {};
  config.copy_gib = std::numeric_limits<double>::infinity();
  EXPECT_TRUE(contains(error_of([&] { config.validate(); })->what(), "checkpoint.copy_gib"));
}

// ---- how arrays become files ----

TEST(CheckpointShardsTest, LargeArraysAreCutByRows) {
  TestState state;  // table: 40 rows of 32 bytes
  const std::vector<Shard> shards = plan_shards(state.arrays(), 300);
  std::vector<std::string> names;
  int64_t table_bytes = 0;
  for (const Shard& shard : shards) {
    int64_t bytes = 0;
    for (size_t i = 0; i < shard.items.size(); ++i) {
      bytes += shard.pieces[i].bytes;
      if (shard.items[i].name.starts_with("weight/item.rows-")) {
        EXPECT_EQ(shard.pieces[i].offset, table_bytes);
        table_bytes += shard.pieces[i].bytes;
      }
    }
    EXPECT_LE(bytes, 300) << shard.file_name;
    names.push_back(shard.file_name);
  }
  EXPECT_EQ(table_bytes, 40 * 32);
  EXPECT_EQ(names, (std::vector<std::string>{"dense.safetensors", "tables-00000.safetensors",
                                             "tables-00001.safetensors", "tables-00002.safetensors",
                                             "tables-00003.safetensors", "tables-00004.safetensors",
                                             "metrics.safetensors"}));
  EXPECT_EQ(shards[1].items[0].name, "weight/item.rows-0");
  EXPECT_EQ(shards[2].items[0].name, "weight/item.rows-9");
  // A row larger than a shard still has a place.
  EXPECT_EQ(plan_shards(state.arrays(), 1).size(), 7u + 11 + 5 + 40 + 3);
}

TEST(CheckpointShardsTest, NamesOfFilesAndParts) {
  for (const char* name : {"tables.safetensors", "tables-00012.safetensors",
                           "tables-123456.safetensors", "tables-rank0000.safetensors"}) {
    ASSERT_TRUE(parse_shard_name(name)) << name;
    EXPECT_EQ(parse_shard_name(name)->kind, "tables");
    EXPECT_EQ(parse_shard_name(name)->rank, 0);
  }
  EXPECT_EQ(parse_shard_name("tables-rank0003.safetensors")->rank, 3);
  EXPECT_EQ(parse_shard_name("tables-rank12345-00017.safetensors")->rank, 12345);
  for (const char* name :
       {"manifest.json", "tables-1.safetensors", "../a.safetensors", "A.safetensors",
        ".safetensors", "tables-0000x.safetensors", "tables-rank3.safetensors",
        "-rank0003.safetensors", "tables-00001-rank0003.safetensors",
        "tables-rank99999999999.safetensors"}) {
    EXPECT_FALSE(parse_shard_name(name)) << name;
  }
  EXPECT_EQ(rows_part("weight/a.rows-3.rows-17")->name, "weight/a.rows-3");
  EXPECT_EQ(rows_part("weight/a.rows-17")->first_row, 17);
  for (const char* name :
       {"weight/a", "a.rows-", "a.rows-x", "a.rows--1", "a.rows-99999999999999999999"}) {
    EXPECT_FALSE(rows_part(name)) << name;
  }
  TestState state;
  std::vector<CheckpointArray> arrays = state.arrays();
  arrays[3].name = "weight/a.rows-1";
  EXPECT_TRUE(contains(error_of([&] { plan_shards(arrays, 100); })->what(), "weight/a.rows-1"));
}

// ---- save and read ----

TEST(CheckpointTest, RoundTripWithAndWithoutCopyAndShards) {
  int64_t index = 0;
  for (const double copy_gib : {8.0, 0.0}) {
    for (const int64_t shard_bytes : {kShardBytes, int64_t{300}, int64_t{1}}) {
      const std::string folder = temp_path(fmt::format("run{}", index++));
      CheckpointConfig config;
      config.copy_gib = copy_gib;
      save_all(folder, config, {12}, shard_bytes);
      const Checkpoint checkpoint(checkpoint_path(folder, 12));
      EXPECT_EQ(checkpoint.step(), 12);
      EXPECT_TRUE(is_whole(checkpoint));
      EXPECT_EQ(checkpoint.arrays().size(), 6u);
    }
  }
}

TEST(CheckpointTest, EmptyStateIsACheckpoint) {
  const std::string folder = temp_path("run");
  CheckpointWriter writer(folder, {});
  writer.save(0, {}, "{}");
  EXPECT_TRUE(writer.wait().ok());
  const Checkpoint checkpoint(checkpoint_path(folder, 0));
  EXPECT_EQ(checkpoint.step(), 0);
  EXPECT_TRUE(checkpoint.arrays().empty());
}

TEST(CheckpointTest, EqualStatesLeaveEqualBytes) {
  const std::string a = temp_path("a"), b = temp_path("b");
  save_all(a, {}, {3, 5}, 300);
  {
    const ThreadsScope threads(1);
    save_all(b, {}, {5}, 300);
  }
  EXPECT_EQ(files_in(a + "/step-5"), files_in(b + "/step-5"));
  EXPECT_NE(files_in(a + "/step-3"), files_in(a + "/step-5"));
}

TEST(CheckpointTest, WhatIsSavedIsTheStateAtTheCall) {
  const std::string folder = temp_path("run");
  CheckpointConfig config;
  config.keep_last = 0;
  CheckpointWriter writer(folder, config);
  TestState state(4000);
  for (int64_t step = 1; step <= 4; ++step) {
    state.fill(step);
    writer.save(step, state.arrays(), test_json(step));
    state.fill(1000 + step);  // training goes on while it is written
  }
  EXPECT_TRUE(writer.wait().ok());
  EXPECT_FALSE(writer.busy());
  EXPECT_GT(writer.stalled_seconds(), 0);
  for (int64_t step = 1; step <= 4; ++step) {
    EXPECT_TRUE(is_whole(Checkpoint(checkpoint_path(folder, step)), 4000));
  }
}

TEST(CheckpointTest, StateKeepsItsBits) {
  const std::string folder = temp_path("run");
  const std::string state =
      R"({"z":0.1,"a":[1.7976931348623157e+308,5e-324,-0.0],"big":9223372036854775807,"s":"ü\n\"","n":{"x":null,"y":true}})";
  CheckpointWriter writer(folder, {});
  writer.save(1, {}, state);
  EXPECT_TRUE(writer.wait().ok());
  EXPECT_EQ(Checkpoint(checkpoint_path(folder, 1)).state_json(), state);
}

TEST(CheckpointTest, BadArgumentsAreFailuresAndLeaveNothing) {
  const std::string folder = temp_path("run");
  TestState state;
  CheckpointWriter writer(folder, {});
  for (const char* json : {"", "[1]", "{", "{}{}", "nan"}) {
    writer.save(1, state.arrays(), json);
    EXPECT_EQ(writer.wait().code(), ErrorCode::kInvalidArgument) << json;
    EXPECT_TRUE(contains(writer.take_failure().message(), "step 1 was not saved"));
    EXPECT_TRUE(writer.take_failure().ok());
  }
  std::vector<CheckpointArray> twice = state.arrays();
  twice.push_back(twice[0]);
  writer.save(1, twice, "{}");
  EXPECT_TRUE(contains(writer.wait().message(), "param/w"));
  EXPECT_TRUE(files_in(folder).empty());
}

TEST(CheckpointTest, KeepsTheLastAndDropsAbandonedLaterOnes) {
  const std::string folder = temp_path("run");
  CheckpointConfig config;
  config.keep_last = 3;
  save_all(folder, config, {2, 4, 6, 8, 10});
  EXPECT_EQ(steps_in(folder), (std::vector<int64_t>{6, 8, 10}));
  config.keep_last = 2;
  save_all(folder, config, {7});  // resumed from 6, say
  EXPECT_EQ(steps_in(folder), (std::vector<int64_t>{6, 7}));
  config.keep_last = 1;
  save_all(folder, config, {11});
  EXPECT_EQ(steps_in(folder), (std::vector<int64_t>{11}));
  config.keep_last = 0;
  save_all(folder, config, {12, 13, 14});
  EXPECT_EQ(steps_in(folder), (std::vector<int64_t>{11, 12, 13, 14}));
  EXPECT_EQ(files_in(folder).size(), 4u) << "a temporary folder was left";
}

TEST(CheckpointTest, TheSameStepAgainReplacesIt) {
  const std::string folder = temp_path("run");
  save_all(folder, {}, {4, 5});
  base::put_file(folder + "/step-5/manifest.json", "damaged");
  save_all(folder, {}, {5});
  EXPECT_TRUE(is_whole(Checkpoint(checkpoint_path(folder, 5))));
  EXPECT_EQ(steps_in(folder), (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(files_in(folder).size(), 2u);
}

TEST(CheckpointTest, ListIgnoresWhatIsNotACheckpoint) {
  EXPECT_TRUE(list_checkpoints(temp_path("nowhere")).empty());
  EXPECT_FALSE(newest_checkpoint(temp_path("nowhere")).checkpoint);
  const std::string folder = temp_path("run");
  for (const char* name : {"step-9", "step-10", "step-007", "step--1", "step-", "step-1x", "other",
                           ".tmp-step-11", "step-99999999999999999999"}) {
    base::make_folders(folder + "/" + name);
  }
  EXPECT_EQ(steps_in(folder), (std::vector<int64_t>{9, 10}));
  const CheckpointWriter writer(folder, {});
  EXPECT_FALSE(base::exists(folder + "/.tmp-step-11"));
  EXPECT_TRUE(base::exists(folder + "/other"));
}

TEST(CheckpointTest, ReadRefusesAnotherStateAndTouchesNothing) {
  const std::string folder = temp_path("run");
  save_all(folder, {}, {1});
  const Checkpoint checkpoint(checkpoint_path(folder, 1));
  TestState state;
  state.fill(77);
  const TestState before = state;
  const auto message = [&](auto change) {
    std::vector<CheckpointArray> arrays = state.arrays();
    change(arrays);
    const std::optional<Error> error = error_of([&] { checkpoint.read(arrays); });
    EXPECT_EQ(error->code(), ErrorCode::kConfig);
    EXPECT_TRUE(state == before);
    return std::string(error->what());
  };
  const Tensor five(state.weights.data(), DType::kF32, Device::cpu(), {5, 7});
  EXPECT_TRUE(contains(message([&](auto& a) { a[0].value = five; }),
                       "dense `param/w` was saved as F32 [7, 5], here it is F32 [5, 7]"));
  EXPECT_TRUE(contains(message([](auto& a) { a[1].value.dtype = DType::kI64; }), "F64 [11]"));
  EXPECT_TRUE(contains(message([](auto& a) { a[2].name = "flag"; }), "dense `flag` is not in it"));
  EXPECT_TRUE(
      contains(message([](auto& a) { a.pop_back(); }), "metrics `counts` has no place here"));
  EXPECT_TRUE(contains(message([](auto& a) { a[3].file = "dense"; }), "tables `weight/item`"));
  EXPECT_TRUE(contains(message([](auto& a) { a.push_back(a[0]); }), "`param/w` is not in it"));
}

TEST(GpuCheckpointTest, ArraysOfAGpuComeBack) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  constexpr int64_t kValues = 20 << 20;  // more than one chunk of the writer
  const Device gpu = Device::cuda(0);
  const Stream stream(gpu);
  const Buffer there(gpu, kValues * 4, Purpose::kScratch),
      back(gpu, kValues * 4, Purpose::kScratch);
  std::vector<int32_t> values(kValues), found(kValues);
  for (int64_t i = 0; i < kValues; ++i)
    values[static_cast<size_t>(i)] = static_cast<int32_t>(i * 7);
  copy_bytes(there.data(), gpu, values.data(), Device::cpu(), kValues * 4, &stream);
  for (const double copy_gib : {8.0, 0.0}) {
    CheckpointConfig config;
    config.copy_gib = copy_gib;
    const std::string folder = temp_path(fmt::format("run{}", copy_gib));
    const auto arrays = [&](const Buffer& memory) {
      return std::vector<CheckpointArray>{
          {"tables", "a", Tensor(memory.data(), DType::kI32, gpu, {kValues / 4, 4})}};
    };
    CheckpointWriter writer(folder, config);
    writer.save(1, arrays(there), "{}", &stream);
    ASSERT_TRUE(writer.wait().ok());
    Checkpoint(checkpoint_path(folder, 1)).read(arrays(back), &stream);
    copy_bytes(found.data(), Device::cpu(), back.data(), gpu, kValues * 4, &stream);
    stream.synchronize();
    EXPECT_EQ(found, values);
  }
}

// ---- a real model ----

TEST(CheckpointModelTest, ModelAndTablesComeBackInAllBits) {
  const RunConfig config = tiny_config();
  Trainer trainer(config, Device::cpu());
  const data::RandomBatches batches = random_batches(config);
  Batch batch;
  for (int64_t step = 1; step <= 3; ++step) {
    batches.fill(step, batch);
    step_on(trainer, batch);
  }
  const std::vector<CheckpointArray> arrays =
      model_arrays(trainer.model().parameters(), trainer.tables());
  EXPECT_EQ(arrays.size(), 3 * trainer.model().parameters().all().size() + 2 * 4);
  const std::string folder = temp_path("run");
  CheckpointWriter writer(folder, {});
  writer.save(3, arrays, "{}");
  EXPECT_TRUE(writer.wait().ok());

  RunConfig other_seed = config;
  other_seed.train.seed = 99;
  Trainer other(other_seed, Device::cpu());
  const std::vector<CheckpointArray> into =
      model_arrays(other.model().parameters(), other.tables());
  const Checkpoint checkpoint(checkpoint_path(folder, 3));
  checkpoint.read(into);
  for (size_t i = 0; i < arrays.size(); ++i) {
    const auto bytes = [](const CheckpointArray& a) {
      return std::string_view(static_cast<const char*>(a.value.data),
                              static_cast<size_t>(a.value.bytes()));
    };
    EXPECT_EQ(bytes(arrays[i]), bytes(into[i])) << arrays[i].name;
  }
}

TEST(CheckpointModelTest, ExportHasTheReferencesNamesAndWeightsOnly) {
  RunConfig config = tiny_config();
  config.sparse.tables[0].rows = 600;
  Trainer trainer(config, Device::cpu());
  const model::Parameters& parameters = trainer.model().parameters();
  const std::string folder = temp_path("run");
  CheckpointWriter writer(folder, {}, 8000);  // the largest table in parts
  writer.save(3, model_arrays(parameters, trainer.tables()), "{}");
  EXPECT_TRUE(writer.wait().ok());
  const Checkpoint checkpoint(checkpoint_path(folder, 3));

  const std::string dense = temp_path("dense.safetensors"), all = temp_path("all.safetensors");
  EXPECT_EQ(export_weights(checkpoint, dense, false).tensors,
            static_cast<int64_t>(parameters.all().size()));
  EXPECT_EQ(export_weights(checkpoint, all, true).tensors,
            static_cast<int64_t>(parameters.all().size()) + 4);
  const base::SafetensorsFile file(all);
  for (const model::Parameter& p : parameters.all()) {
    const base::SafetensorsEntry& entry = file.get(p.name);
    EXPECT_EQ(entry.shape, p.shape);
    EXPECT_EQ(std::memcmp(entry.bytes.data(), p.value.data, entry.bytes.size()), 0) << p.name;
  }
  const base::SafetensorsEntry& item = file.get("_embedding_collection.embeddings.item.weight");
  EXPECT_EQ(item.shape, (std::vector<int64_t>{600, 8}));
  const Tensor weights = trainer.tables().table(trainer.tables().id("item")).resident().weights;
  EXPECT_EQ(std::memcmp(item.bytes.data(), weights.data, item.bytes.size()), 0);
  EXPECT_EQ(file.metadata().at("step"), "3");
  EXPECT_EQ(base::SafetensorsFile(dense).tensors().size(), parameters.all().size());

  EXPECT_EQ(error_of([&] { export_weights(checkpoint, temp_path("no") + "/x", false); })->code(),
            ErrorCode::kIo);
}

/// Leaves a checkpoint and its export for tests/scripts/checkpoint_test.sh.
TEST(CheckpointModelTest, ForPython) {
  const char* const out = std::getenv("SEGUE_CHECKPOINT_OUT");
  if (out == nullptr) GTEST_SKIP() << "tests/scripts/checkpoint_test.sh runs it";
  RunConfig config = tiny_config();
  config.sparse.tables[0].rows = 600;
  Trainer trainer(config, Device::cpu());
  const std::string folder = std::string(out) + "/checkpoints";
  CheckpointWriter writer(folder, {}, 8000);
  writer.save(3, model_arrays(trainer.model().parameters(), trainer.tables()), test_json(3));
  writer.wait().throw_if_failed();
  export_weights(Checkpoint(checkpoint_path(folder, 3)), std::string(out) + "/weights.safetensors",
                 true);
}

/// save() against a plain copy of the same bytes, in turn: the stall that training sees. The bound
/// is loose, since the writer of the save before may be at work on the same cores; the figures are
/// printed.
TEST(SlowCheckpointTest, SavingCostsTheCallerAMemoryCopy) {
  constexpr int64_t kFloats = 16 << 20;  // 64 MiB
  std::vector<float> state(kFloats), other(kFloats);
  const std::vector<CheckpointArray> arrays = {
      {"tables", "weight/a", Tensor(state.data(), DType::kF32, Device::cpu(), {kFloats / 64, 64})}};
  CheckpointWriter writer(temp_path("run"), {});
  writer.save(0, arrays, "{}");  // takes the memory
  EXPECT_TRUE(writer.wait().ok());
  std::vector<double> copies, saves, writes;
  for (int64_t step = 1; step <= 7; ++step) {
    std::fill(state.begin(), state.end(), static_cast<float>(step));
    base::Stopwatch watch;
    std::memcpy(other.data(), state.data(), state.size() * sizeof(float));
    copies.push_back(watch.seconds());
    watch.restart();
    writer.save(step, arrays, "{}");
    saves.push_back(watch.seconds());
    watch.restart();
    EXPECT_TRUE(writer.wait().ok());
    writes.push_back(watch.seconds());
  }
  const auto median = [](std::vector<double>& v) {
    std::sort(v.begin(), v.end());
    return v[v.size() / 2];
  };
  const double copy = median(copies), save = median(saves);
  std::printf("64 MiB: memcpy %.1f ms, save %.1f ms (ratio %.2f), write %.0f ms\n", copy * 1e3,
              save * 1e3, save / copy, median(writes) * 1e3);
  EXPECT_LT(save, 4 * copy + 0.01);
}

}  // namespace
}  // namespace segue::train
