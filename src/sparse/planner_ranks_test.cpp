// What the planner says against what tables on ranks take and send.

#include <algorithm>
#include <numeric>
#include <random>

#include <gtest/gtest.h>

#include "comm/world.h"
#include "sparse/planner.h"
#include "sparse/tables_test_util.h"

namespace segue::sparse {
namespace {

constexpr int kRanks = 4;
constexpr double kTimeout = 20;
constexpr int64_t kRows = 5003, kDim = 64, kAsked = 1000;

/// Different ones, other ones on every rank.
test::Ids ids_of(int rank, size_t table) {
  test::Ids ids(kRows);
  std::iota(ids.begin(), ids.end(), 0);
  std::mt19937_64 random(100 * table + static_cast<uint64_t>(rank));
  std::ranges::shuffle(ids, random);
  ids.resize(kAsked);
  return ids;
}

struct Measured {
  double bytes = 0, sent = 0;
};

Measured run_step(comm::World& world, const TablesConfig& config, const ShardPlan& plan) {
  const auto ids = world.open("ids"), rows = world.open("rows");
  Tables tables(config, plan, {ids.get(), rows.get()}, Device::cpu(), DType::kF32, 5);
  test::Bench bench;
  std::vector<test::Ids> asked;
  std::vector<Lookup> lookups;
  for (size_t t = 0; t < config.tables.size(); ++t) asked.push_back(ids_of(world.rank(), t));
  for (size_t t = 0; t < asked.size(); ++t) {
    lookups.push_back({static_cast<TableId>(t), config.tables[t].name, asked[t]});
  }
  Ticket ticket = tables.begin(lookups, Mode::kTraining);
  std::vector<TableId> all;
  for (const Lookup& lookup : lookups) all.push_back(lookup.table);
  const Tensor got = tables.rows(bench.exec, ticket, all);
  tables.apply(bench.exec, ticket, all, got, 0.1, 1);  // any gradients do
  return {static_cast<double>(tables.bytes()),
          static_cast<double>(ids->traffic().bytes_sent + rows->traffic().bytes_sent)};
}

TEST(PlannerRanksTest, TablesTakeAndSendWhatWasPlanned) {
  TablesConfig config;
  config.dim = kDim;
  PlannerInput in;
  in.ranks = kRanks;
  in.ranks_per_machine = 2;
  for (const Sharding s : {Sharding::kTable, Sharding::kRow, Sharding::kColumn, Sharding::kTableRow,
                           Sharding::kReplicated, Sharding::kAuto}) {
    const std::string name(to_string(s));
    config.tables.push_back({name, kRows, 0});
    TableDemand& d = in.tables.emplace_back();
    d.name = name;
    d.rows = kRows;
    d.dim = kDim;
    d.sharding = s;
    d.lookups = d.distinct = kAsked;
  }
  const PlannedTables planned = plan_tables(in);
  std::vector<Measured> measured(kRanks);
  comm::run_as_threads(kRanks, kTimeout, [&](comm::World& world) {
    measured[static_cast<size_t>(world.rank())] = run_step(world, config, planned.plan);
  });
  for (size_t r = 0; r < measured.size(); ++r) {
    const RankLoad& load = planned.ranks[r];
    EXPECT_EQ(measured[r].bytes, load.tables + load.optimizer) << r;
    // Which rows a rank asks of whom is chance.
    EXPECT_NEAR(measured[r].sent, load.sent, 0.05 * load.sent) << r;
  }
}

}  // namespace
}  // namespace segue::sparse
