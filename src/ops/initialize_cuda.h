#pragma once

#include <cstdint>

#include "ops/initialize.h"

namespace segue::ops::cuda {

/// All kinds but kNormal, with the bits of the CPU form; finished on return.
void initialize(const Tensor& matrix, Init kind, double bound, uint64_t seed, uint64_t name_hash);
void initialize_part(const Tensor& to, double bound, uint64_t seed, uint64_t name_hash,
                     const Tensor& row_numbers, int64_t first_column);

}  // namespace segue::ops::cuda
