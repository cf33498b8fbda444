#include "ops/cuda_forms.h"
#include "ops/partial_sums.cuh"

namespace segue::ops::cuda {
namespace {

constexpr int kSlices = 8;  // of the partial rows; each is added in order, then the slices are

__global__ void fold_kernel(const float* partials, int64_t rows, int64_t stride, float* to,
                            int64_t n, int64_t part) {
  __shared__ double slice_sums[kSlices][kWarp];
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  const int64_t each = (rows + kSlices - 1) / kSlices;
  const int64_t begin = threadIdx.y * each;
  const int64_t end = begin + each < rows ? begin + each : rows;
  double sum = 0;
  if (j < n) {
    for (int64_t r = begin; r < end; ++r) {
      const float* row = partials + r * stride + j * part;
      if (part == 1) {
        sum += row[0];
      } else {
        for (int64_t c = 0; c < part; ++c) sum += row[c];
      }
    }
  }
  slice_sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= n) return;
  double total = 0;
  for (int s = 0; s < kSlices; ++s) total += slice_sums[s][threadIdx.x];
  to[j] += static_cast<float>(total);
}

constexpr int kSumWidth = 256;  // columns of one block

/// partials[blockIdx.x][column] = sum over this block's rows.
template <class T, int kW>
__global__ void __launch_bounds__(kThreads)
    column_partials(Matrix<const T> x, int64_t rows, int columns, float* partials) {
  using Piece = Lanes<kW, kSumWidth / kWarp / kW>;
  __shared__ float sums[kSumWidth];
  const int base = static_cast<int>(blockIdx.y) * kSumWidth;
  const int count = min(kSumWidth, columns - base);
  Piece sum{};
  const BlockRows block(rows);
#pragma unroll 4
  for (int64_t r = block.begin; r < block.end; r += kWarpsPerBlock) {
    Piece value;
    value.load_row(x.row(r) + base, count);
    Piece::for_each(count, [&](int i, int) {
      for (int j = 0; j < kW; ++j) sum.v[i][j] += value.v[i][j];
    });
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int w = 0; w < kWarpsPerBlock; ++w) {
    if (warp == w) {
      Piece::for_each(count, [&](int i, int c) {
        for (int j = 0; j < kW; ++j) sums[c + j] = (w == 0 ? 0.f : sums[c + j]) + sum.v[i][j];
      });
    }
    __syncthreads();
  }
  const auto c = static_cast<int>(threadIdx.x);
  if (c < count) partials[static_cast<int64_t>(blockIdx.x) * columns + base + c] = sums[c];
}

}  // namespace

void fold_partials(cudaStream_t stream, const float* partials, int64_t rows, int64_t stride,
                   float* to, int64_t n, int64_t part) {
  if (n == 0 || rows == 0) return;
  const dim3 threads(kWarp, kSlices);
  fold_kernel<<<static_cast<unsigned>(divide_up(n, kWarp)), threads, 0, stream>>>(
      partials, rows, stride, to, n, part);
  check_launch();
}

void column_sum(const Exec& exec, const Tensor& x, const Tensor& out) {
  SEGUE_ASSERT(x.rank == 2 && out.is_contiguous() && out.elements() == x.size(1),
               "column_sum: out must be a vector of the columns of x");
  const int64_t rows = x.size(0), columns = x.size(1);
  if (rows == 0 || columns == 0) return;
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const int64_t blocks = row_blocks(rows, kPartialBlocks);
  const Tensor partials = exec.arena->tensor(DType::kF32, {blocks, columns});
  const dim3 grid(static_cast<unsigned>(blocks),
                  static_cast<unsigned>(divide_up(columns, kSumWidth)));
  dispatch_type(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const Matrix<const T> from = input_of<T>(x);
    float* to = device_ptr<float>(partials);
    if (can_vectorize(columns, {x})) {
      column_partials<T, 8>
          <<<grid, kThreads, 0, stream>>>(from, rows, static_cast<int>(columns), to);
    } else {
      column_partials<T, 1>
          <<<grid, kThreads, 0, stream>>>(from, rows, static_cast<int>(columns), to);
    }
    check_launch();
  });
  fold_partials(stream, device_ptr<float>(partials), blocks, columns, device_ptr<float>(out),
                columns);
}

}  // namespace segue::ops::cuda
