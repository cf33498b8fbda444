#include "sparse/planner.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>

#include <gtest/gtest.h>

#include "base/test_util.h"

namespace segue::sparse {
namespace {

using base::contains;

constexpr double kGib = 1 << 30;

TableDemand demand(std::string name, int64_t rows, double distinct, int64_t dim = 512) {
  TableDemand d;
  d.name = std::move(name);
  d.rows = rows;
  d.dim = dim;
  d.lookups = d.distinct = distinct;
  return d;
}

/// The eleven tables of the public benchmark, 1024 samples a rank.
PlannerInput benchmark(int ranks, double device_gib) {
  PlannerInput in;
  in.tables = {demand("item_id", 9'390'624, 300'000), demand("artist_id", 1'293'395, 100'000),
               demand("album_id", 3'367'692, 200'000)};
  const std::pair<const char*, int64_t> contextual[] = {{"uid", 1'000'001},
                                                        {"user_x_artist", 100'000'000},
                                                        {"user_x_album", 40'000'000},
                                                        {"user_x_hour", 24'000'000},
                                                        {"item_x_hour", 40'000'000},
                                                        {"artist_x_hour", 32'000'000},
                                                        {"user_x_is_organic", 2'000'000},
                                                        {"user_x_artist_x_hour", 40'000'000}};
  for (const auto& [name, rows] : contextual) in.tables.push_back(demand(name, rows, 1024));
  in.ranks = ranks;
  in.device_bytes = device_gib * kGib;
  in.fixed = {{Purpose::kActivation, 30 * kGib, "lower train.micro_batch_tokens"}};
  return in;
}

void expect_owned_once(const PlannerInput& in, const PlannedTables& planned) {
  ASSERT_EQ(planned.plan.tables.size(), in.tables.size());
  EXPECT_EQ(planned.plan.ranks, in.ranks);
  for (size_t t = 0; t < in.tables.size(); ++t) {
    const TablePlacement& p = planned.plan.tables[t];
    const TableDemand& d = in.tables[t];
    SCOPED_TRACE(d.name + ": " + p.reason);
    EXPECT_FALSE(p.reason.empty());
    EXPECT_EQ(std::set<int>(p.ranks.begin(), p.ranks.end()).size(), p.ranks.size());
    for (const int r : p.ranks) {
      EXPECT_GE(r, 0);
      EXPECT_LT(r, in.ranks);
    }
    // Rows times columns over all owners: the table once, or everywhere.
    int64_t values = 0, cells = 0;
    for (int r = 0; r < in.ranks; ++r) {
      const LocalShard s = local_shard(p, d.rows, d.dim, r);
      values += s.rows() * (s.part < 0 ? 0 : s.columns.width());
      cells += s.part >= 0;
    }
    EXPECT_EQ(cells, static_cast<int64_t>(p.ranks.size()));
    EXPECT_EQ(values, d.rows * d.dim * (p.sharding == Sharding::kReplicated ? in.ranks : 1));
    if (d.rows > 1000) continue;
    for (int64_t row = 0; row < d.rows; ++row) {
      int64_t columns = 0;
      for (int r = 0; r < in.ranks; ++r) {
        const LocalShard s = local_shard(p, d.rows, d.dim, r);
        if (s.part >= 0 && s.partition.part_of(row) == s.part) columns += s.columns.width();
      }
      ASSERT_EQ(columns, d.dim * (p.sharding == Sharding::kReplicated ? in.ranks : 1)) << row;
    }
  }
}

void expect_sums(const PlannerInput& in, const PlannedTables& planned) {
  double fixed = 0, by_rank = 0, by_table = 0, sent = 0, received = 0, table_sent = 0;
  for (const PlannerInput::Fixed& f : in.fixed) fixed += f.bytes;
  for (int r = 0; r < in.ranks; ++r) {
    const RankLoad& load = planned.ranks[static_cast<size_t>(r)];
    double tables = 0, optimizer = 0, host = 0, file = 0;
    for (size_t t = 0; t < in.tables.size(); ++t) {
      const TablePlacement& p = planned.plan.tables[t];
      const LocalShard s = local_shard(p, in.tables[t].rows, in.tables[t].dim, r);
      if (s.part < 0) continue;
      const int64_t width = s.columns.width();
      const auto weights = static_cast<double>(s.rows() * width * in.value_bytes);
      const auto state = static_cast<double>(
          s.rows() * ops::row_state_size(in.tables[t].optimizer, width) * in.value_bytes);
      const double share = p.tier == Tier::kDevice
                               ? 1
                               : static_cast<double>(p.cache_rows) / static_cast<double>(s.rows());
      tables += share * weights;
      optimizer += share * state;
      (p.tier == Tier::kFile ? file : host) += p.tier == Tier::kDevice ? 0 : weights + state;
      by_rank += weights + state;
    }
    EXPECT_NEAR(load.tables, tables, 1e-9 * tables);
    EXPECT_NEAR(load.optimizer, optimizer, 1e-9 * optimizer);
    EXPECT_EQ(load.host, host);
    EXPECT_EQ(load.file, file);
    EXPECT_EQ(load.fixed, fixed);
    EXPECT_GE(load.sent, -1e-6);
    sent += load.sent;
    received += load.received;
    if (planned.fits() && in.device_bytes > 0) {
      EXPECT_LE(load.device(), in.device_bytes);
      if (in.host_bytes > 0) {
        EXPECT_LE(load.host, in.host_bytes);
      }
    }
  }
  for (const TableLoad& t : planned.tables) {
    by_table += t.bytes;
    table_sent += t.sent;
  }
  EXPECT_EQ(by_rank, by_table);
  EXPECT_NEAR(sent, received, 1e-6 * sent + 1e-6);  // what is sent arrives
  EXPECT_NEAR(sent, table_sent, 1e-6 * sent + 1e-6);
}

bool same(const PlannedTables& a, const PlannedTables& b) {
  for (size_t t = 0; t < a.plan.tables.size(); ++t) {
    const TablePlacement &x = a.plan.tables[t], &y = b.plan.tables[t];
    if (x.sharding != y.sharding || x.tier != y.tier || x.ranks != y.ranks || x.reason != y.reason)
      return false;
  }
  return a.advice == b.advice;
}

PlannerInput random_input(std::mt19937_64& random) {
  PlannerInput in;
  in.ranks = static_cast<int>(1 + random() % 20);
  in.ranks_per_machine = static_cast<int>(1 + random() % 8);
  constexpr ops::RowOptimizer kOptimizers[] = {ops::RowOptimizer::kRowwiseAdagrad,
                                               ops::RowOptimizer::kAdam, ops::RowOptimizer::kSgd};
  const size_t tables = 1 + random() % 8;
  for (size_t t = 0; t < tables; ++t) {
    const int64_t dim = random() % 2 == 0 ? 64 : 20;
    const auto rows = static_cast<int64_t>(1 + random() % (random() % 2 == 0 ? 500 : 1'000'000));
    in.tables.push_back(demand("t" + std::to_string(t), rows,
                               static_cast<double>(random() % static_cast<uint64_t>(rows)), dim));
    in.tables.back().optimizer = kOptimizers[random() % 3];
    if (random() % 3 == 0) {
      in.tables.back().sharding = static_cast<Sharding>(1 + random() % 5);
    }
  }
  in.fixed = {{Purpose::kActivation, static_cast<double>(random() % 100'000'000), "use less"}};
  in.device_bytes = static_cast<double>(random() % 4 == 0 ? 0 : 1 + random() % 2'000'000'000);
  if (random() % 3 == 0) in.host_bytes = static_cast<double>(random() % 1'000'000'000);
  in.files = random() % 5 == 0;
  return in;
}

TEST(PlannerTest, EveryRowHasOneOwnerAndBytesAddUp) {
  std::mt19937_64 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    SCOPED_TRACE(trial);
    const PlannerInput in = random_input(random);
    const PlannedTables planned = plan_tables(in);
    expect_owned_once(in, planned);
    expect_sums(in, planned);
    EXPECT_TRUE(same(planned, plan_tables(in)));
    for (size_t t = 0; t < in.tables.size(); ++t) {
      if (in.tables[t].sharding != Sharding::kAuto) {
        EXPECT_EQ(planned.plan.tables[t].sharding, in.tables[t].sharding);
        EXPECT_TRUE(contains(planned.plan.tables[t].reason, "as the config asks"));
      }
    }
    EXPECT_EQ(planned.fits(), planned.advice.empty());
    if (testing::Test::HasFailure()) return;
  }
}

/// If dealing out all rows fits, a plan that fits is found.
TEST(PlannerTest, FitsWhenRowsEverywhereFit) {
  std::mt19937_64 random(2);
  int fitting = 0;
  for (int trial = 0; trial < 300; ++trial) {
    PlannerInput in = random_input(random);
    in.host_bytes = 0;
    in.files = false;
    for (TableDemand& d : in.tables) d.sharding = Sharding::kRow;
    if (!plan_tables(in).fits()) continue;
    ++fitting;
    for (TableDemand& d : in.tables) d.sharding = Sharding::kAuto;
    EXPECT_TRUE(plan_tables(in).fits()) << trial;
  }
  EXPECT_GT(fitting, 100);
}

TEST(PlannerTest, OneRankHasEverything) {
  const PlannedTables planned = plan_tables(benchmark(1, 1000));
  for (const TablePlacement& p : planned.plan.tables) {
    EXPECT_EQ(p.sharding, Sharding::kTable);
    EXPECT_EQ(p.ranks, std::vector<int>{0});
  }
  EXPECT_EQ(planned.ranks[0].sent, 0);
  EXPECT_TRUE(planned.fits());
}

TEST(PlannerTest, BenchmarkOnOneMachine) {
  const PlannerInput in = benchmark(8, 139);
  const PlannedTables planned = plan_tables(in);
  ASSERT_TRUE(planned.fits());
  const auto sharding = [&](size_t t) { return planned.plan.tables[t].sharding; };
  EXPECT_EQ(sharding(0), Sharding::kRow) << "whole histories look it up";
  EXPECT_TRUE(contains(planned.plan.tables[0].reason, "300000 different ids"));
  EXPECT_EQ(sharding(4), Sharding::kRow) << "191 GiB";
  EXPECT_TRUE(contains(planned.plan.tables[4].reason, "191.1 GiB are more than a rank's share"));
  EXPECT_EQ(sharding(3), Sharding::kTable) << "one id a sample, 2 GiB";
  double most = 0, mean = 0;
  for (const RankLoad& r : planned.ranks) {
    most = std::max(most, r.traffic());
    mean += r.traffic() / 8;
  }
  EXPECT_LE(most, 1.25 * mean);
  // No rank is much fuller than others either.
  for (const RankLoad& r : planned.ranks) {
    EXPECT_LE(r.tables + r.optimizer, 1.25 * 560.05 / 8 * kGib);
  }
}

TEST(PlannerTest, TrafficDealsTablesOutWithinAMachine) {
  // Eight samples a rank: a table that all 1024 ranks ask is too much for one of them.
  PlannerInput in = benchmark(1024, 80);
  in.tables[0].distinct = 6000;
  in.tables[1].distinct = in.tables[2].distinct = 3000;
  for (size_t t = 3; t < in.tables.size(); ++t) in.tables[t].distinct = 8;
  const PlannedTables planned = plan_tables(in);
  ASSERT_TRUE(planned.fits());
  int within = 0;
  for (const TablePlacement& p : planned.plan.tables) {
    if (p.sharding != Sharding::kTableRow) continue;
    ++within;
    EXPECT_EQ(p.ranks.size(), 8u);
    EXPECT_EQ(p.ranks.front() % 8, 0);
  }
  EXPECT_GT(within, 0);
}

TEST(PlannerTest, TinyTablesAreCopied) {
  PlannerInput in;
  in.ranks = 4;
  in.tables = {demand("age", 100, 50, 16), demand("item", 1'000'000, 50'000, 16)};
  const PlannedTables planned = plan_tables(in);
  EXPECT_EQ(planned.plan.tables[0].sharding, Sharding::kReplicated);
  EXPECT_TRUE(contains(planned.plan.tables[0].reason, "a copy on each of 4 ranks"));
  EXPECT_EQ(planned.plan.tables[1].sharding, Sharding::kRow);
}

TEST(PlannerTest, SaysHowFarItIsFromFitting) {
  const PlannedTables planned = plan_tables(benchmark(4, 80));
  EXPECT_FALSE(planned.fits());
  // 560 GiB over 4 ranks, 30 of activations, 600,000 rows of 2 KiB three times on their way, with
  // room for twice.
  EXPECT_NEAR(planned.missing_device / kGib, 560.05 / 4 + 30 + 2 * 3.48 - 80, 0.1);
  std::string advice;
  for (const std::string& a : planned.advice) advice += a + "\n";
  EXPECT_TRUE(contains(advice, "it fits on 14 ranks of this size"));
  EXPECT_TRUE(contains(advice, "of host memory per rank (--host)"));
  EXPECT_TRUE(contains(advice, "activations take 30.0 GiB per rank: lower train.micro_batch"));
  EXPECT_TRUE(contains(advice, "`user_x_artist` is 34 % of all tables"));
}

TEST(PlannerTest, OverridesThatDoNotFitAreNamed) {
  PlannerInput in = benchmark(16, 80);
  in.tables[4].sharding = Sharding::kTable;  // 191 GiB on one rank
  const PlannedTables planned = plan_tables(in);
  EXPECT_FALSE(planned.fits());
  EXPECT_TRUE(contains(planned.advice.front(), "sharding = \"auto\""));
}

TEST(PlannerTest, ColdTablesGoToTheHost) {
  PlannerInput in = benchmark(4, 80);
  in.host_bytes = 200 * kGib;
  const PlannedTables planned = plan_tables(in);
  ASSERT_TRUE(planned.fits());
  EXPECT_EQ(planned.plan.tables[4].tier, Tier::kCached) << "largest, and one id a sample";
  EXPECT_EQ(planned.plan.tables[0].tier, Tier::kDevice) << "every event looks it up";
  EXPECT_TRUE(contains(planned.plan.tables[4].reason, "in host memory behind a cache of"));
  EXPECT_TRUE(contains(planned.plan.tables[4].reason, "because device memory does not hold"));
  EXPECT_GE(planned.plan.tables[4].cache_rows, 3 * 1024) << "room for the batches in flight";
  EXPECT_EQ(planned.plan.tables[0].cache_rows, 0);
  expect_sums(in, planned);

  in.tables[4].placement = TierChoice::kDevice;
  EXPECT_EQ(plan_tables(in).plan.tables[4].tier, Tier::kDevice);
  in.tables[0].placement = TierChoice::kHost;
  const PlannedTables asked = plan_tables(in);
  EXPECT_EQ(asked.plan.tables[0].tier, Tier::kHost);
  EXPECT_EQ(asked.plan.tables[0].cache_rows, 3 * 300'000);
  EXPECT_TRUE(contains(asked.plan.tables[0].reason, "as the config asks"));
  in.tables[0].sharding = Sharding::kReplicated;
  EXPECT_EQ(base::error_of([&] { plan_tables(in); })->code(), ErrorCode::kConfig);
}

TEST(PlannerTest, WhatFitsNeitherMemoryGoesToFiles) {
  PlannerInput in = benchmark(1, 80);
  in.host_bytes = 100 * kGib;
  EXPECT_FALSE(plan_tables(in).fits());
  in.files = true;
  const PlannedTables planned = plan_tables(in);
  ASSERT_TRUE(planned.fits());
  EXPECT_EQ(planned.plan.tables[4].tier, Tier::kFile) << "191 GiB";
  EXPECT_TRUE(contains(planned.plan.tables[4].reason, "device and host memory"));
  EXPECT_EQ(planned.plan.tables[0].tier, Tier::kDevice);
  EXPECT_TRUE(std::ranges::any_of(planned.plan.tables,
                                  [](const TablePlacement& p) { return p.tier == Tier::kCached; }));
  EXPECT_LE(planned.ranks[0].host, in.host_bytes);
  expect_sums(in, planned);
}

TEST(PlannerTest, DynamicTablesGoElsewhereWithTheirIndexOnTheHost) {
  PlannerInput in = benchmark(4, 80);
  in.host_bytes = 200 * kGib;
  in.tables[4].dynamic = true;
  const PlannedTables planned = plan_tables(in);
  ASSERT_TRUE(planned.fits());
  EXPECT_EQ(planned.plan.tables[4].tier, Tier::kCached);
  EXPECT_TRUE(contains(planned.plan.tables[4].reason, "its index is in host memory"));
  EXPECT_TRUE(contains(planned.plan.tables[4].reason, "grows to 100000000 rows at most"));

  in.tables[4].placement = TierChoice::kFile;
  in.tables[4].cache_share = 0.01;
  const RankLoad dynamic = plan_tables(in).ranks[0];
  in.tables[4].dynamic = false;
  const RankLoad fixed = plan_tables(in).ranks[0];
  EXPECT_EQ(dynamic.host - fixed.host, 25e6 * kIndexBytesPerRow);
  EXPECT_EQ(dynamic.file, fixed.file);
  EXPECT_EQ(dynamic.tables, fixed.tables);
}

TEST(PlannerTest, CachesShareWhatMemoryIsLeft) {
  PlannerInput in = benchmark(1, 80);
  in.host_bytes = 600 * kGib;
  const PlannedTables planned = plan_tables(in);
  ASSERT_TRUE(planned.fits());
  EXPECT_GT(planned.ranks[0].device(), 0.75 * in.device_bytes);
  EXPECT_LE(planned.ranks[0].device(), in.device_bytes);
  // A share that was asked for is obeyed.
  in.tables[4].placement = TierChoice::kCached;
  in.tables[4].cache_share = 0.01;
  EXPECT_EQ(plan_tables(in).plan.tables[4].cache_rows, 1'000'000);
  // Nobody knows how much there is: a tenth.
  in = benchmark(1, 0);
  in.tables[4].placement = TierChoice::kCached;
  EXPECT_EQ(plan_tables(in).plan.tables[4].cache_rows, 10'000'000 + 3 * 1024);
}

TEST(PlannerTest, EqualPlansHaveEqualTexts) {
  ShardPlan plan;
  plan.ranks = 4;
  plan.tables.resize(2);
  plan.tables[1] = {Sharding::kRow, Tier::kHost, {0, 1, 2, 3}, "because", 5};
  EXPECT_EQ(to_text(plan), "4 ranks; table 0; row host 5 0,1,2,3");
  EXPECT_EQ(to_text(plan_tables(benchmark(8, 139)).plan),
            to_text(plan_tables(benchmark(8, 139)).plan));
}

TEST(PlannerTest, NoRanksIsAnError) {
  PlannerInput in = benchmark(0, 80);
  EXPECT_EQ(base::error_of([&] { plan_tables(in); })->code(), ErrorCode::kInvalidArgument);
}

TEST(PlannerTest, DistinctIds) {
  EXPECT_EQ(expected_distinct(0, 100, 1.2), 0);
  EXPECT_NEAR(expected_distinct(1000, 1, 1.2), 1, 1e-9);
  // All alike: n (1 - exp(-draws / n)).
  EXPECT_NEAR(expected_distinct(1000, 1000, 0), 1000 * (1 - std::exp(-1.0)), 1e-6);
  // Against a plain sum over all ids.
  double mass = 0, distinct = 0;
  for (int k = 1; k <= 50'000; ++k) mass += std::pow(k, -1.2);
  for (int k = 1; k <= 50'000; ++k) {
    distinct += 1 - std::pow(1 - std::pow(k, -1.2) / mass, 20'000);
  }
  EXPECT_NEAR(expected_distinct(20'000, 50'000, 1.2), distinct, 0.01 * distinct);
}

}  // namespace
}  // namespace segue::sparse
