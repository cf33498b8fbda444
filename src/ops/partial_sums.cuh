#pragma once

#include "ops/kernel.cuh"

namespace segue::ops::cuda {

/// to[j] += partials[0][j] + partials[1][j] + ..., added in double in fixed pieces. `part` columns
/// are joined into one element of `to` where a parameter belongs to several of them.
void fold_partials(cudaStream_t stream, const float* partials, int64_t rows, int64_t stride,
                   float* to, int64_t n, int64_t part = 1);

}  // namespace segue::ops::cuda
