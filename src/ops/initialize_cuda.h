#pragma once

#include <cstdint>

#include "ops/initialize.h"

namespace segue::ops::cuda {

/// Finished on return.
void initialize(const Tensor& matrix, const RowInit& init);
void initialize_part(const Tensor& to, const RowInit& init, const Tensor& row_numbers,
                     int64_t first_column);
void initialize_new_rows(const Exec& exec, const RowInit& init, const Tensor& keys,
                         const Tensor& slots, const Tensor& is_new, const Tensor& weights,
                         const Tensor& state);
void initialize_missing_rows(const Exec& exec, const RowInit& init, const Tensor& keys, bool mixed,
                             const Tensor& slots, const Tensor& to);

}  // namespace segue::ops::cuda
