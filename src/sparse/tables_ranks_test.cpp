// Tables that several ranks hold together, against the same tables on one rank.

#include <algorithm>
#include <mutex>
#include <random>

#include <gtest/gtest.h>

#include "comm/world.h"
#include "ops/rows.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

using test::Bench;
using test::Ids;
using test::view;

constexpr double kTimeout = 20;
constexpr int64_t kSteps = 4;

TablesConfig config_for(ops::RowOptimizer optimizer) {
  TablesConfig config;
  config.tables = {{"item", 50, 0}, {"artist", 23, 0}, {"user", 7, 0}, {"unused", 5, 0}};
  config.dim = 10;
  config.optimizer = optimizer;
  return config;
}

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(static_cast<size_t>(count));
  for (int r = 0; r < count; ++r) ranks[static_cast<size_t>(r)] = r;
  return ranks;
}

TablePlacement place(Sharding sharding, int ranks) {
  TablePlacement placement;
  placement.sharding = sharding;
  placement.ranks = first_ranks(ranks);
  if (sharding == Sharding::kTable) placement.ranks = {ranks - 1};
  if (sharding == Sharding::kTableRow) placement.ranks.resize(static_cast<size_t>((ranks + 1) / 2));
  if (sharding == Sharding::kColumn) std::ranges::reverse(placement.ranks);
  return placement;
}

/// What rank `rank` looks up in step `step`; the last rank has nothing in the second step.
struct Asked {
  Ids items, candidates, artists, users;
};
Asked asked_by(int rank, int ranks, int64_t step) {
  Asked asked;
  if (step == 2 && rank == ranks - 1 && ranks > 1) return asked;
  std::mt19937_64 random(static_cast<uint64_t>(100 * step + rank));
  const auto draw = [&](Ids& ids, size_t count, uint64_t rows) {
    for (size_t i = 0; i < count; ++i) ids.push_back(static_cast<int64_t>(random() % rows));
  };
  draw(asked.items, 30, 50);
  draw(asked.candidates, 5, 50);
  draw(asked.artists, 12, 23);
  draw(asked.users, 3, 7);
  return asked;
}

std::vector<Lookup> lookups_of(const Asked& asked) {
  return {{TableId{0}, "item", asked.items},
          {TableId{1}, "artist", asked.artists},
          {TableId{0}, "candidate", asked.candidates},
          {TableId{2}, "user", asked.users}};
}

float gradient_of(int64_t id, int64_t occurrence, int64_t column, int64_t step) {
  // Never near a sum of zero, whose sign would be decided by rounding.
  return 0.01f * static_cast<float>((id * 7 + occurrence * 3 + column * 5 + step) % 11 + 1);
}

/// Gradients of every looked-up id, summed per distinct row as a model would; begins from `sums`.
void add_gradients(const Exec& exec, const Asked& asked, const Ticket& ticket, int64_t first_lookup,
                   int64_t step, std::vector<Tensor>& sums) {
  const std::vector<Lookup> lookups = lookups_of(asked);
  for (size_t l = 0; l < lookups.size(); ++l) {
    const Ids ids(lookups[l].ids.begin(), lookups[l].ids.end());
    const Tensor& sum = sums[static_cast<size_t>(lookups[l].table)];
    const Tensor g = exec.arena->tensor(DType::kF32, {static_cast<int64_t>(ids.size()), 10});
    for (size_t i = 0; i < ids.size(); ++i) {
      for (int64_t c = 0; c < 10; ++c) {
        g.row<float>(static_cast<int64_t>(i))[c] =
            gradient_of(ids[i], static_cast<int64_t>(i), c, step);
      }
    }
    ops::segment_sum(exec, g, view(ticket.inverse(first_lookup + static_cast<int64_t>(l))), sum);
  }
}

constexpr TableId kLookedUp[] = {TableId{0}, TableId{1}, TableId{2}};

/// Gradients of the looked-up tables, side by side, and each of them.
struct Sums {
  Tensor all;
  std::vector<Tensor> of_table;
  Sums(const Exec& exec, const Ticket& ticket) {
    int64_t rows = 0;
    for (const TableId t : kLookedUp) rows += ticket.distinct_rows(t);
    all = exec.arena->tensor(DType::kF32, {rows, 10});
    zero(all);
    rows = 0;
    for (const TableId t : kLookedUp) {
      of_table.push_back(all.rows(rows, ticket.distinct_rows(t)));
      rows += ticket.distinct_rows(t);
    }
  }
};

/// Whole tables (weights, then state) as [table][row][column].
using Whole = std::vector<std::vector<std::vector<float>>>;

Whole empty_whole(const TablesConfig& config) {
  Whole whole;
  for (const TableConfig& t : config.tables) {
    whole.emplace_back(static_cast<size_t>(t.rows), std::vector<float>(10, NAN));
  }
  return whole;
}

void put_shards(const Tables& tables, Whole& whole) {
  for (size_t t = 0; t < whole.size(); ++t) {
    const LocalShard shard = test::shard_of(tables, t);
    const Tensor weights = tables.table(static_cast<TableId>(t)).resident().weights;
    for (int64_t slot = 0; slot < shard.rows(); ++slot) {
      std::vector<float>& row =
          whole[t][static_cast<size_t>(shard.partition.row_of(shard.part, slot))];
      std::copy_n(weights.row<float>(slot), shard.columns.width(),
                  row.begin() + shard.columns.begin);
    }
  }
}

Whole train_alone(const TablesConfig& config, int ranks) {
  Tables tables(config, Device::cpu(), DType::kF32, 5);
  for (int64_t step = 1; step <= kSteps; ++step) {
    Bench bench;
    std::vector<Asked> all;
    std::vector<Lookup> lookups;
    for (int r = 0; r < ranks; ++r) all.push_back(asked_by(r, ranks, step));
    for (const Asked& asked : all) {
      for (const Lookup& l : lookups_of(asked)) lookups.push_back(l);
    }
    Ticket ticket = tables.begin(lookups, Mode::kTraining);
    Sums sums(bench.exec, ticket);
    for (size_t r = 0; r < all.size(); ++r) {
      add_gradients(bench.exec, all[r], ticket, static_cast<int64_t>(4 * r), step, sums.of_table);
    }
    tables.apply(bench.exec, ticket, kLookedUp, sums.all, 0.1, step);
  }
  Whole whole = empty_whole(config);
  put_shards(tables, whole);
  return whole;
}

/// The rows of the first step are the initial ones, each at the place that `inverse` says.
void expect_initial(const TablesConfig& config, const Asked& asked, const Ticket& ticket,
                    const Tensor& got) {
  const Tables initial(config, Device::cpu(), DType::kF32, 5);
  const std::vector<Lookup> lookups = lookups_of(asked);
  for (size_t l = 0; l < lookups.size(); ++l) {
    int64_t first = 0;
    for (const TableId t : kLookedUp) {
      if (t < lookups[l].table) first += ticket.distinct_rows(t);
    }
    const std::span<const int32_t> inverse = ticket.inverse(static_cast<int64_t>(l));
    for (size_t i = 0; i < inverse.size(); ++i) {
      const float* expected =
          initial.table(lookups[l].table).resident().weights.row<float>(lookups[l].ids[i]);
      ASSERT_TRUE(std::equal(expected, expected + 10, got.row<float>(first + inverse[i])));
    }
  }
}

Whole train_together(const TablesConfig& config, const std::vector<Sharding>& shardings,
                     int ranks) {
  Whole whole = empty_whole(config);
  std::mutex mutex;
  comm::run_as_threads(ranks, kTimeout, [&](comm::World& world) {
    ShardPlan plan;
    plan.ranks = ranks;
    for (const Sharding s : shardings) plan.tables.push_back(place(s, ranks));
    const auto ids = world.open("ids"), rows = world.open("rows");
    Tables tables(config, plan, {ids.get(), rows.get()}, Device::cpu(), DType::kF32, 5);
    for (int64_t step = 1; step <= kSteps; ++step) {
      Bench bench;
      const Asked asked = asked_by(world.rank(), ranks, step);
      Ticket ticket = tables.begin(lookups_of(asked), Mode::kTraining);
      const Tensor got = tables.rows(bench.exec, ticket, kLookedUp);
      if (step == 1 && config.forward_wire == Wire::kF32)
        expect_initial(config, asked, ticket, got);
      Sums sums(bench.exec, ticket);
      add_gradients(bench.exec, asked, ticket, 0, step, sums.of_table);
      tables.apply(bench.exec, ticket, kLookedUp, sums.all, 0.1, step);
    }
    const std::lock_guard lock(mutex);
    put_shards(tables, whole);
  });
  return whole;
}

void expect_near(const Whole& a, const Whole& b, float tolerance) {
  for (size_t t = 0; t < a.size(); ++t) {
    for (size_t r = 0; r < a[t].size(); ++r) {
      for (size_t c = 0; c < a[t][r].size(); ++c) {
        ASSERT_NEAR(a[t][r][c], b[t][r][c], tolerance)
            << "table " << t << " row " << r << " column " << c;
      }
    }
  }
}

constexpr Sharding kAll[] = {Sharding::kTable, Sharding::kRow, Sharding::kColumn,
                             Sharding::kTableRow, Sharding::kReplicated};

TEST(RowPartitionTest, EveryRowHasOnePlace) {
  for (const int64_t rows : {1, 2, 7, 12, 50, 97}) {
    for (const int64_t parts : {1, 2, 3, 4, 7}) {
      const RowPartition partition{rows, parts};
      std::vector<int64_t> counts(static_cast<size_t>(parts));
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t part = partition.part_of(row), slot = partition.slot_of(row);
        ++counts[static_cast<size_t>(part)];
        EXPECT_EQ(partition.row_of(part, slot), row);
        EXPECT_LT(slot, partition.count(part));
        EXPECT_EQ(partition.permuted(row), part * partition.slots() + slot);
      }
      for (int64_t p = 0; p < parts; ++p) {
        EXPECT_EQ(partition.count(p), counts[static_cast<size_t>(p)]);
      }
    }
  }
}

TEST(RowPartitionTest, NeitherBlocksNorStridesLoadOnePart) {
  const RowPartition partition{1 << 20, 4};
  for (const int64_t stride : {1, 2, 4, 8, 1024}) {
    std::vector<int64_t> counts(4);
    for (int64_t i = 0; i < 1000; ++i) ++counts[static_cast<size_t>(partition.part_of(i * stride))];
    EXPECT_LT(*std::ranges::max_element(counts), 310) << stride;
  }
}

TEST(ColumnBlockTest, BlocksCoverTheRow) {
  for (const int64_t dim : {4, 6, 10, 64, 512}) {
    for (const int64_t blocks : {1, 2, 3, 4}) {
      int64_t at = 0;
      for (int64_t b = 0; b < blocks; ++b) {
        const ColumnBlock block = column_block(dim, b, blocks);
        EXPECT_EQ(block.begin, at);
        EXPECT_GT(block.width(), 0);
        at = block.end;
      }
      EXPECT_EQ(at, dim);
    }
  }
}

TEST(TablesRanksTest, EveryShardingTrainsAsOneRankDoes) {
  for (const auto optimizer : {ops::RowOptimizer::kRowwiseAdagrad, ops::RowOptimizer::kAdagrad,
                               ops::RowOptimizer::kSgd, ops::RowOptimizer::kAdam}) {
    const TablesConfig config = config_for(optimizer);
    for (const int ranks : {1, 2, 3, 4}) {
      const Whole alone = train_alone(config, ranks);
      for (const Sharding s : kAll) {
        SCOPED_TRACE(testing::Message() << "optimizer " << static_cast<int>(optimizer) << ", ranks "
                                        << ranks << ", sharding " << static_cast<int>(s));
        expect_near(train_together(config, {s, s, s, s}, ranks), alone, 2e-6f);
      }
      expect_near(
          train_together(
              config, {Sharding::kRow, Sharding::kColumn, Sharding::kReplicated, Sharding::kTable},
              ranks),
          alone, 2e-6f);
    }
  }
}

TEST(TablesRanksTest, EveryTableHasItsOwnOptimizer) {
  TablesConfig config = config_for(ops::RowOptimizer::kRowwiseAdagrad);
  config.tables[1].optimizer = OptimizerChoice::kAdam;
  config.tables[2].optimizer = OptimizerChoice::kSgd;
  const Whole alone = train_alone(config, 3);
  for (const Sharding s : kAll) {
    expect_near(train_together(config, {s, s, s, s}, 3), alone, 2e-6f);
  }
}

TEST(TablesRanksTest, WiresStayWithinTheirRounding) {
  TablesConfig config = config_for(ops::RowOptimizer::kSgd);
  const Whole exact = train_alone(config, 3);
  for (const auto& [wire, bound] : {std::pair(Wire::kF16, 1e-4f), std::pair(Wire::kBf16, 1e-3f)}) {
    config.forward_wire = config.backward_wire = wire;
    for (const Sharding s : kAll) {
      const Whole rounded = train_together(config, {s, s, s, s}, 3);
      expect_near(rounded, exact, bound);
      EXPECT_NE(rounded, exact);
    }
  }
}

TEST(TablesRanksTest, StatePerBlockOfColumnsIsAnotherUpdate) {
  TablesConfig config = config_for(ops::RowOptimizer::kRowwiseAdagrad);
  const std::vector<Sharding> columns(4, Sharding::kColumn);
  const Whole whole_rows = train_together(config, columns, 2);
  config.per_block_state = true;
  EXPECT_NE(train_together(config, columns, 2), whole_rows);
}

/// One id in nine of ten look-ups costs the exchange nothing: ids are deduplicated before they
/// travel.
TEST(TablesRanksTest, AHotIdDoesNotAddTraffic) {
  constexpr int kRanks = 4;
  constexpr int64_t kRows = 4096;
  const auto bytes = [&](bool hot) {
    std::vector<int64_t> sent(kRanks);
    comm::run_as_threads(kRanks, kTimeout, [&](comm::World& world) {
      TablesConfig config;
      config.tables = {{"item", kRows, 0}};
      config.dim = 8;
      ShardPlan plan;
      plan.ranks = kRanks;
      plan.tables = {place(Sharding::kRow, kRanks)};
      const auto ids_group = world.open("ids"), rows_group = world.open("rows");
      Tables tables(config, plan, {ids_group.get(), rows_group.get()}, Device::cpu(), DType::kF32,
                    5);
      std::mt19937_64 random(static_cast<uint64_t>(world.rank()));
      Ids ids(2000);
      for (int64_t& id : ids) {
        const bool this_one = hot && random() % 10 != 0;
        id = this_one ? 17 : static_cast<int64_t>(random() % kRows);
      }
      Bench bench;
      const Lookup lookup{TableId{0}, "item", ids};
      Ticket ticket = tables.begin(std::span(&lookup, 1), Mode::kTraining);
      const Tensor rows = tables.rows(bench.exec, ticket, TableId{0});
      tables.apply(bench.exec, ticket, TableId{0}, rows, 0.1, 1);
      sent[static_cast<size_t>(world.rank())] =
          rows_group->traffic().bytes_sent + ids_group->traffic().bytes_sent;
    });
    return sent;
  };
  const std::vector<int64_t> uniform = bytes(false), hot = bytes(true);
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_LE(static_cast<double>(hot[r]), 1.2 * static_cast<double>(uniform[r]));
  }
  EXPECT_LE(static_cast<double>(*std::ranges::max_element(hot)),
            1.2 * static_cast<double>(*std::ranges::min_element(hot)));
}

}  // namespace
}  // namespace segue::sparse
