#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ops/optimizer.h"
#include "sparse/shard_plan.h"
#include "sparse/table.h"
#include "tensor/buffer.h"

namespace segue::sparse {

/// What a row in a cache takes of host memory, beside its place behind the cache.
inline constexpr int64_t kCacheIndexBytesPerRow = 40;

/// What a planner must know about one table.
struct TableDemand {
  std::string name;
  int64_t rows = 0, dim = 0;
  ops::RowOptimizer optimizer = ops::RowOptimizer::kRowwiseAdagrad;
  Sharding sharding = Sharding::kAuto;
  TierChoice placement = TierChoice::kAuto;
  double cache_share = 0;  // of its rows, where it does not lie on the device; 0: as planned
  bool dynamic = false;    // `rows` are the most that it will have
  double lookups = 0;      // ids of one rank's batch
  double distinct = 0;     // different ones among them: these travel
};

struct PlannerInput {
  std::vector<TableDemand> tables;
  int64_t value_bytes = 4;  // of weights and optimizer state
  int64_t forward_wire_bytes = 4, backward_wire_bytes = 4;
  int tickets = 0;  // of batches in flight whose requests have a copy on the device
  int ranks = 1;
  int ranks_per_machine = 8;  // ranks 0 ... m - 1 share a machine, and so on
  double device_bytes = 0;    // of one rank; 0: not known, everything fits
  double host_bytes = 0;      // of one rank; 0: only tables that ask for it lie in host memory
  bool files = false;         // what fits neither may lie in files

  /// What every rank's device holds beside tables.
  struct Fixed {
    Purpose purpose = Purpose::kScratch;
    double bytes = 0;
    std::string knob;  // what makes it smaller, for advice
  };
  std::vector<Fixed> fixed;
};

/// One rank's memory and traffic.
struct RankLoad {
  double tables = 0, optimizer = 0;  // on the device, caches included
  double exchange = 0;               // room for rows and gradients on their way, on the device
  double requests = 0;               // which rows they are, on the device
  double fixed = 0;
  double host = 0;  // tables and their optimizer state in host memory, once touched, and indices
  double file = 0;  // the same in files
  double sent = 0, received = 0;  // bytes of one step

  double device() const { return tables + optimizer + exchange + requests + fixed; }
  double traffic() const { return sent + received; }
};

struct TableLoad {
  double bytes = 0;  // weights and optimizer state of all ranks
  double sent = 0;   // by all ranks in one step
};

/// A plan and what it means. It depends on the input alone, so ranks that plan with the same input
/// agree.
struct PlannedTables {
  ShardPlan plan;
  std::vector<RankLoad> ranks;
  std::vector<TableLoad> tables;
  /// Bytes that the fullest rank lacks on its device and in host memory; both 0: it fits.
  double missing_device = 0, missing_host = 0;
  std::vector<std::string> advice;  // of a plan that does not fit: what would make it

  bool fits() const { return missing_device <= 0 && missing_host <= 0; }
  int fullest() const;  // rank with most bytes on its device
};

/// Copies of tiny tables everywhere; the rest whole on one rank each as long as that loads no rank
/// more than others, in bytes or traffic; rows split over a machine or all ranks otherwise.
/// What the tables ask for is obeyed. Every auto table is split over all ranks before a plan is
/// called too big; then those whose rows are needed least per byte go to host memory, or to files,
/// and caches share the device memory that is left. Error(kConfig): contradictions.
PlannedTables plan_tables(const PlannerInput& input);

/// Different ids among `lookups` draws by Zipf's law over `rows` ids (exponent 0: all alike).
double expected_distinct(double lookups, int64_t rows, double exponent);

std::string_view to_string(Sharding sharding);
std::string_view to_string(Tier tier);

/// Where every table lies as one line without reasons, for ranks to compare: equal plans have equal
/// texts.
std::string to_text(const ShardPlan& plan);

}  // namespace segue::sparse
