// Dynamic tables behind a cache against those that lie on the device: the same ids, stamps and
// bits, whatever happens.

#include "sparse/cached_dynamic_table.h"

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sparse/dynamic_table.h"
#include "sparse/play_test_util.h"

namespace segue::sparse {
namespace {

using test::contents;
using test::Ids;
using test::kArtist;
using test::kItem;
using test::kPolicies;
using test::Log;
using test::move_over;
using test::plan_of;
using test::play;
using test::play_on_ranks;
using test::Policy;
using test::Script;
using Saved = test::SavedInMemory;

constexpr Tier kElsewhere[] = {Tier::kCached, Tier::kHost, Tier::kFile};

/// Tables that grow, and then forget, with a cache of a fraction of the rows.
TablesConfig config_of(const Policy& policy = kPolicies[0]) {
  TablesConfig config;
  config.dim = 6;
  config.optimizer = ops::RowOptimizer::kAdam;
  config.spill_folder = base::temp_path("spill");
  config.tables = {{"item", 5000}, {"artist", 2000}};
  for (TableConfig& table : config.tables) {
    table.kind = TableKind::kDynamic;
    table.max_rows = table.name == "item" ? 1024 : 512;
    table.start_rows = 128;
    table.init_bound = 0.5;
    table.cache_share = 0.1;
    table.evict = policy.evict;
    table.admit_after = policy.admit_after;
    table.admit_share = policy.admit_share;
    table.ttl_seconds = policy.ttl_seconds;
  }
  return config;
}

Tables make(Tier tier, const TablesConfig& config = config_of()) {
  return {config, plan_of(tier), {}, Device::cpu(), DType::kF32, 9};
}

void expect_same_counts(const Tables& a, const Tables& b) {
  for (const TableId id : {kItem, kArtist}) {
    const TableStats x = *a.table(id).stats(), y = *b.table(id).stats();
    EXPECT_EQ(x.rows, y.rows);
    EXPECT_EQ(x.capacity, y.capacity);
    EXPECT_EQ(x.candidates, y.candidates);
    EXPECT_EQ(x.inserted, y.inserted);
    EXPECT_EQ(x.evicted, y.evicted);
    EXPECT_EQ(x.expired, y.expired);
    EXPECT_EQ(x.refused, y.refused);
    EXPECT_EQ(x.growths, y.growths);
  }
}

TEST(CachedDynamicTableTest, TheSameBitsAsOnTheDevice) {
  for (const Policy& policy : std::span(kPolicies).last(base::kSanitized ? 2 : 5)) {
    SCOPED_TRACE(policy.name);
    TablesConfig config = config_of(policy);
    Tables device = make(Tier::kDevice, config);
    const Log log = play(device, {});
    const auto expected = contents(device);
    EXPECT_GT(device.table(kArtist).stats()->growths, 0);
    EXPECT_GT(device.table(kArtist).stats()->evicted + device.table(kArtist).stats()->expired, 0);
    for (const Tier tier : kElsewhere) {
      for (TableConfig& table : config.tables) {
        table.cache_policy = tier == Tier::kHost ? CachePolicy::kLfu : CachePolicy::kLru;
      }
      for (const Script& script : {Script{.ahead = 1}, Script{.ahead = 3},
                                   Script{.ahead = 1, .stages = false}, Script{.stages = false}}) {
        Tables tables = make(tier, config);
        EXPECT_EQ(play(tables, script), log);
        EXPECT_EQ(contents(tables), expected);
        expect_same_counts(tables, device);
        const TableStats stats = *tables.table(kItem).stats();
        EXPECT_GT(stats.cache->hits, 0);
        EXPECT_GT(stats.cache->misses, 0);
        EXPECT_GT(stats.cache->evicted, 0);
        EXPECT_GT(stats.cache->bytes_in, 0);
        EXPECT_GT(stats.cache->bytes_out, 0);
        EXPECT_GE(stats.cache->stored, stats.rows);
        EXPECT_LE(stats.cache->stored, stats.capacity);
      }
    }
  }
}

/// Memory that the device cannot use, from the beginning or from some step on, is left to the host.
TEST(CachedDynamicTableTest, TheSameBitsWhoeverMovesTheRows) {
  Tables device = make(Tier::kDevice);
  const Log log = play(device, {.drops = false});
  for (const int64_t direct : {1, 13}) {
    Tables tables = make(Tier::kCached);
    Log seen = play(tables, {.steps = direct, .drops = false});
    for (const TableId id : {kItem, kArtist}) {
      dynamic_cast<CachedDynamicTable&>(tables.table(id)).set_most_mapped(0);
    }
    const Log more =
        play(tables, {.steps = 40 - direct, .first = 1 + direct, .ahead = 2, .drops = false});
    seen.insert(seen.end(), more.begin(), more.end());
    EXPECT_EQ(seen, log);
    EXPECT_EQ(contents(tables), contents(device));
  }
}

TEST(CachedDynamicTableTest, TheSameBitsForAllInitialValues) {
  for (const InitChoice init :
       {InitChoice::kNormal, InitChoice::kTruncatedNormal, InitChoice::kConstant}) {
    TablesConfig config = config_of();
    for (TableConfig& table : config.tables) table.init = init;
    Tables device = make(Tier::kDevice, config), tables = make(Tier::kCached, config);
    EXPECT_EQ(play(tables, {.ahead = 1}), play(device, {}));
    EXPECT_EQ(contents(tables), contents(device));
  }
}

TEST(CachedDynamicTableTest, TheSameBitsOnSeveralRanks) {
  for (const Sharding sharding : {Sharding::kTable, Sharding::kRow}) {
    for (const int ranks : {2, 3}) {
      for (const Policy& policy : {kPolicies[0], kPolicies[3], kPolicies[5]}) {
        const auto run = [&](Tier tier, const Script& script) {
          return play_on_ranks(config_of(policy), plan_of(tier, ranks, sharding), script);
        };
        const auto device = run(Tier::kDevice, {.steps = 30});
        EXPECT_EQ(run(Tier::kCached, {.steps = 30}), device);
        EXPECT_EQ(run(Tier::kHost, {.steps = 30, .ahead = 2}), device);
      }
    }
  }
}

TEST(CachedDynamicTableTest, AnyTierGoesOnWithWhatAnotherSaved) {
  constexpr Tier kTiers[] = {Tier::kDevice, Tier::kCached, Tier::kHost, Tier::kFile};
  for (const Policy& policy : {kPolicies[4], kPolicies[5]}) {
    SCOPED_TRACE(policy.name);
    const TablesConfig config = config_of(policy);
    Tables whole = make(Tier::kDevice, config);
    play(whole, {.steps = 25});
    const Log later = play(whole, {.steps = 15, .first = 26});
    const auto expected = contents(whole);
    for (const Tier saves : kTiers) {
      for (const Tier loads : kTiers) {
        Tables first = make(saves, config), second = make(loads, config);
        play(first, {.steps = 25, .ahead = 1});
        play(second, {.steps = 3});  // what was there goes
        move_over(first, second);
        EXPECT_EQ(play(second, {.steps = 15, .first = 26, .ahead = 1}), later);
        EXPECT_EQ(contents(second), expected);
        EXPECT_EQ(play(first, {.steps = 15, .first = 26}), later) << "saving changes nothing";
      }
    }
  }
}

/// Of changes: the bits of those that a table on the device shows.
TEST(CachedDynamicTableTest, TheSameIncrements) {
  Tables device = make(Tier::kDevice), tables = make(Tier::kCached);
  int64_t first = 1;
  for (const int64_t steps : {12, 6, 9}) {
    for (Tables* each : {&device, &tables}) {
      play(*each, {.steps = steps, .first = first, .ahead = each == &tables ? 2 : 0});
    }
    for (const TableId id : {kItem, kArtist}) {
      const Extent extent = first == 1 ? Extent::kAll : Extent::kChanges;
      const Saved expected(device.table(id).snapshot(extent));
      const Saved found(tables.table(id).snapshot(extent));
      ASSERT_EQ(found.arrays.size(), expected.arrays.size());
      for (const auto& [name, array] : expected.arrays) {
        EXPECT_EQ(found.arrays.at(name).shape, array.shape) << name;
        EXPECT_EQ(found.arrays.at(name).bytes, array.bytes) << name;
      }
      if (extent == Extent::kChanges) {
        EXPECT_GT(expected.arrays.at("removed").shape[0], 0);
      }
    }
    device.mark_saved();
    tables.mark_saved();
    first += steps;
  }
}

/// One table of a single bucket, and batches that can be held back.
class ForgettingTest : public ::testing::Test {
 protected:
  static TablesConfig small_config() {
    TablesConfig config = config_of();
    config.tables.resize(1);
    config.tables[0].max_rows = config.tables[0].start_rows = 128;
    return config;
  }
  static Tables make_small(Tier tier) {
    ShardPlan plan = ShardPlan::single(1);
    plan.tables[0].tier = tier;
    return {small_config(), plan, {}, Device::cpu(), DType::kF32, 9};
  }
  static Ticket begin(Tables& tables, int64_t first, int64_t count, Mode mode = Mode::kTraining) {
    Ids ids;
    for (int64_t i = 0; i < count; ++i) ids.push_back(first + i);
    const Lookup lookup{kItem, "item", ids};
    Ticket ticket = tables.begin(std::span(&lookup, 1), mode);
    tables.stage(ticket, Stream(Device::cpu()));
    return ticket;
  }
  /// Rows before they are trained.
  static std::vector<std::byte> use(Tables& tables, Ticket& ticket, int64_t step) {
    test::Bench bench;
    const Tensor rows = tables.rows(bench.exec, ticket, kItem);
    const std::vector<std::byte> read = test::bytes_of(rows);
    if (ticket.mode == Mode::kTraining) {
      tables.apply(bench.exec, ticket, kItem, rows, 0.1, step);
    }
    tables.release(ticket, Stream(Device::cpu()));
    return read;
  }
};

/// A batch is begun whose rows are known; before it is used they are forgotten, and their numbers
/// belong to other ids. Then the same with ids that come back at once.
TEST_F(ForgettingTest, NumbersOfRowsThatWereLookedAheadGoToOthers) {
  for (const Tier tier : kElsewhere) {
    Log logs[2];
    Tables plain = make_small(Tier::kDevice), tables = make_small(tier);
    for (Tables* each : {&plain, &tables}) {
      Log& log = logs[each == &tables ? 1 : 0];
      int64_t step = 0;
      const auto train = [&](int64_t first, int64_t count) {
        Ticket ticket = begin(*each, first, count);
        log.push_back(use(*each, ticket, ++step));
      };
      train(0, 100);
      train(20, 60);
      Ticket late = begin(*each, 0, 30);  // rows 0 ... 29 are pinned
      Ticket asked = begin(*each, 10, 100, Mode::kEvaluation);
      Ticket never = begin(*each, 0, 100);
      for (int64_t i = 0; i < 6; ++i) train(1000 + 100 * i, 90);
      EXPECT_GT(each->table(kItem).stats()->evicted, 100);
      log.push_back(use(*each, late, ++step));
      log.push_back(use(*each, asked, 0));
      train(0, 100);
      for (int64_t i = 0; i < 6; ++i) train(5000 + 100 * i, 90);
      train(0, 100);
      never = {};
    }
    EXPECT_EQ(logs[0], logs[1]) << static_cast<int>(tier);
  }
}

/// Rows that a batch began and did not train have their initial values, not what their numbers had
/// before.
TEST_F(ForgettingTest, RowsThatWereBegunAndNotTrained) {
  Log logs[2];
  Tables plain = make_small(Tier::kDevice), tables = make_small(Tier::kCached);
  for (Tables* each : {&plain, &tables}) {
    const auto train = [&](int64_t first, int64_t count, int64_t step) {
      Ticket ticket = begin(*each, first, count);
      use(*each, ticket, step);
    };
    train(0, 60, 1);
    train(100, 60, 2);
    test::Bench bench;
    Ticket left_out = begin(*each, 1000, 100);
    (void)each->rows(bench.exec, left_out, kItem);
    const Ids none;
    const Lookup lookup{kItem, "item", none};
    left_out = each->begin(std::span(&lookup, 1), Mode::kTraining, std::move(left_out));
    train(100, 20, 3);
    train(120, 20, 4);
    Ticket asked = begin(*each, 1000, 100, Mode::kEvaluation);
    Log& log = logs[each == &tables ? 1 : 0];
    log.push_back(use(*each, asked, 0));
    log.push_back(Saved(each->table(kItem).snapshot(Extent::kAll)).arrays.at("weight").bytes);
  }
  EXPECT_GT(tables.table(kItem).stats()->evicted, 0);
  EXPECT_GT(tables.table(kItem).stats()->cache->evicted, 0);
  EXPECT_EQ(logs[0], logs[1]);
}

/// The index has taken ids that the cache has no room for: from then on nothing is read or saved.
TEST_F(ForgettingTest, ACacheThatCannotGrowStopsTheTable) {
  Tables tables = make_small(Tier::kCached);
  auto& table = dynamic_cast<CachedDynamicTable&>(tables.table(kItem));
  Ticket first = begin(tables, 0, 20);
  use(tables, first, 1);
  const Saved saved(table.snapshot(Extent::kAll));
  const auto message = [](auto action) {
    return test::message_of(ErrorCode::kOutOfMemory, action);
  };
  table.set_most_slots(32);
  Ticket large = begin(tables, 100, 90);
  EXPECT_TRUE(test::contains(message([&] { use(tables, large, 2); }), "Raise its `cache_share`"));
  table.set_most_slots(1000);
  const std::string later = "could not hold a batch; resume from the last checkpoint";
  EXPECT_TRUE(test::contains(message([&] { (void)table.snapshot(Extent::kAll); }), later));
  EXPECT_TRUE(test::contains(message([&] { begin(tables, 0, 20); }), later));
  tables.load([&](const std::string&) { return std::make_unique<Saved>(saved); });
  Ticket again = begin(tables, 100, 90);
  use(tables, again, 2);
  EXPECT_EQ(table.stats()->rows, 110);
}

/// Rows of a batch that goes without having been used can leave the cache.
TEST_F(ForgettingTest, TicketsThatGoGiveBackWhatTheyHold) {
  Tables tables = make_small(Tier::kCached);
  auto& table = dynamic_cast<CachedDynamicTable&>(tables.table(kItem));
  for (int64_t i = 0; i < 4; ++i) {
    Ticket ticket = begin(tables, 30 * i, 30);
    use(tables, ticket, i + 1);
  }
  const int64_t slots = table.stats()->cache->capacity;
  for (int64_t i = 0; i < 40; ++i) {
    Ticket dropped = begin(tables, 30 * (i % 4), 30);
    Ticket moved = std::move(dropped);
    if (i % 2 == 0) moved = begin(tables, 30 * ((i + 1) % 4), 30);
  }
  EXPECT_LE(table.stats()->cache->capacity, slots + 60);  // two were held at a time
  Ticket left;
  {
    Tables others = make_small(Tier::kCached);
    left = begin(others, 0, 30);
  }
}

TEST_F(ForgettingTest, ABatchThatIsNeverUsedLeavesNoTrace) {
  Tables tables = make_small(Tier::kCached);
  Ticket first = begin(tables, 0, 50);
  use(tables, first, 1);
  const TableStats before = *tables.table(kItem).stats();
  Ticket unused = begin(tables, 0, 90);
  Ticket evaluation = begin(tables, 0, 120, Mode::kEvaluation);
  use(tables, evaluation, 0);
  const TableStats after = *tables.table(kItem).stats();
  EXPECT_EQ(after.rows, 50);
  EXPECT_EQ(after.inserted, before.inserted);
  EXPECT_EQ(after.cache->stored, before.cache->stored);
  EXPECT_EQ(after.cache->bytes_in, 0) << "all of it is in the cache";
}

/// What was looked ahead for is counted once.
TEST_F(ForgettingTest, AHitIsAHitOnce) {
  Tables tables = make_small(Tier::kCached);
  Ticket first = begin(tables, 0, 50), second = begin(tables, 0, 50);
  use(tables, first, 1);
  EXPECT_EQ(tables.table(kItem).stats()->cache->misses, 50);
  use(tables, second, 2);
  EXPECT_EQ(tables.table(kItem).stats()->cache->hits, 50);
  Ticket third = begin(tables, 0, 50);
  EXPECT_EQ(tables.table(kItem).stats()->cache->hits, 100);
  use(tables, third, 3);
  EXPECT_EQ(tables.table(kItem).stats()->cache->hits, 100);
  EXPECT_EQ(tables.table(kItem).stats()->cache->misses, 50);
}

TEST(CachedDynamicTableTest, TakesOverAStaticTable) {
  TablesConfig fixed = config_of(), dynamic = config_of();
  for (size_t t = 0; t < 2; ++t) {
    fixed.tables[t] = {.name = fixed.tables[t].name, .rows = 300, .init_bound = 0.5};
    dynamic.tables[t].max_rows = 1024;
  }
  Tables from = make(Tier::kCached, fixed), to = make(Tier::kCached, dynamic);
  play(from, {.steps = 4});
  move_over(from, to);
  EXPECT_EQ(to.table(kItem).stats()->rows, 300);
  EXPECT_EQ(to.table(kItem).stats()->cache->stored, 300);
}

}  // namespace
}  // namespace segue::sparse
