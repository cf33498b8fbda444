#include "sparse/planner_loads.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/error.h"

namespace segue::sparse {
namespace {

constexpr double kIdBytes = 8;
// One row asked for, in a Ticket: its slot, that slot among the distinct ones, and its place there.
constexpr double kRequestBytes = 8 + 8 + 4;
// Who asks whom for how many rows is known on average only.
constexpr double kExchangeMargin = 2;
// One that is computed, the next, and one of an evaluation between them.
constexpr double kBatchesInCache = 3;

double index_bytes(const TableDemand& d, int64_t rows) {
  return d.dynamic ? static_cast<double>(rows * kIndexBytesPerRow) : 0;
}

double row_bytes(const TableDemand& d, int64_t value_bytes) {
  return static_cast<double>(d.dim * value_bytes);
}

}  // namespace

Tier tier_of(TierChoice choice) {
  switch (choice) {
    case TierChoice::kHost:
      return Tier::kHost;
    case TierChoice::kCached:
      return Tier::kCached;
    case TierChoice::kFile:
      return Tier::kFile;
    default:
      return Tier::kDevice;
  }
}

void check_input(const PlannerInput& input) {
  SEGUE_ASSERT(!input.tables.empty(), "there is something to plan");
  if (input.ranks < 1 || input.ranks_per_machine < 1) {
    fail(ErrorCode::kInvalidArgument,
         fmt::format("a plan needs at least one rank and one rank per machine, not {} and {}",
                     input.ranks, input.ranks_per_machine));
  }
  for (const TableDemand& d : input.tables) {
    const bool elsewhere = tier_of(d.placement) != Tier::kDevice;
    if (elsewhere && d.sharding == Sharding::kReplicated) {
      fail(ErrorCode::kConfig,
           fmt::format("table `{}` asks for a place outside of device memory, where replicated "
                       "tables cannot lie",
                       d.name));
    }
  }
}

double expected_distinct(double lookups, int64_t rows, double exponent) {
  if (lookups <= 0 || rows <= 0) return 0;
  const auto n = static_cast<double>(rows);
  // Ids in groups that are nearly alike: one by one at first, then in steps of 1 %.
  constexpr double kStep = 1.01;
  const auto groups = [&](auto visit) {
    for (double first = 1; first <= n;) {
      const double last = std::min(n, std::max(first, std::floor(first * kStep)));
      visit(last - first + 1, std::pow((first + last) / 2, -exponent));
      first = last + 1;
    }
  };
  double mass = 0, distinct = 0;
  groups([&](double ids, double weight) { mass += ids * weight; });
  groups(
      [&](double ids, double weight) { distinct -= ids * std::expm1(-lookups * weight / mass); });
  return std::min({distinct, lookups, n});
}

double table_bytes(const PlannerInput& input, size_t table) {
  const TableDemand& d = input.tables[table];
  const int64_t values = d.dim + ops::row_state_size(d.optimizer, d.dim);
  return static_cast<double>(d.rows) * static_cast<double>(values * input.value_bytes) +
         index_bytes(d, d.rows);
}

double table_traffic(const PlannerInput& input, size_t table) {
  const TableDemand& d = input.tables[table];
  return d.distinct * (kIdBytes + row_bytes(d, input.forward_wire_bytes) +
                       row_bytes(d, input.backward_wire_bytes));
}

int64_t least_cache_rows(const PlannerInput& input, size_t table, Sharding sharding,
                         int64_t owners) {
  const TableDemand& d = input.tables[table];
  const bool by_rows = sharding == Sharding::kRow || sharding == Sharding::kTableRow;
  const double parts = by_rows ? static_cast<double>(owners) : 1;
  const double asked = kBatchesInCache * d.distinct * input.ranks / parts;
  const double rows = std::ceil(static_cast<double>(d.rows) / parts);
  return std::max<int64_t>(1, std::llround(std::min(std::ceil(asked), rows)));
}

void add_memory(const PlannerInput& input, size_t table, const TablePlacement& placement,
                PlannedTables& loads) {
  const TableDemand& d = input.tables[table];
  for (const int r : placement.ranks) {
    const LocalShard shard = local_shard(placement, d.rows, d.dim, r);
    const int64_t columns = shard.columns.width();
    const auto column_bytes = static_cast<double>(shard.rows() * input.value_bytes);
    const double weights = column_bytes * static_cast<double>(columns);
    const double state =
        column_bytes * static_cast<double>(ops::row_state_size(d.optimizer, columns));
    RankLoad& load = loads.ranks[static_cast<size_t>(r)];
    const double cached = static_cast<double>(std::min(placement.cache_rows, shard.rows())) /
                          static_cast<double>(std::max<int64_t>(1, shard.rows()));
    const double on_device = placement.tier == Tier::kDevice ? 1 : cached;
    // The index lies with all rows, or on the host.
    const double index = index_bytes(d, shard.rows());
    load.tables += on_device * weights;
    load.optimizer += on_device * state;
    (placement.tier == Tier::kDevice ? load.tables : load.host) += index;
    if (placement.tier == Tier::kFile) load.file += weights + state;
    if (placement.tier == Tier::kHost || placement.tier == Tier::kCached) {
      load.host += weights + state;
    }
    loads.tables[table].bytes += weights + state + index;
  }
}

/// Every rank asks every owner for its share of the distinct rows, gets them, and sends as many
/// gradients back. What a rank asks of itself does not travel, yet takes room in the buffers, as do
/// the sums of gradients at the owner.
void add_exchange(const PlannerInput& input, size_t table, const TablePlacement& placement,
                  PlannedTables& loads) {
  if (input.ranks == 1) return;
  const TableDemand& d = input.tables[table];
  const double ranks = input.ranks, others = input.ranks - 1;
  const double forward = d.distinct * row_bytes(d, input.forward_wire_bytes);
  const double backward = d.distinct * row_bytes(d, input.backward_wire_bytes);
  const double sums = d.distinct * row_bytes(d, input.value_bytes);
  const double requests = kExchangeMargin * ranks * d.distinct * kRequestBytes * input.tickets;
  if (placement.sharding == Sharding::kReplicated) {  // gradients go to everyone
    const double each = others * (d.distinct * kIdBytes + backward);
    for (RankLoad& r : loads.ranks) {
      r.sent += each;
      r.received += each;
      r.exchange += kExchangeMargin * ranks * (backward + sums);
      r.requests += requests;
    }
    loads.tables[table].sent += ranks * each;
    return;
  }
  const bool columns = placement.sharding == Sharding::kColumn;
  const double ids =
      d.distinct * kIdBytes * (columns ? static_cast<double>(placement.ranks.size()) : 1);
  for (RankLoad& r : loads.ranks) {
    r.sent += ids + backward;
    r.received += forward;
    r.exchange += kExchangeMargin * backward;
  }
  for (const int owner : placement.ranks) {
    RankLoad& r = loads.ranks[static_cast<size_t>(owner)];
    const LocalShard shard = local_shard(placement, d.rows, d.dim, owner);
    const double share =
        columns ? static_cast<double>(shard.columns.width()) / static_cast<double>(d.dim)
                : 1.0 / static_cast<double>(placement.ranks.size());
    const double own_ids = ids / static_cast<double>(placement.ranks.size());
    r.sent += others * share * forward - own_ids - share * backward;
    r.received += others * (own_ids + share * backward) - share * forward;
    r.exchange += kExchangeMargin * ranks * share * (backward + sums);
    r.requests += columns ? requests : requests / static_cast<double>(placement.ranks.size());
    loads.tables[table].sent += others * (own_ids + share * (forward + backward));
  }
}

}  // namespace segue::sparse
