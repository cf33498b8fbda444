#pragma once

#include <cstdint>

#include "attention/mma.cuh"
#include "attention/target_attention_plan.cuh"
#include "ops/norm_rows.cuh"

/// Pieces of the tensor-core kernels of target attention (target_attention_mma.cu): tiles of 32
/// rows in shared memory, of which a warp has 64 columns, a slice, to itself.
///
/// x is bf16 and exact as an operand. What it is multiplied with is float, and goes in as two bf16
/// numbers, high and low, that keep 16 bits. They are neighbours: of four heads, the 8 columns of
/// an operand are head 0 high, head 0 low, head 1 high, ..., so that a lane that holds columns 2 t
/// and 2 t + 1 of a result adds them to the one of head t.
///
/// Letters: g = lane / 4 and t = lane % 4, as matrices lie in the registers of a warp.
namespace segue::attention::cuda {

using ops::cuda::kThreads;
using ops::cuda::kWarp;
using ops::cuda::Matrix;
using ops::cuda::NormArgs;

inline constexpr int kRowsAtOnce = 32;
inline constexpr int kSliceRowBytes = kSliceColumns * 2, kSliceBytes = kRowsAtOnce * kSliceRowBytes;
inline constexpr int kMostWarps = kMostSlices;
static_assert(kMostWarps == kThreads / kWarp);
inline constexpr int kStages = 2;                           // tiles on their way, or in use
inline constexpr int kScores = kRowsAtOnce * kHeadsAtOnce;  // of a tile
inline constexpr int kScoreStride = kScores + 16;  // so that pairs of threads meet no bank twice

__device__ inline int lane_id() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ inline int warp_id() { return static_cast<int>(threadIdx.x / kWarp); }
__device__ inline int warps() { return static_cast<int>(blockDim.x / kWarp); }

/// Two bf16 numbers of which x is the sum, to 16 bits; the larger one in the low half.
__device__ inline uint32_t split(float x) {
  const float high = ops::cuda::rounded<bf16>(x);
  return ops::cuda::packed<bf16>(high, x - high);
}
__device__ inline float low_half(uint32_t x) { return __uint_as_float(x << 16); }
__device__ inline float high_half(uint32_t x) { return __uint_as_float(x & 0xffff0000u); }
__device__ inline float joined(uint32_t x) { return low_half(x) + high_half(x); }

__device__ inline uint32_t load_word(uint32_t at) {
  uint32_t x;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(x) : "r"(at) : "memory");
  return x;
}
__device__ inline void store_word(uint32_t at, uint32_t x) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(at), "r"(x) : "memory");
}
__device__ inline uint4 load_words(uint32_t at) {
  uint4 x;
  asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "r"(at)
               : "memory");
  return x;
}

/// To global memory. (Left to itself the compiler makes four stores of this one.)
__device__ inline void write_words(void* to, const uint4& x) {
  asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}

/// Columns 8 chunk .. 8 chunk + 7 of a row of a slice; swizzled, so that ldmatrix meets no bank
/// twice. Chunk (c ^ x) is at this address ^ 16 x, rows 8 further down 1,024 bytes on.
__device__ inline uint32_t slice_at(uint32_t slice, int row, int chunk) {
  return slice + static_cast<uint32_t>(row * kSliceRowBytes + ((chunk ^ (row & 7)) << 4));
}
/// Where lane l finds 16 bytes of row 4 i + l / 8, from what slice_at says for i = 0.
__device__ inline uint32_t four_rows_down(uint32_t at, int i) {
  return (at ^ (i % 2 == 0 ? 0u : 64u)) + static_cast<uint32_t>(4 * i * kSliceRowBytes);
}

__device__ inline void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  mma::multiply_add<__nv_bfloat16>(d, a, b0, b1);
}

/// Shared memory of a block. `kKinds`: 1 for scores, 2 for scores and their gradients.
template <int kKinds>
struct Shared {
  uint8_t* slices;    // [stages][warps][kSliceBytes]
  float* parts;       // [warps][kinds][kScoreStride]: products of slices
  uint32_t* weights;  // [kinds][kScoreStride]: what rows are multiplied with, split
  float2* constants;  // [warps][kinds][heads]: sums over the columns of a slice, see HeadRows
  float2* totals;     // [warps][heads]: sums over rows
  float2* row_parts;  // forward: mean and squares of slices; [rows][kMostWarps]
  float2* row_terms;  // backward: terms of the rows of a tile; [rows]
  float* row_stats;   // backward: [stages][mean, rstd][rows]

  __device__ explicit Shared(uint8_t* memory) {
    const auto take = [&](auto*& pointer, int count) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(memory);
      memory += static_cast<size_t>(count) * sizeof(*pointer);
    };
    take(slices, kStages * warps() * kSliceBytes);
    take(parts, warps() * kKinds * kScoreStride);
    take(weights, kKinds * kScoreStride);
    take(constants, warps() * kKinds * kHeadsAtOnce);
    take(totals, warps() * kHeadsAtOnce);
    row_parts = reinterpret_cast<float2*>(memory);
    take(row_terms, kRowsAtOnce);
    take(row_stats, kStages * 2 * kRowsAtOnce);
  }
  static size_t bytes(int warps) {
    const int rows = kKinds == 1 ? kRowsAtOnce * kMostWarps * 8 : kRowsAtOnce * (8 + kStages * 8);
    return static_cast<size_t>(kStages * warps * kSliceBytes +
                               (warps + 1) * kKinds * kScoreStride * 4 +
                               warps * (kKinds + 1) * kHeadsAtOnce * 8 + rows);
  }

  /// Those of one head, from all warps.
  __device__ float2 constants_of(int kind, int head) const {
    float2 sum{};
    for (int w = 0; w < warps(); ++w) {
      const float2 x = constants[(w * kKinds + kind) * kHeadsAtOnce + head];
      sum.x += x.x, sum.y += x.y;
    }
    return sum;
  }
  /// By all threads: what they sum over rows, thread 2 i + j for head i % 4. Readable for other
  /// warps after the next barrier.
  __device__ void put_totals(float2 mine, int j) const {
    mine = threadIdx.x % 2 == j ? mine : float2{};
#pragma unroll
    for (int offset = 8; offset < kWarp; offset *= 2) {
      mine.x += __shfl_xor_sync(~0u, mine.x, offset);
      mine.y += __shfl_xor_sync(~0u, mine.y, offset);
    }
    if (lane_id() < 2 * kHeadsAtOnce && lane_id() % 2 == j) {
      totals[warp_id() * kHeadsAtOnce + lane_id() / 2] = mine;
    }
  }
  __device__ float2 totals_of(int head) const {
    float2 sum{};
    for (int w = 0; w < warps(); ++w) {
      const float2 x = totals[w * kHeadsAtOnce + head];
      sum.x += x.x, sum.y += x.y;
    }
    return sum;
  }
};

/// The columns of this warp in the rows of a chunk, on their way to shared memory. With kStats the
/// first warp brings the saved mean and rstd of the rows.
template <bool kStats>
struct Rows {
  const bf16* from;  // row 0 of the chunk
  int64_t stride;
  int count;
  uint32_t slices, stats;
  const float *mean, *rstd;

  template <int kKinds>
  __device__ Rows(const Matrix<const bf16>& x, const NormArgs& norm, int64_t first, int rows,
                  const Shared<kKinds>& shared)
      : from(x.row(first) + warp_id() * kSliceColumns),
        stride(x.stride),
        count(rows),
        slices(mma::shared_address(shared.slices) + static_cast<uint32_t>(warp_id() * kSliceBytes)),
        stats(mma::shared_address(shared.row_stats)),
        mean(norm.mean + first),
        rstd(norm.rstd + first) {
    for (int tile = 0; tile < kStages; ++tile) fetch(tile);
  }
  __device__ int tiles() const { return (count + kRowsAtOnce - 1) / kRowsAtOnce; }
  __device__ uint32_t slice(int tile) const {
    return slices + static_cast<uint32_t>(tile % kStages * warps() * kSliceBytes);
  }
  /// Every lane takes part in 8 rows; rows past the end become zero.
  __device__ void fetch(int tile) const {
    if (tile < tiles()) {
      const uint32_t to = slice_at(slice(tile), lane_id() / 8, lane_id() % 8);
      const int left = count - tile * kRowsAtOnce - lane_id() / 8;
      const bf16* row = from + (tile * kRowsAtOnce + lane_id() / 8) * stride + lane_id() % 8 * 8;
#pragma unroll
      for (int i = 0; i < kRowsAtOnce / 4; ++i) {
        mma::copy_16(four_rows_down(to, i), row, 4 * i < left);
        row += 4 * stride;
      }
      if (kStats && warp_id() == 0) {
        const int row = tile * kRowsAtOnce + lane_id();
        const bool exists = row < count;
        const uint32_t at =
            stats + static_cast<uint32_t>((tile % kStages * 2 * kRowsAtOnce + lane_id()) * 4);
        mma::copy_4(at, mean + (exists ? row : 0), exists);
        mma::copy_4(at + kRowsAtOnce * 4, rstd + (exists ? row : 0), exists);
      }
    }
    mma::copies_commit();
  }
  __device__ uint32_t wait(int tile) const {
    mma::copies_wait<kStages - 1>();
    __syncwarp();
    return slice(tile);
  }
  /// This warp needs the tile no more.
  __device__ void release(int tile) const {
    __syncwarp();
    fetch(tile + kStages);
  }
};

/// q' or dz of up to four heads at the columns of this warp, times the norm's weight: operands.
struct HeadRows {
  uint32_t along[kSliceColumns / 16][2];  // summed over columns
  uint32_t across[kSliceColumns / 8];     // summed over heads: column g of 8, head t, split

  /// Leaves what the norm's mean and bias are multiplied with: sums over the columns of this slice
  /// of weight * q' and of bias * q'.
  __device__ void load_along(const NormArgs& norm, const float* from, int heads, int dim,
                             float2* constants) {
    const int head = lane_id() / 8, t = lane_id() % 4;
    const bool low = lane_id() / 4 % 2 == 0;
    const auto parameter = [&](const float* x, int c) {
      float2 pair = *reinterpret_cast<const float2*>(x + warp_id() * kSliceColumns + c);
      if (norm.round_weights) {
        pair = {ops::cuda::rounded<bf16>(pair.x), ops::cuda::rounded<bf16>(pair.y)};
      }
      return pair;
    };
    float2 sums{};
#pragma unroll
    for (int k = 0; k < kSliceColumns / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int c = 16 * k + 8 * half + 2 * t;
        float2 pair{};
        if (head < heads) pair = *reinterpret_cast<const float2*>(from + head * dim + c);
        const float2 w = parameter(norm.weight, c), b = parameter(norm.bias, c);
        const uint32_t first = split(w.x * pair.x), second = split(w.y * pair.y);
        along[k][half] = __byte_perm(first, second, low ? 0x5410 : 0x7632);
        sums.x += joined(along[k][half]);
        sums.y += b.x * pair.x + b.y * pair.y;
      }
    }
#pragma unroll
    for (int offset = 1; offset <= 2; offset *= 2) {
      sums.x += __shfl_xor_sync(~0u, sums.x, offset);
      sums.y += __shfl_xor_sync(~0u, sums.y, offset);
    }
    sums.x += __shfl_xor_sync(~0u, sums.x, 4);  // high and low halves
    if (lane_id() % 8 == 0) constants[head] = sums;
  }
  __device__ void load_across(const NormArgs& norm, const float* from, int heads, int dim) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < kSliceColumns / 8; ++n) {
      float w = norm.weight[warp_id() * kSliceColumns + 8 * n + g];
      if (norm.round_weights) w = ops::cuda::rounded<bf16>(w);
      across[n] = t < heads ? split(w * from[t * dim + 8 * n + g]) : 0;
    }
  }
};

/// Where mean and squares of a row of a slice are kept until row_statistics joins them.
__device__ inline int row_part_at(int row, int warp) {
  return row * kMostWarps + (warp ^ (row / 2 % 8));
}

/// parts[kind][row, head] = the product of each row with those of the heads, at these columns. With
/// row_parts also the mean of these columns and the sum of squares around it. They are products,
/// too: of rows with ones, and of rows with themselves, which are the diagonal of x x^T. What is
/// lost of the squares where the mean is large is less than the bf16 numbers have lost there.
template <int kKinds, bool kMeasures>
__device__ void multiply_rows(uint32_t slice, const HeadRows (&x)[kKinds], float* parts,
                              float2* row_parts = nullptr) {
  const int lane = lane_id();
  const uint32_t at = slice_at(slice, lane % 16, lane / 16);
  constexpr uint32_t kOnes = 0x3f803f80;
  float d[2][kKinds][4] = {};
  float sum[2][4] = {}, squares[2][2][4] = {};
#pragma unroll
  for (int k = 0; k < kSliceColumns / 16; ++k) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t a[4];
      mma::load_4(a, (at ^ (32u * k)) + 2048u * m);
#pragma unroll
      for (int kind = 0; kind < kKinds; ++kind) {
        multiply_add(d[m][kind], a, x[kind].along[k][0], x[kind].along[k][1]);
      }
      if constexpr (kMeasures) {
        multiply_add(sum[m], a, kOnes, kOnes);
        multiply_add(squares[m][0], a, a[0], a[2]);
        multiply_add(squares[m][1], a, a[1], a[3]);
      }
    }
  }
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float* to = parts + kind * kScoreStride + 16 * m * kHeadsAtOnce + lane;
      to[0] = d[m][kind][0] + d[m][kind][1];
      to[8 * kHeadsAtOnce] = d[m][kind][2] + d[m][kind][3];
    }
  }
  if constexpr (kMeasures) {
    const int g = lane / 4, t = lane % 4;
    if (t != g / 2) return;  // others have not column g of the results
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int m = i / 2, half = i % 2;
      const float mean = sum[m][2 * half] / kSliceColumns;
      const float square = g % 2 == 0 ? squares[m][half][2 * half] : squares[m][half][2 * half + 1];
      row_parts[row_part_at(8 * i + g, warp_id())] = {mean,
                                                      fmaxf(square - sum[m][2 * half] * mean, 0.f)};
    }
  }
}

/// Mean and rstd of a row, by 8 neighbouring threads together.
__device__ inline float2 row_statistics(const NormArgs& norm, const float2* row_parts, int row) {
  const int slice = static_cast<int>(threadIdx.x % kMostWarps);
  const bool exists = slice < warps();
  const float2 part = exists ? row_parts[row_part_at(row, slice)] : float2{};
  float mean = part.x;
#pragma unroll
  for (int offset = 1; offset < kMostWarps; offset *= 2) {
    mean += __shfl_xor_sync(~0u, mean, offset);
  }
  mean /= static_cast<float>(warps());
  const float off = part.x - mean;
  float squares = exists ? part.y + kSliceColumns * off * off : 0.f;
#pragma unroll
  for (int offset = 1; offset < kMostWarps; offset *= 2) {
    squares += __shfl_xor_sync(~0u, squares, offset);
  }
  return {mean, 1.f / sqrtf(squares / static_cast<float>(norm.columns) + norm.eps)};
}

/// Sums over rows of a weight per head times x, at the columns of this warp.
struct RowSums {
  float sums[kSliceColumns / 16][4];  // transposed: columns of x down, heads across

  __device__ void clear() { *this = {}; }
  __device__ void add(uint32_t slice, const uint32_t* tile_weights) {
    const int lane = lane_id();
    const uint32_t at = slice_at(slice, lane % 8 + lane / 16 * 8, lane / 8 % 2);
    uint32_t b[4];
    mma::load_4_transposed(b, tile_weights + lane * kHeadsAtOnce);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
#pragma unroll
      for (int m = 0; m < kSliceColumns / 16; ++m) {
        uint32_t a[4];
        mma::load_4_transposed(a, (at ^ (32u * m)) + 2048u * k);
        multiply_add(sums[m], a, b[2 * k], b[2 * k + 1]);
      }
    }
  }
  /// To the partial sums of a task, or on top of what is there. totals: of head t, the sums over
  /// rows of the weights, and of these times rstd and mean.
  template <bool kAdd>
  __device__ void store(const TargetArgs& a, int64_t task, int first_head, int heads,
                        float2 totals) const {
    const int g = lane_id() / 4, t = lane_id() % 4;
    if (t >= heads) return;
    const int64_t at = task * a.heads + first_head + t;
    const auto put = [](float* to, float x) { *to = kAdd ? *to + x : x; };
    float* to = a.partials + at * a.dim + warp_id() * kSliceColumns + g;
#pragma unroll
    for (int m = 0; m < kSliceColumns / 16; ++m) {
      put(to + 16 * m, sums[m][0] + sums[m][1] - totals.y);
      put(to + 16 * m + 8, sums[m][2] + sums[m][3] - totals.y);
    }
    if (warp_id() == 0 && g == 0) put(a.partial_weights + at, totals.x);
  }
};

}  // namespace segue::attention::cuda
