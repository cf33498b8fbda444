// What N ranks saved is read by M ranks, whatever either of them keeps of the tables.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/safetensors.h"
#include "base/test_util.h"
#include "base/time.h"
#include "comm/world.h"
#include "train/checkpoint/checkpoint_model.h"
#include "train/checkpoint/checkpoint_test_util.h"

namespace segue::train {
namespace {

using base::contains;
using base::error_of;
using base::temp_path;
using ops::RowOptimizer;
using sparse::Sharding;
using sparse::TableId;

constexpr double kTimeout = 30;
constexpr int64_t kDim = 10;  // blocks of columns have unequal widths

/// How all tables lie; the last one is a mix.
enum class Layout { kTable, kRow, kColumn, kTableRow, kReplicated, kMix };
constexpr std::array kLayouts = {Layout::kTable,    Layout::kRow,        Layout::kColumn,
                                 Layout::kTableRow, Layout::kReplicated, Layout::kMix};
constexpr std::array kOptimizers = {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                    RowOptimizer::kSgd, RowOptimizer::kAdam};

sparse::TablesConfig config_for(RowOptimizer optimizer) {
  sparse::TablesConfig config;
  config.tables = {{"item", 50, 0}, {"artist", 23, 0}, {"user", 3, 0}, {"hour", 7, 0}};
  config.dim = kDim;
  config.optimizer = optimizer;
  return config;
}

sparse::TablePlacement place(Sharding sharding, int ranks) {
  sparse::TablePlacement placement;
  placement.sharding = sharding;
  placement.ranks.clear();
  for (int r = ranks - 1; r >= 0; --r)
    placement.ranks.push_back(r);  // the last owns the first part
  if (sharding == Sharding::kTable) placement.ranks = {ranks / 2};
  if (sharding == Sharding::kTableRow) placement.ranks.resize(static_cast<size_t>(ranks + 1) / 2);
  return placement;
}

sparse::ShardPlan plan_for(Layout layout, int ranks) {
  sparse::ShardPlan plan;
  plan.ranks = ranks;
  constexpr std::array kMixed = {Sharding::kRow, Sharding::kColumn, Sharding::kReplicated,
                                 Sharding::kTableRow};
  constexpr std::array kPlain = {Sharding::kTable, Sharding::kRow, Sharding::kColumn,
                                 Sharding::kTableRow, Sharding::kReplicated};
  for (const Sharding mixed : kMixed) {
    const bool mix = layout == Layout::kMix;
    plan.tables.push_back(place(mix ? mixed : kPlain[static_cast<size_t>(layout)], ranks));
  }
  return plan;
}

/// No two values of a checkpoint are equal, and all are exact.
float value_of(size_t table, bool state, int64_t row, int64_t column) {
  return static_cast<float>(((static_cast<int64_t>(table) * 2 + (state ? 1 : 0)) * 64 + row) * 64 +
                            column + 1);
}

/// One rank: its tables, and a dense parameter that all have.
class RankModel {
 public:
  RankModel(comm::World& world, const sparse::TablesConfig& config, Layout layout)
      : ids_(world.open("ids")),
        rows_(world.open("rows")),
        tables_(config, plan_for(layout, world.size()), {ids_.get(), rows_.get()}, Device::cpu(),
                DType::kF32, 1) {
    parameters_.add("w", {3, 2}, ops::Init::kUniform, 1);
    parameters_.allocate(Device::cpu(), DType::kF32, 7);
  }

  std::vector<CheckpointArray> arrays() { return model_arrays(parameters_, tables_); }

  void fill() {
    visit([](float& place, float value) { place = value; });
  }
  void clear() {
    for (const CheckpointArray& array : arrays()) zero(array.value);
  }
  int64_t wrong() {
    int64_t count = 0;
    visit([&](float& place, float value) { count += place != value; });
    model::Parameters fresh;
    fresh.add("w", {3, 2}, ops::Init::kUniform, 1);
    fresh.allocate(Device::cpu(), DType::kF32, 7);
    count += std::memcmp(fresh.values().data, parameters_.values().data, 6 * sizeof(float)) != 0;
    return count;
  }

 private:
  /// Every value of the tables here and what it has to be, from the shards alone.
  template <class Use>
  void visit(Use use) {
    const sparse::TablesConfig& config = tables_.config();
    for (size_t t = 0; t < config.tables.size(); ++t) {
      const sparse::LocalShard shard = sparse::local_shard(
          tables_.plan().tables[t], config.tables[t].rows, kDim, tables_.rank());
      const auto& [weights, state] = tables_.table(static_cast<TableId>(t)).resident();
      const int64_t width = shard.columns.width(), begin = shard.columns.begin;
      for (int64_t slot = 0; slot < shard.rows(); ++slot) {
        const int64_t row = shard.partition.row_of(shard.part, slot);
        for (int64_t c = 0; c < width; ++c) {
          use(weights.row<float>(slot)[c], value_of(t, false, row, begin + c));
        }
        for (int64_t c = 0; c < state.size(1); ++c) {
          int64_t column = begin + c;
          if (config.optimizer == RowOptimizer::kRowwiseAdagrad) column = 0;
          if (config.per_block_state) column = begin;  // each block has its own
          if (config.optimizer == RowOptimizer::kAdam && c >= width) column += kDim - width;
          use(state.row<float>(slot)[c], value_of(t, true, row, column));
        }
      }
    }
  }

  std::unique_ptr<comm::Communicator> ids_, rows_;
  sparse::Tables tables_;
  model::Parameters parameters_;
};

struct Saved {
  Layout layout;
  int ranks;
  int64_t shard_bytes = 4096;  // some tables are cut by rows as well
  double copy_gib = 8;
};

void save(const std::string& folder, const sparse::TablesConfig& config, const Saved& saved) {
  comm::run_as_threads(saved.ranks, kTimeout, [&](comm::World& world) {
    RankModel model(world, config, saved.layout);
    model.fill();
    CheckpointConfig checkpoint;
    checkpoint.copy_gib = saved.copy_gib;
    CheckpointWriter writer(folder, checkpoint, saved.shard_bytes,
                            {world.rank(), world.size(), kTimeout});
    world.open("start")->barrier().throw_if_failed();  // rank 0 has cleared the folder
    writer.save(4, model.arrays(), test_json(4));
    model.clear();
    writer.wait().throw_if_failed();
  });
}

/// Values that did not come back, on all ranks together.
int64_t load(const std::string& folder, const sparse::TablesConfig& config, Layout layout,
             int ranks) {
  std::vector<int64_t> wrong(static_cast<size_t>(ranks));
  comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
    RankModel model(world, config, layout);
    model.clear();
    const Checkpoint checkpoint(checkpoint_path(folder, 4),
                                world.rank() == 0 ? Verify::kBytes : Verify::kSizes);
    checkpoint.read(model.arrays());
    wrong[static_cast<size_t>(world.rank())] = model.wrong();
  });
  return std::accumulate(wrong.begin(), wrong.end(), int64_t{0});
}

TEST(CheckpointLayoutsTest, AnyNumberOfRanksReadsAnyOther) {
  // Every pair of numbers; layouts and optimizers take turns (all combinations: see Slow).
  size_t turn = 0;
  for (int from = 1; from <= 4; ++from) {
    for (const RowOptimizer optimizer : kOptimizers) {
      const sparse::TablesConfig config = config_for(optimizer);
      const Layout layout = kLayouts[turn++ % kLayouts.size()];
      const std::string folder = temp_path(fmt::format("run{}", turn));
      save(folder, config, {layout, from});
      for (int to = 1; to <= 4; ++to) {
        const Layout other = kLayouts[(turn + static_cast<size_t>(to)) % kLayouts.size()];
        EXPECT_EQ(load(folder, config, other, to), 0)
            << from << " to " << to << " ranks, layout " << static_cast<int>(layout) << " to "
            << static_cast<int>(other) << ", optimizer " << static_cast<int>(optimizer);
      }
    }
  }
}

TEST(SlowCheckpointLayoutsTest, EveryCombination) {
  int64_t index = 0;
  for (const RowOptimizer optimizer : kOptimizers) {
    const sparse::TablesConfig config = config_for(optimizer);
    for (int from = 1; from <= 4; ++from) {
      for (const Layout layout : kLayouts) {
        const std::string folder = temp_path(fmt::format("run{}", index++));
        save(folder, config, {layout, from, index % 2 == 0 ? kShardBytes : 700});
        for (int to = 1; to <= 4; ++to) {
          for (const Layout other : kLayouts) {
            ASSERT_EQ(load(folder, config, other, to), 0)
                << from << " to " << to << " ranks, layout " << static_cast<int>(layout) << " to "
                << static_cast<int>(other) << ", optimizer " << static_cast<int>(optimizer);
          }
        }
      }
    }
  }
}

/// A table read as it was saved, and the same rows put together from the parts of four ranks. The
/// figures are printed; the bound is loose, since other work may have the cores.
TEST(SlowCheckpointLayoutsTest, AnotherLayoutCostsLittleMore) {
  constexpr int64_t kRows = 200000, kColumns = 128, kRanks = 4;
  std::vector<float> table(kRows * kColumns, 1.0f);
  const auto seconds = [&](int ranks) {
    const std::string folder = temp_path(fmt::format("run{}", ranks));
    std::vector<std::unique_ptr<CheckpointWriter>> writers;
    for (int r = 0; r < ranks; ++r) {
      const ArrayPart part{{kRows, kColumns}, {kRows, ranks}, r, {{0, kColumns}}};
      std::vector<CheckpointArray> arrays = {
          {"tables", "a",
           Tensor(table.data(), DType::kF32, Device::cpu(), {part.rows(), kColumns})}};
      if (ranks > 1) arrays[0].part = part;
      writers.push_back(std::make_unique<CheckpointWriter>(folder, CheckpointConfig{}, kShardBytes,
                                                           WriterRanks{r, ranks, kTimeout}));
      writers.back()->save(1, arrays, "{}");
    }
    writers[0]->wait().throw_if_failed();
    const Checkpoint checkpoint(checkpoint_path(folder, 1));
    const std::vector<CheckpointArray> into = {
        {"tables", "a", Tensor(table.data(), DType::kF32, Device::cpu(), {kRows, kColumns})}};
    std::vector<double> times;
    for (int i = 0; i < 5; ++i) {
      const base::Stopwatch watch;
      checkpoint.read(into);
      times.push_back(watch.seconds());
    }
    std::ranges::sort(times);
    return times[2];
  };
  const double same = seconds(1), other = seconds(kRanks);
  std::printf("100 MB: %.1f ms as saved, %.1f ms from the parts of %d ranks (ratio %.2f)\n",
              same * 1e3, other * 1e3, static_cast<int>(kRanks), other / same);
  EXPECT_LT(other, 8 * same + 0.05);
}

TEST(CheckpointLayoutsTest, WithoutCopyAndInSmallFiles) {
  const sparse::TablesConfig config = config_for(RowOptimizer::kAdam);
  const std::string folder = temp_path("run");
  save(folder, config, {Layout::kMix, 3, 300, 0});
  EXPECT_EQ(load(folder, config, Layout::kMix, 3), 0);
  EXPECT_EQ(load(folder, config, Layout::kColumn, 4), 0);
  EXPECT_EQ(load(folder, config, Layout::kTable, 1), 0);
}

TEST(CheckpointLayoutsTest, OneRankWritesWhatItAlwaysDid) {
  const std::string folder = temp_path("run");
  save(folder, config_for(RowOptimizer::kAdam), {Layout::kRow, 1, kShardBytes});
  const auto files = files_in(checkpoint_path(folder, 4));
  ASSERT_EQ(files.size(), 3u);
  EXPECT_TRUE(files.contains("dense.safetensors") && files.contains("tables.safetensors"));
  EXPECT_TRUE(contains(files.at("manifest.json"), "\"version\": 1"));
  EXPECT_EQ(files.at("manifest.json").find("parts"), std::string::npos);
}

TEST(CheckpointLayoutsTest, EqualStatesOfSeveralRanksLeaveEqualBytes) {
  const sparse::TablesConfig config = config_for(RowOptimizer::kRowwiseAdagrad);
  const std::string a = temp_path("a"), b = temp_path("b");
  save(a, config, {Layout::kMix, 3});
  save(b, config, {Layout::kMix, 3, 4096, 0});
  EXPECT_EQ(files_in(checkpoint_path(a, 4)), files_in(checkpoint_path(b, 4)));
  EXPECT_TRUE(base::exists(checkpoint_path(a, 4) + "/tables-rank0002.safetensors"));
}

TEST(CheckpointLayoutsTest, WhatSeveralRanksHaveIsSavedOnce) {
  const sparse::TablesConfig config = config_for(RowOptimizer::kRowwiseAdagrad);
  for (const Layout layout : kLayouts) {
    const std::string folder = temp_path(fmt::format("run{}", static_cast<int>(layout)));
    save(folder, config, {layout, 4});
    const Checkpoint checkpoint(checkpoint_path(folder, 4));
    int64_t bytes = 0;
    for (const Checkpoint::Array& array : checkpoint.arrays()) {
      for (const StoredPart& part : array.parts) {
        for (const StoredPart::Run& run : part.runs)
          bytes += static_cast<int64_t>(run.bytes.size());
      }
    }
    EXPECT_EQ(bytes, (83 * (kDim + 1) + 3 * 6) * 4) << static_cast<int>(layout);
  }
}

TEST(CheckpointLayoutsTest, StatePerBlockGoesToAsManyBlocksOnly) {
  sparse::TablesConfig config = config_for(RowOptimizer::kRowwiseAdagrad);
  config.per_block_state = true;
  const std::string folder = temp_path("run");
  save(folder, config, {Layout::kColumn, 3});
  EXPECT_EQ(load(folder, config, Layout::kColumn, 3), 0);
  for (const int to : {1, 2, 4}) {
    const auto error = error_of([&] { load(folder, config, Layout::kColumn, to); });
    EXPECT_EQ(error->code(), ErrorCode::kConfig);
    EXPECT_TRUE(contains(error->what(), "`state/item` was saved as F32 [50, 3]"));
    EXPECT_TRUE(contains(error->what(), "per block of columns"));
  }
}

TEST(CheckpointLayoutsTest, ExportPutsTheRowsInOrder) {
  const sparse::TablesConfig config = config_for(RowOptimizer::kAdagrad);
  std::string wanted;
  for (const int ranks : {1, 3}) {
    const std::string folder = temp_path(fmt::format("run{}", ranks));
    const std::string out = temp_path(fmt::format("out{}", ranks));
    save(folder, config, {Layout::kMix, ranks});
    EXPECT_EQ(export_weights(Checkpoint(checkpoint_path(folder, 4)), out, true).tensors, 5);
    if (ranks == 1) wanted = base::read_file(out);
  }
  EXPECT_EQ(base::read_file(temp_path("out3")), wanted);
  const base::SafetensorsFile file(temp_path("out3"));
  const auto item = file.get("_embedding_collection.embeddings.item.weight").as<float>("F32");
  EXPECT_EQ(item[17 * kDim + 9], value_of(0, false, 17, 9));
}

/// The place of every row is computed: another partition would read old checkpoints as other rows.
/// A change here needs another word for `deal` in the manifest.
TEST(CheckpointLayoutsTest, TheDealIsPartOfTheFormat) {
  const sparse::RowPartition partition{11, 3};
  std::vector<int64_t> parts;
  for (int64_t row = 0; row < partition.rows; ++row) parts.push_back(partition.part_of(row));
  EXPECT_EQ(parts, (std::vector<int64_t>{1, 2, 0, 2, 0, 1, 1, 2, 0, 0, 1}));
}

TEST(GpuCheckpointLayoutsTest, PartsReachAGpu) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no CUDA device";
  constexpr int64_t kRows = 400000, kColumns = 64;  // parts are larger than what is sent at a time
  std::vector<float> whole(kRows * kColumns);
  for (size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<float>(i % 16777213);
  const std::string folder = temp_path("run");
  CheckpointWriter writer(folder, {});
  const std::vector<CheckpointArray> saved = {
      {"tables", "a", Tensor(whole.data(), DType::kF32, Device::cpu(), {kRows, kColumns})}};
  writer.save(1, saved, "{}");
  ASSERT_TRUE(writer.wait().ok());
  const Device gpu = Device::cuda(0);
  const Stream stream(gpu);
  const ArrayPart part{{kRows, kColumns}, {kRows, 2}, 1, {{8, 40}}};
  const Buffer memory(gpu, part.rows() * 40 * 4, Purpose::kScratch);
  std::vector<CheckpointArray> into = {
      {"tables", "a", Tensor(memory.data(), DType::kF32, gpu, {part.rows(), 40})}};
  into[0].part = part;
  Checkpoint(checkpoint_path(folder, 1)).read(into, &stream);
  std::vector<float> found(static_cast<size_t>(part.rows() * 40));
  copy_bytes(found.data(), Device::cpu(), memory.data(), gpu, found.size() * 4, &stream);
  stream.synchronize();
  int64_t wrong = 0;
  for (int64_t slot = 0; slot < part.rows(); ++slot) {
    const float* row = &whole[static_cast<size_t>(part.partition.row_of(1, slot) * kColumns + 8)];
    const float* in_part = &found[static_cast<size_t>(slot * 40)];
    wrong += !std::equal(in_part, in_part + 40, row);
  }
  EXPECT_EQ(wrong, 0);
}

TEST(CheckpointPartTest, PartsMustMakeUpTheWhole) {
  const auto part = [](int64_t parts, int64_t number, std::vector<ColumnRange> columns) {
    return ArrayPart{{7, 6}, {7, parts}, number, std::move(columns)};
  };
  const auto problem = [](std::vector<ArrayPart> parts) { return cover_problem(parts); };
  EXPECT_EQ(problem({ArrayPart::whole({7, 6})}), "");
  EXPECT_EQ(problem({ArrayPart::whole({7, 0})}), "");
  EXPECT_EQ(problem({ArrayPart::whole({})}), "");
  EXPECT_EQ(problem({part(2, 1, {{0, 6}}), part(2, 0, {{4, 2}}), part(2, 0, {{0, 4}})}), "");
  EXPECT_TRUE(contains(problem({}), "is not there"));
  EXPECT_TRUE(contains(problem({part(2, 1, {{0, 6}})}), "lacks some of 2 parts"));
  EXPECT_TRUE(
      contains(problem({part(2, 1, {{0, 6}}), part(2, 1, {{0, 6}})}), "lacks columns from 0"));
  EXPECT_TRUE(contains(problem({part(1, 0, {{0, 4}}), part(1, 0, {{3, 3}})}), "column 3 twice"));
  EXPECT_TRUE(contains(problem({part(1, 0, {{0, 4}})}), "lacks columns from 4 on"));
  EXPECT_TRUE(contains(problem({part(1, 0, {{0, 7}})}), "more than 6 columns"));
  EXPECT_TRUE(contains(problem({part(1, 0, {{0, 6}, {6, 0}})}), "without columns"));
  EXPECT_TRUE(contains(problem({part(1, 1, {{0, 6}})}), "different wholes"));
  EXPECT_TRUE(contains(problem({part(0, 0, {{0, 6}})}), "lacks some"));
}

}  // namespace
}  // namespace segue::train
