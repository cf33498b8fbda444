#include "ops/cuda_forms.h"
#include "ops/partial_sums.cuh"

namespace segue::ops::cuda {
namespace {

constexpr int kSlices = 8;  // of the partial rows; each is added in order, then the slices are

constexpr int kMaxFolds = 64;  // of one launch: their list is a kernel parameter

struct FoldList {
  DeferredSums::Fold folds[kMaxFolds];
  int32_t first_block[kMaxFolds + 1];
  int count = 0;
};

__global__ void fold_kernel(const __grid_constant__ FoldList list) {
  __shared__ double slice_sums[kSlices][kWarp];
  const auto block = static_cast<int>(blockIdx.x);
  int which = 0;
  while (block >= list.first_block[which + 1]) ++which;
  const DeferredSums::Fold& f = list.folds[which];
  const int64_t j = static_cast<int64_t>(block - list.first_block[which]) * kWarp + threadIdx.x;
  const int64_t each = (f.rows + kSlices - 1) / kSlices;
  const int64_t begin = threadIdx.y * each;
  const int64_t end = begin + each < f.rows ? begin + each : f.rows;
  double sum = 0;
  if (j < f.n) {
    const float* row = f.partials + j * f.part;
    if (f.part == 1) {
#pragma unroll 4
      for (int64_t r = begin; r < end; ++r) sum += row[r * f.stride];
    } else {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t c = 0; c < f.part; ++c) sum += row[r * f.stride + c];
      }
    }
  }
  slice_sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y != 0 || j >= f.n) return;
  double total = 0;
  for (int s = 0; s < kSlices; ++s) total += slice_sums[s][threadIdx.x];
  f.to[j] += static_cast<float>(total);
}

/// partials[blockIdx.y][column] = sum over this block's rows.
template <class T, int kW>
__global__ void __launch_bounds__(kThreads)
    column_partials(Matrix<const T> x, int64_t rows, int columns, float* partials) {
  using Piece = SumPiece<kW>;
  const int base = static_cast<int>(blockIdx.x) * kSumWidth;
  const int count = min(kSumWidth, columns - base);
  Piece sum{};
  const BlockRows block(rows, kWarp, blockIdx.y, gridDim.y);
#pragma unroll 4
  for (int64_t r = block.begin; r < block.end; r += kWarpsPerBlock) {
    Piece value;
    value.load_row(x.row(r) + base, count);
    Piece::for_each(count, [&](int i, int) {
      for (int j = 0; j < kW; ++j) sum.v[i][j] += value.v[i][j];
    });
  }
  write_column_sums<kW>(sum, base, count, columns, partials);
}

}  // namespace

void fold_partials(const Exec& exec, std::span<const DeferredSums::Fold> folds) {
  for (size_t begin = 0; begin < folds.size(); begin += kMaxFolds) {
    FoldList list;
    int64_t blocks = 0;
    for (const DeferredSums::Fold& f : folds.subspan(begin)) {
      if (list.count == kMaxFolds) break;
      list.first_block[list.count] = static_cast<int32_t>(blocks);
      list.folds[list.count++] = f;
      blocks += divide_up(f.n, kWarp);
    }
    list.first_block[list.count] = static_cast<int32_t>(blocks);
    fold_kernel<<<static_cast<unsigned>(blocks), dim3(kWarp, kSlices), 0, stream_of(exec)>>>(list);
    check_launch();
  }
}

PartialSums::PartialSums(const Exec& exec, int64_t rows, int64_t columns) : exec_(exec) {
  if (exec.sums != nullptr) memory_ = exec.sums->partials(rows, columns);
  deferred_ = static_cast<bool>(memory_);
  if (!deferred_) memory_ = exec.arena->tensor(DType::kF32, {rows, columns});
}

void PartialSums::fold(const Tensor& to, int64_t first, int64_t n, int64_t part) {
  if (!to || n == 0 || memory_.size(0) == 0) return;
  SEGUE_ASSERT(to.is_contiguous() && to.elements() == n, "sums over rows: size of the result");
  const DeferredSums::Fold fold{
      data() + first, device_ptr<float>(to), memory_.size(0), memory_.stride(0), n, part};
  if (deferred_) {
    exec_.sums->add(fold);
  } else {
    fold_partials(exec_, {&fold, 1});
  }
}

void column_sum(const Exec& exec, const Tensor& x, const Tensor& out) {
  SEGUE_ASSERT(x.rank == 2 && out.is_contiguous() && out.elements() == x.size(1),
               "column_sum: out must be a vector of the columns of x");
  const int64_t rows = x.size(0), columns = x.size(1);
  if (rows == 0 || columns == 0) return;
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const int64_t blocks = row_blocks(rows, kPartialBlocks);
  PartialSums partials(exec, blocks, columns);
  const dim3 grid(static_cast<unsigned>(divide_up(columns, kSumWidth)),
                  static_cast<unsigned>(blocks));
  dispatch_storage(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const Matrix<const T> from = input_of<T>(x);
    float* to = partials.data();
    if (can_vectorize(columns, {x})) {
      column_partials<T, 8>
          <<<grid, kThreads, 0, stream>>>(from, rows, static_cast<int>(columns), to);
    } else {
      column_partials<T, 1>
          <<<grid, kThreads, 0, stream>>>(from, rows, static_cast<int>(columns), to);
    }
    check_launch();
  });
  partials.fold(out, 0, columns);
}

}  // namespace segue::ops::cuda
