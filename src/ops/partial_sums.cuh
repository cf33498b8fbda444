#pragma once

#include "ops/cuda_forms.h"
#include "ops/kernel.cuh"

namespace segue::ops::cuda {

/// Where blocks leave sums over their rows, float [rows, columns], until they are folded: in the
/// arena (the caller's Mark), or where folds wait.
class PartialSums {
 public:
  PartialSums(const Exec& exec, int64_t rows, int64_t columns);
  float* data() const { return device_ptr<float>(memory_); }

  /// to[j] += the sum of column first + j, for n columns; see DeferredSums::Fold for `part`. An
  /// absent `to` is nobody's.
  void fold(const Tensor& to, int64_t first, int64_t n, int64_t part = 1);

 private:
  const Exec& exec_;
  Tensor memory_;
  bool deferred_ = false;
};

/// Columns that one block sums up over its rows. Blocks beside each other have the same rows, so
/// that memory is read in order.
inline constexpr int kSumWidth = 256;
/// Their part of a row in the registers of a warp, in pieces of kW columns.
template <int kW>
using SumPiece = Lanes<kW, kSumWidth / kWarp / kW>;

/// Adds the sums of this block's warps in order and writes them to partials[blockIdx.y], columns
/// base .. base + count of `columns`.
template <int kW>
__device__ void write_column_sums(const SumPiece<kW>& sum, int base, int count, int columns,
                                  float* partials) {
  __shared__ float sums[kSumWidth];
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int w = 0; w < kWarpsPerBlock; ++w) {
    if (warp == w) {
      SumPiece<kW>::for_each(count, [&](int i, int c) {
        for (int j = 0; j < kW; ++j) sums[c + j] = (w == 0 ? 0.f : sums[c + j]) + sum.v[i][j];
      });
    }
    __syncthreads();
  }
  const auto c = static_cast<int>(threadIdx.x);
  if (c < count) partials[static_cast<int64_t>(blockIdx.y) * columns + base + c] = sums[c];
}

}  // namespace segue::ops::cuda
