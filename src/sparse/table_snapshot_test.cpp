// What a table gives to checkpoints, and takes back: whole tables, whoever holds which part.

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "comm/world.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

using test::Bench;
using test::Ids;

constexpr double kTimeout = 20;
constexpr Sharding kShardings[] = {Sharding::kTable, Sharding::kRow, Sharding::kColumn,
                                   Sharding::kTableRow, Sharding::kReplicated};

/// Tables of several widths and optimizers.
TablesConfig mixed_tables() {
  TablesConfig config;
  config.tables = {{"item", 37}, {"artist", 20}, {"user", 5}, {"hour", 11}};
  config.dim = 10;
  config.tables[1].dim = 6;
  config.tables[1].optimizer = OptimizerChoice::kAdam;
  config.tables[2].dim = 16;
  config.tables[2].optimizer = OptimizerChoice::kSgd;
  config.tables[3].optimizer = OptimizerChoice::kAdagrad;
  return config;
}

TablePlacement place(Sharding sharding, int ranks) {
  TablePlacement placement;
  placement.sharding = sharding;
  placement.ranks.clear();
  for (int r = ranks - 1; r >= 0; --r) placement.ranks.push_back(r);
  if (sharding == Sharding::kTable) placement.ranks = {ranks / 2};
  if (sharding == Sharding::kTableRow) placement.ranks.resize(static_cast<size_t>(ranks + 1) / 2);
  return placement;
}

/// Values by (table, array, row, column of the whole).
using Whole = std::map<std::tuple<std::string, std::string, int64_t, int64_t>, float>;

/// use(place in the whole, value here) for every value of an array.
template <class Use>
void visit(const std::string& table, const TableArray& array, Use use) {
  const ArrayPart part =
      array.part.value_or(ArrayPart::whole({array.value.size(0), array.value.size(1)}));
  ASSERT_EQ(array.value.size(0), part.rows());
  ASSERT_EQ(array.value.elements(), part.rows() * part.width());
  for (int64_t slot = 0; slot < part.rows(); ++slot) {
    const int64_t row = part.partition.row_of(part.part, slot);
    int64_t here = 0;
    for (const ColumnRange& range : part.columns) {
      for (int64_t c = 0; c < range.count; ++c) {
        use(Whole::key_type{table, array.name, row, range.begin + c},
            array.value.row<float>(slot)[here++]);
      }
    }
  }
}

/// Trains, when `from` is absent, or takes its values over; then adds what is saved to `to`.
void run(const TablesConfig& config, Sharding sharding, int ranks, const Whole* from, Whole& to) {
  std::mutex mutex;
  comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
    ShardPlan plan;
    plan.ranks = ranks;
    plan.tables.assign(config.tables.size(), place(sharding, ranks));
    const auto ids = world.open("ids"), rows = world.open("rows");
    Tables tables(config, plan, {ids.get(), rows.get()}, Device::cpu(), DType::kF32, 5);
    for (size_t t = 0; t < config.tables.size(); ++t) {
      const auto id = static_cast<TableId>(t);
      const std::string& name = config.tables[t].name;
      for (const TableArray& array : tables.table(id).snapshot(Extent::kAll)) {
        if (from == nullptr) break;
        visit(name, array, [&](const auto& key, float& value) { value = from->at(key); });
      }
      tables.load(test::no_arrays);
      if (from == nullptr) {
        Bench bench;
        Ids asked;  // by all ranks together the same, whatever their number
        for (int64_t i = world.rank(); i < 5; i += ranks) asked.push_back(i);
        const Lookup lookup{id, "feature", asked};
        for (int64_t step = 1; step <= 2; ++step) {
          Ticket ticket = tables.begin(std::span(&lookup, 1), Mode::kTraining);
          const Tensor got = tables.rows(bench.exec, ticket, id);
          tables.apply(bench.exec, ticket, id, got, 0.1, step);
        }
      }
      const std::lock_guard lock(mutex);
      for (const TableArray& array : tables.table(id).snapshot(Extent::kAll)) {
        if (!array.saved_here) continue;
        visit(name, array, [&](const auto& key, float& value) {
          EXPECT_TRUE(to.emplace(key, value).second) << "saved twice: " << name;
        });
      }
    }
  });
}

int64_t values_of(const TablesConfig& config) {
  int64_t values = 0;
  for (const TableConfig& t : config.tables) {
    const int64_t dim = config.dim_of(t);
    values += t.rows * (dim + ops::row_state_size(config.optimizer_of(t), dim));
  }
  return values;
}

TEST(TableSnapshotTest, EverythingIsSavedOnceAndAnyPartitionTakesItOver) {
  const TablesConfig config = mixed_tables();
  Whole alone;
  run(config, Sharding::kTable, 1, nullptr, alone);
  size_t other = 0;
  for (const int ranks : {1, 2, 3}) {
    for (const Sharding sharding : kShardings) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, sharding " << int(sharding));
      Whole saved, again;
      run(config, sharding, ranks, nullptr, saved);
      ASSERT_EQ(static_cast<int64_t>(saved.size()), values_of(config));
      for (const auto& [key, value] : saved) {
        ASSERT_NEAR(value, alone.at(key), 2e-6) << std::get<0>(key) << " " << std::get<1>(key);
      }
      const Sharding next = kShardings[(++other * 2) % std::size(kShardings)];
      run(config, next, 1 + ranks % 3, &saved, again);
      EXPECT_EQ(saved, again);
    }
  }
}

TEST(TableSnapshotTest, StatePerBlockIsAColumnPerBlock) {
  TablesConfig config = mixed_tables();
  config.tables.resize(1);
  config.per_block_state = true;
  Whole saved, again;
  run(config, Sharding::kColumn, 3, nullptr, saved);
  EXPECT_EQ(static_cast<int64_t>(saved.size()), 37 * (10 + 3));
  run(config, Sharding::kColumn, 3, &saved, again);
  EXPECT_EQ(saved, again);
}

}  // namespace
}  // namespace segue::sparse
