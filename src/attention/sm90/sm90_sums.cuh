#pragma once

#include <cstdint>

#include "attention/hopper.cuh"
#include "attention/mma.cuh"
#include "attention/sm90/sm90_store.cuh"
#include "attention/sm90/sm90_work.cuh"

/// Sums over the rows of a tile of results, made where the tile is: what a bias in front of
/// attention gets as its gradient, without reading the results again.
namespace segue::attention::hopper {

/// Where the sums of one result go: [CudaPlan::sum_rows, heads * dim], or nowhere.
struct ResultSums {
  float* data;
  int64_t stride;

  __device__ bool wanted() const { return data != nullptr; }
  __device__ float* at(int row, int column) const { return data + row * stride + column; }
};
inline ResultSums result_sums(const Tensor& t) {
  return {static_cast<float*>(t.data), t ? t.stride(0) : 0};
}

/// Sums over this warp's 16 of 64 staged rows of kTile columns, by tensor cores: the left operand
/// has ones in row i (i + 8 for the second panel of a pair) for columns 8 i .. 8 i + 7, so that one
/// small result holds all sums of a pair. Lane l has columns 2 l and 2 l + 1 of every panel.
template <class T, int kTile>
class WarpRowSums {
 public:
  /// Rows from `rows` on (counted in the 64) do not count.
  __device__ explicit WarpRowSums(int rows) {
    constexpr uint32_t kOne = kIsHalf<T> ? 0x3c00 : 0x3f80;
    const int first = static_cast<int>(threadIdx.x >> 5 & 3) * 16;
    const int row = first + 2 * static_cast<int>(threadIdx.x & 3);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      ones_[i] = (row + 8 * i < rows ? kOne : 0) | (row + 8 * i + 1 < rows ? kOne << 16 : 0);
    }
  }

  __device__ void add_panel(const void* panel, int number) {
    const int half = number % 2;
    const int lane = threadIdx.x & 31;
    const int row = static_cast<int>(threadIdx.x >> 5 & 3) * 16 + (lane & 15);
    uint32_t b[4][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      mma::load_4_transposed(b[k],
                             chunk_address<64>(shared_address(panel), row, 2 * k + (lane >> 4)));
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      uint32_t a[4] = {0, 0, 0, 0};
      const bool here = lane >> 2 == i;
      a[half] = here ? ones_[0] : 0;
      a[half + 2] = here ? ones_[1] : 0;
      mma::multiply_add<T>(parts_[number / 2][i % 4], a, b[i / 2][i % 2 * 2],
                           b[i / 2][i % 2 * 2 + 1]);
    }
  }

  /// To this warp's floats, one for each column.
  __device__ void store(float* to) const {
    const int lane = threadIdx.x & 31;
#pragma unroll
    for (int panel = 0; panel < kTile / kPanelColumns; ++panel) {
      const float(&p)[4][4] = parts_[panel / 2];
      const auto total = [&](int i) { return p[0][i] + p[1][i] + (p[2][i] + p[3][i]); };
      *reinterpret_cast<float2*>(to + panel * kPanelColumns + 2 * lane) =
          make_float2(total(panel % 2 * 2), total(panel % 2 * 2 + 1));
    }
  }

 private:
  static constexpr int kPairs = (kTile / kPanelColumns + 1) / 2;
  float parts_[kPairs][4][4] =
      {};             // one of 4 would be a chain of products that wait for each other
  uint32_t ones_[2];  // where this lane's part of the left operand has ones
};

/// store_rows, and the sums of the rows as they are stored if they are `wanted`.
template <class T, int kCount>
__device__ inline void store_and_sum_rows(const float (&d)[kCount], float scale, void* staging,
                                          T* to, int64_t stride, int rows, int columns, bool wanted,
                                          WarpRowSums<T, 2 * kCount>& sums) {
  store_rows(d, scale, staging, to, stride, rows, columns, [&](int panel) {
    if (wanted) sums.add_panel(staging, panel);
  });
}

/// The sums of a warpgroup's four warps: leave() by all of them, then named_sync, then store(). In
/// between they lie in the panel that the rows went through. kTile columns of which a head may
/// have fewer.
template <int kTile>
struct StagedSums {
  static constexpr int kWarpFloats = kStagingBytes / 4 / static_cast<int>(sizeof(float));
  float* panel;

  __device__ explicit StagedSums(void* staging) : panel(static_cast<float*>(staging)) {}
  template <class T>
  __device__ void leave(const WarpRowSums<T, kTile>& sums) const {
    sums.store(panel + (threadIdx.x >> 5 & 3) * kWarpFloats);
  }
  __device__ void store(const ResultSums& to, int row, int head, int columns) const {
    for (int column = static_cast<int>(threadIdx.x) % kWarpgroup; column < columns;
         column += kWarpgroup) {
      float sum = panel[column];
#pragma unroll
      for (int w = 1; w < 4; ++w) sum += panel[w * kWarpFloats + column];
      *to.at(row, head * columns + column) = sum;
    }
  }
};

/// What both kernels of dq end a tile with: its rows, and their sums if those are wanted, to row
/// sum_row(). `barrier` is the warpgroup's own.
template <class T, int kCount, class SumRow>
__device__ inline void store_query_rows(const float (&dq)[kCount], float scale, void* staging,
                                        T* to, int64_t stride, int rows, int columns,
                                        const ResultSums& sums_to, int barrier, int head,
                                        const SumRow& sum_row) {
  const bool wanted = sums_to.wanted();
  WarpRowSums<T, 2 * kCount> sums(rows);
  if (wanted) named_sync(barrier, kWarpgroup);  // the sums of the last tile are read
  store_and_sum_rows(dq, scale, staging, to, stride, rows, columns, wanted, sums);
  if (!wanted) return;
  const StagedSums<2 * kCount> staged(staging);
  staged.leave(sums);
  named_sync(barrier, kWarpgroup);
  staged.store(sums_to, sum_row(), head, columns);
}

}  // namespace segue::attention::hopper
