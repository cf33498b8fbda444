#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace segue::balance {

enum class Counts { kEqual, kFree };

/// Largest differencing method (Karmarkar and Karp, 1982): `sets` lists of item numbers whose sums
/// of `weights` are nearly equal, heaviest first. kEqual: every list has n / sets items; n must be
/// a multiple. Equal weights are told apart by their numbers, so that every rank gets the same
/// answer. Lists are in the order in which items were put together. Weights are 0 or more.
/// Error(kInvalidArgument) for sets <= 0, an uneven n, a negative weight.
std::vector<std::vector<int64_t>> karmarkar_karp(std::span<const int64_t> weights, int64_t sets,
                                                 Counts counts = Counts::kEqual);

}  // namespace segue::balance
