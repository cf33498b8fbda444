// Tables behind a cache on a GPU: the bits of those that lie in its memory, although everything is
// queued and nothing waits.

#include <cstring>
#include <deque>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "ops/gpu_test_util.h"
#include "sparse/cached_table.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

using ops::RowOptimizer;
using ops::test::ModeBed;
using test::Ids;

class GpuCachedTableTest : public ops::test::GpuTest {};

constexpr TableId kItem{0};
constexpr int64_t kSteps = 50;

TablesConfig config_of(int64_t dim, RowOptimizer optimizer, int64_t rows) {
  TablesConfig config;
  config.tables = {{"item", rows}};
  config.tables[0].cache_share = 0.1;
  config.dim = dim;
  config.optimizer = optimizer;
  config.spill_folder = base::temp_path("spill");
  return config;
}

Ids ids_of(int64_t step, int64_t rows, int64_t count) {
  std::mt19937_64 random(static_cast<uint64_t>(step));
  Ids ids;
  for (int64_t i = 0; i < count; ++i) {
    const double u = static_cast<double>(random() >> 11) * 0x1p-53;
    ids.push_back(static_cast<int64_t>(u * u * u * static_cast<double>(rows)));
  }
  return ids;
}

/// The rows themselves are the gradients: whoever reads or updates an old row changes all that
/// comes. The host runs as far ahead as it can.
void play(ModeBed& bed, Tables& tables, int64_t ahead, int64_t ids_per_step) {
  const Stream copies(Device::cuda());
  const int64_t rows = tables.config().tables[0].rows;
  const auto begin = [&](int64_t step, Mode mode, Ticket old = {}) {
    const Ids ids = ids_of(step, rows, ids_per_step);
    const Ids scores = test::scores_of(ids.size(), step);
    const Lookup lookup{.table = kItem, .feature = "item", .ids = ids, .scores = scores};
    Ticket ticket = tables.begin(std::span(&lookup, 1), mode, std::move(old));
    tables.stage(ticket, copies);
    return ticket;
  };
  std::deque<Ticket> prepared, done;
  int64_t next = 1;
  for (int64_t step = 1; step <= kSteps; ++step) {
    for (; next <= std::min(kSteps, step + ahead); ++next) {
      Ticket dropped;
      if (next % 9 == 0) dropped = begin(next + 1000, Mode::kTraining);
      prepared.push_back(begin(next, Mode::kTraining, std::move(dropped)));
    }
    const Arena::Mark mark(*bed.exec.arena);
    if (step % 6 == 0) {
      Ticket asked = begin(step + 5000, Mode::kEvaluation);
      tables.rows(bed.exec, asked, kItem);
      tables.release(asked, *bed.exec.stream);
      done.push_back(std::move(asked));
    }
    Ticket ticket = std::move(prepared.front());
    prepared.pop_front();
    const Tensor gradients = tables.rows(bed.exec, ticket, kItem);
    tables.apply(bed.exec, ticket, kItem, gradients, 0.05, step);
    tables.release(ticket, *bed.exec.stream);
    done.push_back(std::move(ticket));  // their slots may still be on the way to the device
  }
  bed.exec.stream->synchronize();
}

using Contents = std::map<std::string, std::vector<std::byte>>;

Contents contents(Tables& tables, Extent extent = Extent::kAll) {
  Contents all;
  const test::SavedInMemory saved(tables.table(kItem).snapshot(extent));
  for (const auto& [name, array] : saved.arrays) all[name] = array.bytes;
  return all;
}

TEST_F(GpuCachedTableTest, TheSameBitsAsInDeviceMemory) {
  for (const RowOptimizer optimizer : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                       RowOptimizer::kSgd, RowOptimizer::kAdam}) {
    for (const int64_t dim : {6, 64}) {
      const TablesConfig config = config_of(dim, optimizer, 20'000);
      ModeBed bed(Device::cuda(), Precision::kF32);
      Tables device(config, Device::cuda(), DType::kF32, 9);
      play(bed, device, 0, 3000);
      const auto expected = contents(device);
      for (const Tier tier : {Tier::kCached, Tier::kHost, Tier::kFile}) {
        for (const int64_t ahead : {0, 1, 2}) {
          ShardPlan plan = ShardPlan::single(1);
          plan.tables[0].tier = tier;
          Tables tables(config, plan, {}, Device::cuda(), DType::kF32, 9);
          play(bed, tables, ahead, 3000);
          EXPECT_TRUE(contents(tables) == expected)
              << "tier " << static_cast<int>(tier) << ", ahead " << ahead << ", dim " << dim;
          EXPECT_GT(tables.table(kItem).stats()->cache->bytes_out, 0);
        }
      }
    }
  }
}

/// Tables that grow and forget, in all ways, and what was saved of them in between.
TEST_F(GpuCachedTableTest, DynamicTablesHaveTheSameBits) {
  for (const Evict evict : {Evict::kLru, Evict::kLfu, Evict::kScore}) {
    for (const int64_t dim : {6, 64}) {
      TablesConfig config = config_of(dim, RowOptimizer::kAdam, 20'000);
      TableConfig& table = config.tables[0];
      table.kind = TableKind::kDynamic;
      table.max_rows = 4096;
      table.start_rows = 512;
      table.init_bound = 0.1;
      table.evict = evict;
      table.admit_after = evict == Evict::kLfu ? 2 : 1;
      const auto run = [&](Tier tier, int64_t ahead) {
        ShardPlan plan = ShardPlan::single(1);
        plan.tables[0].tier = tier;
        ModeBed bed(Device::cuda(), Precision::kF32);
        Tables tables(config, plan, {}, Device::cuda(), DType::kF32, 9);
        std::vector<Contents> all;
        play(bed, tables, ahead, 3000);
        all.push_back(contents(tables));
        tables.mark_saved();
        play(bed, tables, ahead, 500);
        all.push_back(contents(tables, Extent::kChanges));
        const test::SavedInMemory saved(tables.table(kItem).snapshot(Extent::kAll));
        tables.load(
            [&](const std::string&) { return std::make_unique<test::SavedInMemory>(saved); });
        play(bed, tables, ahead, 1000);
        all.push_back(contents(tables));
        const TableStats stats = *tables.table(kItem).stats();
        EXPECT_GT(stats.evicted, 0);
        if (tier != Tier::kDevice) {
          EXPECT_GT(stats.cache->bytes_out, 0);
        }
        return all;
      };
      const std::vector<Contents> expected = run(Tier::kDevice, 0);
      for (const Tier tier : {Tier::kCached, Tier::kHost, Tier::kFile}) {
        for (const int64_t ahead : {0, 1, 3}) {
          EXPECT_TRUE(run(tier, ahead) == expected)
              << "tier " << static_cast<int>(tier) << ", ahead " << ahead << ", dim " << dim;
        }
      }
    }
  }
}

/// Batches of many chunks, of which most rows come and go.
TEST_F(GpuCachedTableTest, LargeBatches) {
  const TablesConfig config = config_of(256, RowOptimizer::kRowwiseAdagrad, 400'000);
  ModeBed bed(Device::cuda(), Precision::kF32);
  Tables device(config, Device::cuda(), DType::kF32, 9);
  play(bed, device, 0, 60'000);
  ShardPlan plan = ShardPlan::single(1);
  plan.tables[0].tier = Tier::kCached;
  Tables tables(config, plan, {}, Device::cuda(), DType::kF32, 9);
  play(bed, tables, 1, 60'000);
  EXPECT_TRUE(contents(tables) == contents(device));
}

/// By a kernel, by host threads, and by both where memory that was mapped is not enough.
TEST_F(GpuCachedTableTest, TheSameBitsWhoeverMovesTheRows) {
  const TablesConfig config = config_of(256, RowOptimizer::kAdagrad, 200'000);
  ModeBed bed(Device::cuda(), Precision::kF32);
  Tables device(config, Device::cuda(), DType::kF32, 9);
  play(bed, device, 0, 20'000);
  const auto expected = contents(device);
  constexpr int64_t kAll = std::numeric_limits<int64_t>::max();
  for (const int64_t most_mapped : {int64_t{0}, int64_t{128} << 20, kAll}) {
    ShardPlan plan = ShardPlan::single(1);
    plan.tables[0].tier = Tier::kCached;
    Tables tables(config, plan, {}, Device::cuda(), DType::kF32, 9);
    dynamic_cast<CachedTable&>(tables.table(kItem)).set_most_mapped(most_mapped);
    play(bed, tables, 2, 20'000);
    EXPECT_TRUE(contents(tables) == expected) << "mapped: " << most_mapped;
    EXPECT_GT(tables.table(kItem).stats()->cache->bytes_out, 0);
  }
}

TEST_F(GpuCachedTableTest, NormalInitialValuesAreThoseOfTheDevice) {
  for (const InitChoice init : {InitChoice::kNormal, InitChoice::kTruncatedNormal}) {
    TablesConfig config = config_of(32, RowOptimizer::kSgd, 20'000);
    config.tables[0].init = init;
    ModeBed bed(Device::cuda(), Precision::kF32);
    Tables device(config, Device::cuda(), DType::kF32, 9);
    ShardPlan plan = ShardPlan::single(1);
    plan.tables[0].tier = Tier::kCached;
    Tables tables(config, plan, {}, Device::cuda(), DType::kF32, 9);
    play(bed, tables, 1, 2000);
    play(bed, device, 0, 2000);
    EXPECT_TRUE(contents(tables) == contents(device));
  }
}

}  // namespace
}  // namespace segue::sparse
