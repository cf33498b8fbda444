// Tables behind a cache against those that lie on the device: the same bits, whatever happens.

#include "sparse/cached_table.h"

#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "ops/rows.h"
#include "sparse/play_test_util.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

using ops::RowOptimizer;
using test::contents;
using test::Ids;
using test::ids_of;
using test::kArtist;
using test::kItem;
using test::Log;
using test::move_over;
using test::plan_of;
using test::play;
using test::play_on_ranks;
using test::Script;

constexpr RowOptimizer kOptimizers[] = {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                        RowOptimizer::kSgd, RowOptimizer::kAdam};

TablesConfig config_of(RowOptimizer optimizer = RowOptimizer::kRowwiseAdagrad) {
  TablesConfig config;
  config.tables = {{"item", 1500}, {"artist", 700}};
  config.dim = 6;
  config.optimizer = optimizer;
  for (TableConfig& table : config.tables) table.cache_share = 0.1;
  return config;
}

class CachedTableTest : public ::testing::Test {
 protected:
  static const CachedTable& cached(const Tables& tables, TableId id = kItem) {
    return dynamic_cast<const CachedTable&>(tables.table(id));
  }
  Tables make(Tier tier, const TablesConfig& config = config_of()) {
    return {config, plan_of(tier), {}, Device::cpu(), DType::kF32, 9};
  }
};

TEST_F(CachedTableTest, TheSameBitsAsOnTheDevice) {
  for (const RowOptimizer optimizer : kOptimizers) {
    TablesConfig config = config_of(optimizer);
    Tables device(config, plan_of(Tier::kDevice), {}, Device::cpu(), DType::kF32, 9);
    const Log log = play(device, {});
    const auto expected = contents(device);
    for (const Tier tier : {Tier::kCached, Tier::kHost, Tier::kFile}) {
      for (const CachePolicy policy : {CachePolicy::kLru, CachePolicy::kLfu}) {
        for (const Script& script :
             {Script{}, Script{.ahead = 1}, Script{.ahead = 2}, Script{.ahead = 1, .stages = false},
              Script{.stages = false}}) {
          for (TableConfig& table : config.tables) table.cache_policy = policy;
          config.spill_folder = base::temp_path("spill");
          Tables tables = make(tier, config);
          EXPECT_EQ(play(tables, script), log);
          EXPECT_EQ(contents(tables), expected);
          const CacheStats stats = *cached(tables).stats()->cache;
          EXPECT_GT(stats.hits, 0);
          EXPECT_GT(stats.misses, 0);
          EXPECT_GT(stats.evicted, 0);
          EXPECT_GT(stats.bytes_in, 0);
          EXPECT_GT(stats.bytes_out, 0);
          EXPECT_LT(stats.rows, 1500);
          EXPECT_LE(stats.stored, 1500);
        }
      }
    }
  }
}

/// Memory that the device cannot use, from the beginning or from some step on, is left to the host.
TEST_F(CachedTableTest, TheSameBitsWhoeverMovesTheRows) {
  Tables device = make(Tier::kDevice);
  const Log log = play(device, {.steps = 30, .drops = false});
  const auto expected = contents(device);
  for (const int64_t direct : {0, 1, 13}) {
    Tables tables = make(Tier::kCached);
    Log seen;
    const auto go_on = [&](const Script& script) {
      const Log more = play(tables, script);
      seen.insert(seen.end(), more.begin(), more.end());
    };
    if (direct > 0) go_on({.steps = direct, .drops = false});
    for (const TableId id : {kItem, kArtist}) {
      dynamic_cast<CachedTable&>(tables.table(id)).set_most_mapped(0);
    }
    go_on({.steps = 30 - direct, .first = 1 + direct, .ahead = 1, .drops = false});
    EXPECT_EQ(seen, log);
    EXPECT_EQ(contents(tables), expected);
    EXPECT_GT(cached(tables).stats()->cache->bytes_out, 0);
  }
}

TEST_F(CachedTableTest, TheSameBitsForAllInitialValues) {
  for (const InitChoice init :
       {InitChoice::kNormal, InitChoice::kTruncatedNormal, InitChoice::kConstant}) {
    TablesConfig config = config_of();
    config.tables[0].init = init;
    config.tables[0].init_bound = 0.5;
    Tables device = make(Tier::kDevice, config), tables = make(Tier::kCached, config);
    EXPECT_EQ(play(tables, {}), play(device, {}));
    EXPECT_EQ(contents(tables), contents(device));
  }
}

TEST_F(CachedTableTest, TheSameBitsOnSeveralRanks) {
  for (const Sharding sharding : {Sharding::kTable, Sharding::kRow, Sharding::kColumn}) {
    for (const int ranks : {2, 3}) {
      for (const RowOptimizer optimizer : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdam}) {
        const auto run = [&](Tier tier, const Script& script) {
          return play_on_ranks(config_of(optimizer), plan_of(tier, ranks, sharding), script);
        };
        const auto device = run(Tier::kDevice, {.steps = 20});
        EXPECT_EQ(run(Tier::kCached, {.steps = 20}), device);
        EXPECT_EQ(run(Tier::kHost, {.steps = 20, .ahead = 1}), device);
      }
    }
  }
}

TEST_F(CachedTableTest, AnyTierGoesOnWithWhatAnotherSaved) {
  constexpr Tier kTiers[] = {Tier::kDevice, Tier::kCached, Tier::kHost, Tier::kFile};
  for (const RowOptimizer optimizer : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kSgd}) {
    const TablesConfig config = config_of(optimizer);
    Tables whole = make(Tier::kDevice, config);
    play(whole, {.steps = 12});
    const Log later = play(whole, {.steps = 8, .first = 13});
    const auto expected = contents(whole);
    for (const bool sparse : {false, true}) {
      for (const Tier saves : kTiers) {
        if (sparse && saves == Tier::kDevice) continue;
        for (const Tier loads : kTiers) {
          Tables first = make(saves, config), second = make(loads, config);
          play(first, {.steps = 12});
          if (sparse) {
            for (const TableId id : {kItem, kArtist}) {
              dynamic_cast<CachedTable&>(first.table(id)).set_dense_bytes(0);
            }
          }
          play(second, {.steps = 3});  // what was there goes
          move_over(first, second);
          EXPECT_EQ(play(second, {.steps = 8, .first = 13}), later);
          EXPECT_EQ(contents(second), expected);
          EXPECT_EQ(play(first, {.steps = 8, .first = 13}), later) << "saving changes nothing";
        }
      }
    }
  }
}

TEST_F(CachedTableTest, OnlyTouchedRowsAreSaved) {
  Tables tables = make(Tier::kCached);
  auto& item = dynamic_cast<CachedTable&>(tables.table(kItem));
  item.set_dense_bytes(0);
  play(tables, {.steps = 3, .ahead = 2});
  std::set<int64_t> touched;
  for (int64_t step = 1; step <= 3; ++step) {
    for (const int64_t id : ids_of(step, 1500, 0, 1)) touched.insert(id);
  }
  // A batch that was begun has touched nothing yet.
  const Ids others = ids_of(77, 1500, 0, 1);
  const Lookup lookup{kItem, "item", others};
  Ticket ticket = tables.begin(std::span(&lookup, 1), Mode::kTraining);
  const std::vector<TableArray> arrays = item.snapshot(Extent::kAll);
  ASSERT_EQ(arrays.size(), 3u);
  EXPECT_EQ(arrays[0].name, "row");
  const std::span<const int64_t> rows = arrays[0].value.span<int64_t>();
  EXPECT_TRUE(std::ranges::equal(rows, touched));
  EXPECT_EQ(arrays[1].value.size(0), static_cast<int64_t>(touched.size()));
  tables.release(ticket, Stream(Device::cpu()));
}

TEST_F(CachedTableTest, ATableFarLargerThanMemory) {
  TablesConfig config = config_of();
  config.tables[0].rows = int64_t{1} << 33;
  config.tables[1].rows = int64_t{1} << (base::kSanitized ? 33 : 36);  // they need addresses
  config.dim = 8;
  config.tables[0].dim = config.tables[1].dim = 6;
  ShardPlan plan = plan_of(Tier::kCached);
  for (TablePlacement& placement : plan.tables) placement.cache_rows = 200;
  Tables tables(config, plan, {}, Device::cpu(), DType::kF32, 9);
  Tables again(config, plan, {}, Device::cpu(), DType::kF32, 9);
  const Log log = play(tables, {.steps = 20});
  EXPECT_EQ(play(again, {.steps = 8, .ahead = 1}), Log(log.begin(), log.begin() + 18));
  move_over(again, tables);
  EXPECT_EQ(play(tables, {.steps = 12, .first = 9}), Log(log.begin() + 18, log.end()));
  EXPECT_LT(cached(tables).bytes(), 1 << 20);
}

TEST_F(CachedTableTest, TheCacheGrowsWhenBatchesInFlightNeedIt) {
  TablesConfig config = config_of();
  for (TableConfig& table : config.tables) table.cache_share = 0.001;
  Tables device = make(Tier::kDevice, config), tables = make(Tier::kCached, config);
  EXPECT_EQ(play(tables, {.ahead = 3}), play(device, {}));
  EXPECT_GT(cached(tables).stats()->cache->capacity, 100);
}

TEST_F(CachedTableTest, AnotherTableOfACheckpointIsAnError) {
  Tables from = make(Tier::kCached);
  play(from, {.steps = 2});
  for (const auto change : {0, 1, 2}) {
    TablesConfig config = config_of();
    if (change == 0) config.tables[0].rows = 1400;
    if (change == 1) config.dim = 8;
    if (change == 2) config.optimizer = RowOptimizer::kAdam;
    Tables to = make(Tier::kCached, config);
    const std::string message = test::message_of(ErrorCode::kConfig, [&] { move_over(from, to); });
    EXPECT_TRUE(test::contains(message, "item") && test::contains(message, "resume")) << message;
  }
}

TEST_F(CachedTableTest, WhatCannotBeIsRefused) {
  TableConfig table = config_of().tables[0];
  table.placement = TierChoice::kCached;
  EXPECT_NO_THROW(table.validate(6));
  table.sharding = Sharding::kReplicated;
  EXPECT_THROW(table.validate(6), Error);
  table.sharding = Sharding::kAuto;
  table.cache_share = 1.5;
  EXPECT_THROW(table.validate(6), Error);
}

}  // namespace
}  // namespace segue::sparse
