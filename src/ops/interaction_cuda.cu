#include "ops/cuda_forms.h"
#include "ops/kernel.cuh"

namespace segue::ops::cuda {
namespace {

/// f(row) for the rows of this warp.
template <class F>
__device__ void for_each_row(int64_t rows, F&& f) {
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kWarpsPerBlock;
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp;
       r < rows; r += warps) {
    f(r);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    dot_forward_kernel(Matrix<const T> x, int64_t rows, int count, int dim, Matrix<T> y) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for_each_row(rows, [&](int64_t r) {
    const T* vectors = x.row(r);
    T* out = y.row(r);
    for (int c = lane; c < dim; c += kWarp) out[c] = vectors[c];
    out += dim;
    for (int i = 1; i < count; ++i) {
      for (int j = 0; j < i; ++j, ++out) {
        float sum = 0;
        for (int c = lane; c < dim; c += kWarp) {
          sum += to_float(vectors[i * dim + c]) * to_float(vectors[j * dim + c]);
        }
        sum = warp_sum(sum);
        if (lane == 0) *out = from_float<T>(sum);
      }
    }
  });
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    dot_backward_kernel(Matrix<const T> dy, Matrix<const T> x, int64_t rows, int count, int dim,
                        Matrix<T> dx) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for_each_row(rows, [&](int64_t r) {
    const T *vectors = x.row(r), *of_copy = dy.row(r), *of_pairs = of_copy + dim;
    for (int i = 0; i < count; ++i) {
      for (int c = lane; c < dim; c += kWarp) {
        float sum = i == 0 ? to_float(of_copy[c]) : 0.f;
        for (int j = 0; j < count; ++j) {
          if (j == i) continue;
          sum += to_float(of_pairs[dot_pair(i, j)]) * to_float(vectors[j * dim + c]);
        }
        dx.row(r)[i * dim + c] = from_float<T>(sum);
      }
    }
  });
}

}  // namespace

void dot_interaction_forward(const Exec& exec, const Tensor& x, int64_t count, const Tensor& y) {
  const int64_t rows = x.size(0);
  if (rows == 0) return;
  dispatch_type(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    dot_forward_kernel<T><<<row_blocks(rows, 4 * kMaxBlocks), kThreads, 0, stream_of(exec)>>>(
        input_of<T>(x), rows, static_cast<int>(count), static_cast<int>(x.size(1) / count),
        matrix_of<T>(y));
    check_launch();
  });
}

void dot_interaction_backward(const Exec& exec, const Tensor& dy, const Tensor& x, int64_t count,
                              const Tensor& dx) {
  const int64_t rows = x.size(0);
  if (rows == 0) return;
  dispatch_type(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    dot_backward_kernel<T><<<row_blocks(rows, 4 * kMaxBlocks), kThreads, 0, stream_of(exec)>>>(
        input_of<T>(dy), input_of<T>(x), rows, static_cast<int>(count),
        static_cast<int>(x.size(1) / count), matrix_of<T>(dx));
    check_launch();
  });
}

}  // namespace segue::ops::cuda
