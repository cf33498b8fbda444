#include "balance/exchange.h"

#include <algorithm>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <tuple>

#include <gtest/gtest.h>

#include "base/test_util.h"
#include "comm/world.h"

namespace segue::balance {
namespace {

constexpr double kTimeout = 20;

/// Three groups, one without columns; columns of both types.
Batch make_batch() {
  Batch batch;
  const int user = batch.add_group("user");
  const int history = batch.add_group("history");
  batch.add_group("unused");
  batch.add_column("user_id", user);
  batch.add_column("item", history);
  batch.add_column("time", history);
  batch.add_float_column("price", history);
  batch.add_float_column("age", user);
  return batch;
}

/// Content is a function of the number, so that a test can tell whether it arrived.
void add_sample(Batch& batch, int64_t number, int64_t length) {
  batch.sample_index.push_back(number);
  batch.column("user_id").values.push_back(number * 1000);
  batch.float_column("age").values.push_back(static_cast<float>(number) / 4);
  for (int64_t i = 0; i < length; ++i) {
    batch.column("item").values.push_back(number * 1000 + i);
    batch.column("time").values.push_back(-number * 1000 - i);
    batch.float_column("price").values.push_back(static_cast<float>(number * 100 + i) / 8);
  }
  batch.group("user").offsets.push_back(batch.column("user_id").values.size());
  batch.group("history").offsets.push_back(batch.column("item").values.size());
  batch.group("unused").offsets.push_back(number % 3 +
                                          batch.group("unused").offsets[batch.num_samples() - 1]);
}

SampleShape shape() {
  SampleShape s;
  s.history = "item";
  s.contextual_tokens = 1;
  s.pairs = [](int64_t tokens, int64_t) { return tokens * (tokens + 1) / 2; };
  return s;
}
constexpr CostWeights kWeights{1000, 3};

using Samples = std::map<int64_t, int64_t>;  // number -> length
using Deal = std::vector<std::vector<std::pair<int64_t, int64_t>>>;

/// Checks the content and gives numbers and lengths.
Samples read_samples(const Batch& batch) {
  batch.validate();
  EXPECT_TRUE(std::ranges::is_sorted(batch.sample_index.span()));
  Samples samples;
  Batch expected = make_batch();
  for (int64_t b = 0; b < batch.num_samples(); ++b) {
    const HostArray<int64_t>& offsets = batch.group("history").offsets;
    samples[batch.sample_index[b]] = offsets[b + 1] - offsets[b];
    add_sample(expected, batch.sample_index[b], offsets[b + 1] - offsets[b]);
  }
  const auto expect_equal_columns = [](const auto& columns, const auto& wanted) {
    for (size_t c = 0; c < wanted.size(); ++c) {
      EXPECT_TRUE(std::ranges::equal(columns[c].values.span(), wanted[c].values.span()))
          << wanted[c].name;
    }
  };
  expect_equal_columns(batch.columns, expected.columns);
  expect_equal_columns(batch.float_columns, expected.float_columns);
  for (size_t g = 0; g < batch.groups.size(); ++g) {
    EXPECT_TRUE(
        std::ranges::equal(batch.groups[g].offsets.span(), expected.groups[g].offsets.span()))
        << batch.groups[g].name;
  }
  return samples;
}

struct Result {
  std::vector<Samples> ranks;
  std::vector<BalanceStats> stats;
};

/// Balances all deals on the same balancers.
std::vector<Result> balance(const std::vector<Deal>& deals, const BalanceConfig& config) {
  const size_t ranks = deals.front().size();
  std::vector<Result> results(deals.size());
  for (Result& r : results) {
    r.ranks.resize(ranks);
    r.stats.resize(ranks);
  }
  comm::run_as_threads(static_cast<int>(ranks), kTimeout, [&](comm::World& world) {
    const auto group = world.open("balance");
    const auto rank = static_cast<size_t>(world.rank());
    Balancer balancer(config, shape(), kWeights, *group);
    for (size_t d = 0; d < deals.size(); ++d) {
      Batch batch = make_batch();
      for (const auto& [number, length] : deals[d][rank]) add_sample(batch, number, length);
      batch.global_samples = 77;
      results[d].stats[rank] = balancer.balance(batch);
      EXPECT_EQ(batch.global_samples, 77);
      results[d].ranks[rank] = read_samples(batch);
    }
  });
  return results;
}

Deal random_deal(std::mt19937_64& random, size_t ranks) {
  Deal deal(ranks);
  int64_t number = static_cast<int64_t>(random() % 5);
  const size_t samples = random() % 30;
  const bool one_rank = random() % 4 == 0;  // everything on one, the others empty
  for (size_t i = 0; i < samples; ++i) {
    const size_t rank = one_rank ? ranks - 1 : random() % ranks;
    const auto length = static_cast<int64_t>(random() % 3 == 0 ? 0 : random() % 50);
    deal[rank].emplace_back(number, length);
    number += static_cast<int64_t>(1 + random() % 3);
  }
  if (random() % 2 == 0) std::ranges::reverse(deal[0]);  // not in the order of numbers
  return deal;
}

void expect_same_samples(const Deal& deal, const Result& result) {
  Samples before, after;
  size_t held = 0, smallest = 1000, largest = 0;
  for (const auto& rank : deal) before.insert(rank.begin(), rank.end());
  for (const Samples& rank : result.ranks) {
    after.insert(rank.begin(), rank.end());
    held += rank.size();
    smallest = std::min(smallest, rank.size());
    largest = std::max(largest, rank.size());
  }
  EXPECT_EQ(before, after);
  EXPECT_EQ(held, before.size());  // nobody twice
  EXPECT_LE(largest - smallest, 1u);
}

TEST(BalancerTest, EverySampleArrivesOnceWithItsContent) {
  for (const size_t ranks : {1, 2, 3, 4}) {
    std::mt19937_64 random(ranks);
    std::vector<Deal> deals;
    for (int i = 0; i < 40; ++i) deals.push_back(random_deal(random, ranks));
    const std::vector<Result> results = balance(deals, {});
    for (size_t d = 0; d < deals.size(); ++d) {
      SCOPED_TRACE(testing::Message() << ranks << " ranks, deal " << d);
      expect_same_samples(deals[d], results[d]);
    }
  }
}

TEST(BalancerTest, EvensOutAndSaysSo) {
  // One rank has all the long samples.
  Deal deal(4);
  for (int64_t i = 0; i < 32; ++i) {
    deal[static_cast<size_t>(i / 8)].emplace_back(i, i < 8 ? 400 + i : 10 + i);
  }
  const Result r = balance({deal}, {}).front();
  for (const BalanceStats& s : r.stats) {
    EXPECT_GT(s.before.over_mean, 3);
    EXPECT_LT(s.after.over_mean, 1.02);
    EXPECT_LT(s.after.spread, s.before.spread);
    EXPECT_EQ(s.samples, 32);
    EXPECT_GT(s.samples_moved, 0);
    int64_t before = 0, after = 0;
    for (const int64_t t : s.tokens_before) before += t;
    for (const int64_t t : s.tokens_after) after += t;
    EXPECT_EQ(before, after);
    EXPECT_EQ(s.tokens_before[0], 8 + 8 * 400 + 28);
  }
  // The statistics of tokens are those of the batches.
  for (size_t q = 0; q < r.ranks.size(); ++q) {
    int64_t tokens = 0;
    for (const auto& [number, length] : r.ranks[q]) tokens += length + 1;
    EXPECT_EQ(r.stats[0].tokens_after[q], tokens);
  }
  EXPECT_GT(r.stats[0].bytes_sent, 0);
}

TEST(BalancerTest, NothingMovesWhenAllIsEven) {
  Deal deal(3);
  for (int64_t i = 0; i < 12; ++i) deal[static_cast<size_t>(i / 4)].emplace_back(i, 20 + i % 4);
  const Result r = balance({deal}, {}).front();
  for (size_t q = 0; q < deal.size(); ++q) {
    EXPECT_LE(r.stats[q].after.over_mean, 1.005);
    EXPECT_EQ(r.stats[q].samples_moved, 0);
    EXPECT_EQ(r.ranks[q].begin()->first, static_cast<int64_t>(4 * q));
  }
}

TEST(BalancerTest, NoSamplesAnywhere) {
  const Deal nothing(3);
  for (const PartitionMode mode : {PartitionMode::kRefined, PartitionMode::kReference}) {
    BalanceConfig config;
    config.mode = mode;
    const Result r = balance({nothing, nothing}, config).front();
    EXPECT_EQ(r.stats[0].samples, 0);
    EXPECT_EQ(r.stats[0].after.over_mean, 1);
  }
}

/// A store that was opened again has its maps elsewhere.
TEST(BalancerTest, AttributesAreThoseOfTheBatchAtHand) {
  const std::vector<std::vector<int32_t>> maps = {{1, 2}, {3, 4, 5}, {6}};
  comm::run_as_threads(2, kTimeout, [&](comm::World& world) {
    const auto group = world.open("balance");
    Balancer balancer({}, shape(), kWeights, *group);
    for (const std::vector<int32_t>& map : maps) {
      Batch batch = make_batch();
      batch.add_attribute("artist", 1, map);
      for (int64_t i = 0; i < 6; ++i) {
        add_sample(batch, 2 * i + world.rank(), world.rank() == 0 ? 40 : 1);
      }
      EXPECT_GT(balancer.balance(batch).samples_moved, 0);
      EXPECT_EQ(batch.attributes[0].values.data(), map.data());
    }
  });
}

TEST(BalancerTest, ReferenceModeGivesTheHeaviestSetToTheFirstRank) {
  BalanceConfig config;
  config.mode = PartitionMode::kReference;
  config.cost = CostKind::kReference;
  Deal deal(2);
  const int64_t lengths[] = {8, 7, 6, 5, 4, 3, 2, 1};
  for (int64_t i = 0; i < 8; ++i) deal[static_cast<size_t>(i / 4)].emplace_back(i, lengths[i]);
  const Result r = balance({deal}, config).front();
  std::vector<int64_t> loads;
  for (const Samples& rank : r.ranks) {
    int64_t& load = loads.emplace_back(0);
    for (const auto& [number, length] : rank) load += reference_cost(length, 1, 1);
  }
  EXPECT_GE(loads[0], loads[1]);
}

/// Rank 1 has a batch that `change` has been applied to: nobody goes on.
void expect_refused_by_all(const std::function<void(Batch&)>& change) {
  std::mutex lock;
  int refused = 0;
  comm::run_as_threads(3, kTimeout, [&](comm::World& world) {
    const auto group = world.open("balance");
    Balancer balancer({}, shape(), kWeights, *group);
    Batch batch = make_batch();
    if (world.rank() == 1) change(batch);
    const auto error = base::error_of([&] { balancer.balance(batch); });
    const std::lock_guard hold(lock);
    refused += error && error->code() == ErrorCode::kPeer;
  });
  EXPECT_EQ(refused, 3);
}

TEST(BalancerTest, BatchesOfDifferentSchemasAreRefusedByAll) {
  expect_refused_by_all([](Batch& batch) { batch.add_column("extra", 0); });
  expect_refused_by_all([](Batch& batch) { batch.add_float_column("extra", 0); });
}

TEST(BalancerTest, AColumnOfAnotherTypeIsAnotherSchema) {
  expect_refused_by_all([](Batch& batch) {
    batch.float_columns.pop_back();
    batch.add_column("age", 0);
  });
}

TEST(BalancerTest, BatchesOfDifferentStepsAreRefusedByAll) {
  expect_refused_by_all([](Batch& batch) { ++batch.global_samples; });
}

}  // namespace
}  // namespace segue::balance
