#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/exec.h"

namespace segue::ops {

enum class Init { kZeros, kOnes, kUniform, kNormal };

/// Fills a tensor with values that depend on (seed, name, row, column) alone: uniform in
/// [-bound, bound), or normal with standard deviation `bound`. Columns are the last dimension, rows
/// all others (a flat [n] is one row); `first_row` is the global number of row 0, so that a shard
/// gets the rows it owns.
void initialize(const Tensor& to, Init kind, double bound, uint64_t seed, std::string_view name,
                int64_t first_row = 0);

}  // namespace segue::ops
