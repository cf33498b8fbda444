#pragma once

#include <cstdint>

#include "ops/initialize.h"

namespace segue::ops::cuda {

/// Finished on return.
void initialize(const Tensor& matrix, const RowInit& init);
void initialize_part(const Tensor& to, const RowInit& init, const Tensor& row_numbers,
                     int64_t first_column, const Stream* stream);
void initialize_new_rows(const Exec& exec, std::span<const NewRows> tables);
void initialize_missing_rows(const Exec& exec, std::span<const MissingRows> tables);

}  // namespace segue::ops::cuda
