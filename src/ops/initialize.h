#pragma once

#include <cstdint>
#include <string_view>

#include "tensor/exec.h"

namespace segue::ops {

enum class Init { kZeros, kOnes, kUniform, kNormal };

/// Fills a tensor with values that depend on (seed, name, row, column) alone: uniform in
/// [-bound, bound), or normal with standard deviation `bound`. Columns are the last dimension, rows
/// all others (a flat [n] is one row).
void initialize(const Tensor& to, Init kind, double bound, uint64_t seed, std::string_view name);

/// The same for some rows and columns of a larger whole: row i is row row_numbers[i] (i64, where
/// the tensor is), columns count from `first_column`. Uniform.
void initialize_part(const Tensor& to, double bound, uint64_t seed, std::string_view name,
                     const Tensor& row_numbers, int64_t first_column);

}  // namespace segue::ops
