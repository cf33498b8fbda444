#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace segue::balance {

enum class PartitionMode { kRefined, kReference };

struct PartitionOptions {
  /// kRefined: nothing moves that is even already; else Karmarkar-Karp, then swaps between the
  /// heaviest and other ranks, then sets are given to the ranks that already hold most of them.
  /// kReference: Karmarkar-Karp alone, heaviest set first.
  PartitionMode mode = PartitionMode::kRefined;
  /// Swaps end when the heaviest rank is this near to the mean.
  double good_enough = 1.005;
};

/// How uneven loads are.
struct Imbalance {
  double over_mean = 1;  // heaviest / mean: what it costs in time; 1 when there is no load
  double spread = 0;     // (heaviest - lightest) / heaviest
};
Imbalance imbalance(std::span<const int64_t> loads);

/// Partitions samples among ranks: every rank gets the same number of them, or one less, and nearly
/// the same cost. `costs[i]` belongs to sample i, which is real whatever it costs and lies on rank
/// `origins[i]` now; ranks may hold any number, also none. The result depends on the arguments
/// alone: [rank] -> samples, ascending. Error(kInvalidArgument): no ranks, an origin that is none.
std::vector<std::vector<int64_t>> partition(std::span<const int64_t> costs,
                                            std::span<const int32_t> origins, int64_t ranks,
                                            const PartitionOptions& options = {});

}  // namespace segue::balance
