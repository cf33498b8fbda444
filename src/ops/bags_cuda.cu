#include "ops/cuda_forms.h"
#include "ops/kernel.cuh"

namespace segue::ops::cuda {
namespace {

/// A warp owns a bag; ids are added one after the other, as on the CPU.
template <class From, class To, int kW>
__global__ void __launch_bounds__(kThreads)
    bag_sum_kernel(Matrix<const From> from, int64_t from_rows, IndexView index, IndexView offsets,
                   int64_t bags, int columns, Matrix<To> y) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t b = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
       b < bags; b += warps) {
    const int64_t begin = offsets[b], end = offsets[b + 1];
    for (int c = static_cast<int>(threadIdx.x % kWarp) * kW; c < columns; c += kWarp * kW) {
      float sum[kW] = {};
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = index[i];
        if (row == -1) continue;
        require_row(row, from_rows);
        float value[kW];
        load(from.row(row) + c, value);
#pragma unroll
        for (int j = 0; j < kW; ++j) sum[j] += value[j];
      }
      store(y.row(b) + c, sum);
    }
  }
}

}  // namespace

void bag_sum_forward(const Exec& exec, const Tensor& from, const Tensor& index,
                     const Tensor& offsets, const Tensor& y) {
  const int64_t bags = y.size(0), columns = y.size(1);
  if (bags == 0 || columns == 0) return;
  dispatch_type(from.dtype, [&](auto from_zero) {
    dispatch_type(y.dtype, [&](auto to_zero) {
      using From = decltype(from_zero);
      using To = decltype(to_zero);
      const auto kernel = can_vectorize(columns, {from, y}) ? bag_sum_kernel<From, To, 8>
                                                            : bag_sum_kernel<From, To, 1>;
      kernel<<<row_blocks(bags, 4 * kMaxBlocks), kThreads, 0, stream_of(exec)>>>(
          input_of<From>(from), from.size(0), index_of(index), index_of(offsets), bags,
          static_cast<int>(columns), matrix_of<To>(y));
      check_launch();
    });
  });
}

}  // namespace segue::ops::cuda
