// Dynamic tables: against static ones with the same first rows, on several ranks, saved and loaded.

#include "sparse/dynamic_table.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "comm/world.h"
#include "ops/rows.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

using test::Bench;
using test::Ids;
using test::kPolicies;
using test::Policy;
using test::view;

constexpr double kTimeout = 30;
constexpr int64_t kDim = 6;
constexpr TableId kTable{0};

TableConfig dynamic_table(int64_t max_rows = 2048) {
  TableConfig table;
  table.name = "item";
  table.kind = TableKind::kDynamic;
  table.max_rows = max_rows;
  table.init_bound = 0.5;
  return table;
}

TablesConfig one_table(const TableConfig& table,
                       ops::RowOptimizer optimizer = ops::RowOptimizer::kRowwiseAdagrad) {
  TablesConfig config;
  config.tables = {table};
  config.dim = kDim;
  config.optimizer = optimizer;
  return config;
}

/// Ids of step `step`, of all ranks together the same, whatever their number.
Ids ids_of(int64_t step, int rank, int ranks, int64_t vocabulary) {
  std::mt19937_64 random(static_cast<uint64_t>(step));
  Ids mine;
  for (int i = 0; i < 240; ++i) {
    const auto skewed = static_cast<int64_t>(
        std::pow(static_cast<double>(vocabulary), static_cast<double>(random() >> 11) * 0x1p-53));
    if (i % ranks == rank) mine.push_back(skewed * 1'000'003 - 7);
  }
  return mine;
}

/// One step: every use of an id brings a gradient that follows from id and step.
void train(Tables& tables, const Ids& ids, int64_t step, int64_t time = 0) {
  Bench bench;
  const Ids scores = test::scores_of(ids.size(), step, tables.rank(), tables.plan().ranks);
  const Lookup lookup{.table = kTable, .feature = "item", .ids = ids, .scores = scores};
  Ticket ticket = tables.begin(std::span(&lookup, 1), Mode::kTraining, {}, time);
  (void)tables.rows(bench.exec, ticket, kTable);
  const Tensor each = bench.arena.tensor(DType::kF32, {std::ssize(ids), kDim});
  for (int64_t i = 0; i < std::ssize(ids); ++i) {
    for (int64_t c = 0; c < kDim; ++c) {
      each.row<float>(i)[c] =
          0.01f *
          static_cast<float>((std::abs(ids[static_cast<size_t>(i)] % 1000) + c + step) % 7 + 1);
    }
  }
  const Tensor sums = bench.arena.tensor(DType::kF32, {ticket.distinct_rows(kTable), kDim});
  zero(sums);
  ops::segment_sum(bench.exec, each, view(ticket.inverse(0)), sums);
  tables.apply(bench.exec, ticket, kTable, sums, 0.1, step);
}

std::vector<float> read_rows(Tables& tables, const Ids& ids, Mode mode = Mode::kEvaluation) {
  Bench bench;
  const Lookup lookup{kTable, "item", ids};
  Ticket ticket = tables.begin(std::span(&lookup, 1), mode);
  const Tensor rows = tables.rows(bench.exec, ticket, kTable);
  std::vector<float> values;
  for (const int32_t place : ticket.inverse(0)) {
    values.insert(values.end(), rows.row<float>(place), rows.row<float>(place) + kDim);
  }
  return values;
}

using Saved = test::SavedInMemory;

void load(Tables& tables, const Saved& saved) {
  tables.load([&](const std::string&) { return std::make_unique<Saved>(saved); });
}

/// What a table knows of an id: stamps, weights and state, whatever its row is.
using Contents = std::map<int64_t, std::vector<double>>;

Contents contents_of(const Saved& saved) {
  Contents all;
  const auto longs = [&](const char* name) {
    const std::vector<std::byte>& bytes = saved.arrays.at(name).bytes;
    const auto* at = reinterpret_cast<const int64_t*>(bytes.data());
    return std::vector<int64_t>(at, at + bytes.size() / sizeof(int64_t));
  };
  const std::vector<int64_t> keys = longs("key"), stamps = longs("stamp"),
                             candidates = longs("candidate");
  for (size_t r = 0; r < keys.size(); ++r) {
    std::vector<double>& row = all[id_of_key(keys[r])];
    row.assign(stamps.begin() + static_cast<std::ptrdiff_t>(3 * r),
               stamps.begin() + static_cast<std::ptrdiff_t>(3 * r + 3));
    for (const char* name : {"weight", "state"}) {
      const Saved::Array& array = saved.arrays.at(name);
      const auto columns = static_cast<size_t>(array.shape[1]);
      const auto* at = reinterpret_cast<const float*>(array.bytes.data()) + r * columns;
      row.insert(row.end(), at, at + columns);
    }
  }
  for (size_t c = 0; c < candidates.size(); c += 4) {
    all[id_of_key(candidates[c])] = {-1, static_cast<double>(candidates[c + 1]),
                                     static_cast<double>(candidates[c + 2]),
                                     static_cast<double>(candidates[c + 3])};
  }
  return all;
}

/// Trains steps [first, last] on so many ranks, from `from` on; what is saved then.
Saved run(const TablesConfig& config, int ranks, int64_t first, int64_t last,
          const Saved* from = nullptr, int64_t vocabulary = 3000) {
  std::mutex mutex;
  std::vector<std::vector<TableArray>> parts(static_cast<size_t>(ranks));
  Saved saved;
  const auto steps = [&](Tables& tables, int rank) {
    if (from != nullptr) load(tables, *from);
    for (int64_t step = first; step <= last; ++step) {
      train(tables, ids_of(step, rank, ranks, vocabulary), step, 100 * step);
      read_rows(tables, {5, -1, step});  // evaluation leaves no trace
    }
  };
  if (ranks == 1) {
    Tables tables(config, Device::cpu(), DType::kF32, 5);
    steps(tables, 0);
    for (const TableArray& array : tables.table(kTable).snapshot(Extent::kAll)) saved.add(array);
    return saved;
  }
  comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
    ShardPlan plan;
    plan.ranks = ranks;
    TablePlacement placement;
    placement.sharding = Sharding::kRow;
    placement.ranks.clear();
    for (int r = 0; r < ranks; ++r) placement.ranks.push_back(r);
    plan.tables = {placement};
    const auto ids = world.open("ids"), rows = world.open("rows");
    Tables tables(config, plan, {ids.get(), rows.get()}, Device::cpu(), DType::kF32, 5);
    steps(tables, world.rank());
    for (int r = 0; r < ranks; ++r) {  // in the order of ranks
      if (r == world.rank()) {
        const std::lock_guard lock(mutex);
        for (const TableArray& array : tables.table(kTable).snapshot(Extent::kAll))
          saved.add(array);
      }
      (void)ids->barrier();
    }
  });
  return saved;
}

void expect_same(const Contents& a, const Contents& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  auto at = b.begin();
  for (const auto& [id, row] : a) {
    ASSERT_EQ(id, at->first);
    ASSERT_EQ(row.size(), at->second.size());
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_NEAR(row[i], at->second[i], i < 3 ? 0 : tolerance) << id << " " << i;
    }
    ++at;
  }
}

TEST(DynamicTableTest, LikeAStaticTableWithTheSameFirstRows) {
  using ops::RowOptimizer;
  for (const RowOptimizer optimizer : {RowOptimizer::kRowwiseAdagrad, RowOptimizer::kAdagrad,
                                       RowOptimizer::kSgd, RowOptimizer::kAdam}) {
    TableConfig fixed{.name = "item", .rows = 300, .init_bound = 0.5};
    Tables a(one_table(fixed, optimizer), Device::cpu(), DType::kF32, 5);
    Tables b(one_table(dynamic_table(), optimizer), Device::cpu(), DType::kF32, 5);
    std::mt19937_64 random(3);
    for (int64_t step = 1; step <= 5; ++step) {
      Ids ids;
      for (int i = 0; i < 100; ++i) ids.push_back(static_cast<int64_t>(random() % 300));
      train(a, ids, step);
      train(b, ids, step);
    }
    Ids all(300);
    for (int64_t i = 0; i < 300; ++i) all[static_cast<size_t>(i)] = i;
    EXPECT_EQ(read_rows(a, all), read_rows(b, all));
  }
}

TEST(DynamicTableTest, EveryIdHasARowOfItsOwn) {
  Tables tables(one_table(dynamic_table()), Device::cpu(), DType::kF32, 5);
  const Ids ids = {
      0, -1, 1, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max(), -2, -4};
  const std::vector<float> first = read_rows(tables, ids);
  EXPECT_EQ(tables.table(kTable).stats()->rows, 0);
  train(tables, ids, 1);
  EXPECT_EQ(tables.table(kTable).stats()->rows, std::ssize(ids));
  const std::vector<float> after = read_rows(tables, ids);
  std::set<float> different;
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_NE(first[i], after[i]);
    EXPECT_LE(std::abs(first[i]), 0.5f);
    different.insert(first[i]);
  }
  EXPECT_EQ(different.size(), first.size());
}

TEST(DynamicTableTest, InitialRowsOfEveryKind) {
  for (const InitChoice init : {InitChoice::kUniform, InitChoice::kNormal,
                                InitChoice::kTruncatedNormal, InitChoice::kConstant}) {
    TableConfig table = dynamic_table();
    table.init = init;
    TableConfig fixed{.name = "item", .rows = 2000, .init_bound = 0.5};
    fixed.init = init;
    Tables a(one_table(table), Device::cpu(), DType::kF32, 5);
    Tables b(one_table(fixed), Device::cpu(), DType::kF32, 5);
    Ids ids(2000);
    for (int64_t i = 0; i < 2000; ++i) ids[static_cast<size_t>(i)] = i;
    const std::vector<float> rows = read_rows(a, ids);
    EXPECT_EQ(rows, read_rows(b, ids));
    double sum = 0, squares = 0, largest = 0;
    for (const float x : rows) {
      sum += x;
      squares += static_cast<double>(x) * x;
      largest = std::max(largest, std::abs(static_cast<double>(x)));
    }
    const auto n = static_cast<double>(rows.size());
    const double mean = sum / n, deviation = std::sqrt(squares / n - mean * mean);
    const double wanted[] = {0.5 / std::sqrt(3.0), 0.5, 0.5 * 0.8796, 0};
    EXPECT_NEAR(deviation, wanted[static_cast<size_t>(init)], 0.01);
    EXPECT_NEAR(mean, init == InitChoice::kConstant ? 0.5 : 0, 0.02);
    EXPECT_LE(largest, init == InitChoice::kNormal            ? 5
                       : init == InitChoice::kTruncatedNormal ? 1.0
                                                              : 0.5);
  }
}

TEST(DynamicTableTest, AnIdIsTrainedOnceItIsAdmitted) {
  TableConfig table = dynamic_table();
  table.admit_after = 3;
  Tables tables(one_table(table), Device::cpu(), DType::kF32, 5);
  const std::vector<float> first = read_rows(tables, {7});
  train(tables, {7}, 1);
  EXPECT_EQ(read_rows(tables, {7}), first);
  EXPECT_EQ(tables.table(kTable).stats()->candidates, 1);
  train(tables, {7, 8, 7}, 2);
  EXPECT_NE(read_rows(tables, {7}), first);
  EXPECT_EQ(tables.table(kTable).stats()->rows, 1);
  EXPECT_EQ(tables.table(kTable).stats()->candidates, 1);
}

TEST(DynamicTableTest, MissingRowsTravelOnTheWireLikeOthers) {
  TablesConfig config = one_table(dynamic_table());
  config.forward_wire = Wire::kBf16;
  Tables tables(config, Device::cpu(), DType::kF32, 5);
  const std::vector<float> missing = read_rows(tables, {1, 2, 3});
  EXPECT_EQ(missing, read_rows(tables, {1, 2, 3}, Mode::kTraining));
  for (const float x : missing) EXPECT_EQ(x, round_to_bf16(x));
}

TEST(DynamicTableTest, ABatchThatIsNeverUsedLeavesNoTrace) {
  Tables tables(one_table(dynamic_table()), Device::cpu(), DType::kF32, 5);
  train(tables, {1, 2}, 1);
  const Ids ids{3, 4};
  const Lookup lookup{kTable, "item", ids};
  (void)tables.begin(std::span(&lookup, 1), Mode::kTraining);
  EXPECT_EQ(tables.table(kTable).stats()->rows, 2);
}

TablesConfig with_policy(const Policy& policy) {
  TableConfig table = dynamic_table(1024);
  table.start_rows = 128;
  table.evict = policy.evict;
  table.admit_after = policy.admit_after;
  table.admit_share = policy.admit_share;
  table.ttl_seconds = policy.ttl_seconds;
  return one_table(table, ops::RowOptimizer::kAdam);
}

TEST(DynamicTableTest, TheSameRowsOnAnyNumberOfRanks) {
  for (const Policy& policy : kPolicies) {
    SCOPED_TRACE(policy.name);
    const Contents one = contents_of(run(with_policy(policy), 1, 1, 30, nullptr, 100'000));
    EXPECT_GT(one.size(), 300u);
    for (const int ranks : {2, 3, 4}) {
      SCOPED_TRACE(ranks);
      expect_same(one, contents_of(run(with_policy(policy), ranks, 1, 30, nullptr, 100'000)), 1e-5);
    }
  }
}

TEST(DynamicTableTest, SavedAndLoadedItGoesOnAsItWould) {
  for (const Policy& policy : kPolicies) {
    SCOPED_TRACE(policy.name);
    const TablesConfig config = with_policy(policy);
    const Contents whole = contents_of(run(config, 1, 1, 40, nullptr, 100'000));
    const Saved half = run(config, 1, 1, 20, nullptr, 100'000);
    expect_same(whole, contents_of(run(config, 1, 21, 40, &half, 100'000)), 0);
    const Saved on_four = run(config, 4, 21, 30, &half, 100'000);
    expect_same(whole, contents_of(run(config, 2, 31, 40, &on_four, 100'000)), 1e-5);
  }
}

TEST(DynamicTableTest, TakesOverAStaticTable) {
  TableConfig fixed{.name = "item", .rows = 300, .init_bound = 0.5};
  Tables from(one_table(fixed), Device::cpu(), DType::kF32, 5);
  train(from, {1, 2, 299}, 1);
  Saved saved;
  for (const TableArray& array : from.table(kTable).snapshot(Extent::kAll)) saved.add(array);
  Tables to(one_table(dynamic_table()), Device::cpu(), DType::kF32, 77);
  load(to, saved);
  EXPECT_EQ(read_rows(to, {0, 1, 2, 298, 299}), read_rows(from, {0, 1, 2, 298, 299}));
  train(from, {1, 5}, 2);
  train(to, {1, 5}, 2);
  EXPECT_EQ(read_rows(to, {1, 5}), read_rows(from, {1, 5}));

  Tables small(one_table(dynamic_table(128)), Device::cpu(), DType::kF32, 5);
  const std::string message = test::message_of(ErrorCode::kConfig, [&] { load(small, saved); });
  EXPECT_TRUE(test::contains(message, "raise `max_rows`")) << message;
  TableConfig wide = dynamic_table();
  wide.dim = 8;
  Tables other(one_table(wide), Device::cpu(), DType::kF32, 5);
  EXPECT_TRUE(
      test::contains(test::message_of(ErrorCode::kConfig, [&] { load(other, saved); }), "columns"));
}

/// Checksums are no signature: whoever made a checkpoint up may have given its arrays any size.
TEST(DynamicTableTest, ArraysThatDoNotBelongTogetherAreCorrupt) {
  const Saved sound = run(with_policy(kPolicies[3]), 1, 1, 5);
  const auto refused = [&](const char* name, std::vector<int64_t> shape, int64_t value = 1) {
    SCOPED_TRACE(name);
    Saved saved = sound;
    Saved::Array& array = saved.arrays.at(name);
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    array.bytes.clear();
    for (int64_t i = 0; i < elements; ++i) {
      const auto* const at = reinterpret_cast<const std::byte*>(&value);
      array.bytes.insert(array.bytes.end(), at, at + size_of(array.dtype));
    }
    array.shape = std::move(shape);
    Tables tables(with_policy(kPolicies[3]), Device::cpu(), DType::kF32, 5);
    base::message_of(ErrorCode::kCorrupt, [&] { load(tables, saved); });
  };
  const int64_t rows = sound.arrays.at("key").shape.front();
  ASSERT_GT(rows, 3);
  refused("key", {rows});  // all alike
  refused("key", {rows - 1});
  refused("key", {rows, 2});
  refused("stamp", {rows, 4});
  refused("stamp", {rows - 1, 3});
  refused("stamp", {rows, 3}, -1);
  refused("state", {rows - 1, 2 * kDim});
  refused("candidate", {2, 5});
  refused("buckets", {2, 2});
  refused("totals", {1, 6});
  refused("clock", {0});
  refused("clock", {2});
  refused("clock", {1}, -1);
  refused("clock", {1}, std::numeric_limits<int64_t>::max());
}

TEST(DynamicTableTest, GrowsAndThenForgets) {
  TableConfig table = dynamic_table(512);
  table.start_rows = 128;
  Tables tables(one_table(table), Device::cpu(), DType::kF32, 5);
  int64_t bytes = tables.bytes();
  for (int64_t step = 1; step <= 40; ++step) {
    Ids ids(50);
    for (int64_t i = 0; i < 50; ++i) ids[static_cast<size_t>(i)] = 50 * step + i;
    train(tables, ids, step);
    EXPECT_GE(tables.bytes(), bytes);
    bytes = tables.bytes();
  }
  const TableStats stats = *tables.table(kTable).stats();
  EXPECT_EQ(stats.capacity, 512);
  EXPECT_LE(stats.rows, 512);
  EXPECT_GT(stats.rows, 450);
  EXPECT_GT(stats.growths, 0);
  EXPECT_EQ(stats.inserted, 2000);
  EXPECT_EQ(stats.evicted, stats.inserted - stats.rows);
}

TEST(DynamicTableTest, ConfigsThatCannotBe) {
  const auto message = [](auto change) {
    TableConfig table = dynamic_table();
    change(table);
    return test::message_of(ErrorCode::kConfig, [&] { one_table(table).validate(); });
  };
  const auto says = [&](auto change, const char* what) {
    const std::string text = message(change);
    EXPECT_TRUE(test::contains(text, what)) << text;
    EXPECT_TRUE(test::contains(text, "`item`")) << text;
  };
  says([](TableConfig& t) { t.max_rows = 0; }, "max_rows");
  says([](TableConfig& t) { t.max_rows = int64_t{1} << 40; }, "max_rows");
  says([](TableConfig& t) { t.max_gib = 1; }, "give one");
  says([](TableConfig& t) { t.max_rows = 0, t.max_gib = -1; }, "max_gib");
  says([](TableConfig& t) { t.start_rows = 4096; }, "start_rows");
  says([](TableConfig& t) { t.evict = Evict::kScore; }, "name one or more in `score`");
  says([](TableConfig& t) { t.score = {"time"}; }, "`score` is for evict = \"score\"");
  says([](TableConfig& t) { t.admit_after = 0; }, "admit_after");
  says([](TableConfig& t) { t.admit_share = 0; }, "admit_share");
  says([](TableConfig& t) { t.admit_share = 1.5; }, "admit_share");
  says([](TableConfig& t) { t.ttl_seconds = -1; }, "ttl_seconds");
  says([](TableConfig& t) { t.sharding = Sharding::kColumn; }, "sharding");
  says([](TableConfig& t) { t.sharding = Sharding::kReplicated; }, "sharding");
  says([](TableConfig& t) { t.kind = TableKind::kStatic, t.rows = 5; }, "kind");
  says([](TableConfig& t) { t = {.name = "item", .rows = 5}, t.score = {"time"}; }, "`score` is");
  TableConfig by_rows = dynamic_table(0);
  by_rows.rows = 1000;
  EXPECT_NO_THROW(one_table(by_rows).validate());
}

TEST(DynamicTableTest, MemoryDecidesTheRows) {
  TableConfig table = dynamic_table(0);
  table.max_gib = 1;
  const TablesConfig config = one_table(table);
  const int64_t row = (kDim + 1) * 4 + kIndexBytesPerRow;
  EXPECT_EQ(config.rows_of(config.tables[0]), (int64_t{1} << 30) / row);
}

}  // namespace
}  // namespace segue::sparse
