#include <cstdint>

#include "attention/mma.cuh"
#include "attention/target_attention_mma.h"
#include "attention/target_attention_plan.cuh"

// Target attention by tensor cores. A block takes a chunk of rows in tiles of 32, a warp 64 columns
// of them: it fetches these ahead, and nobody else reads them. Per tile:
//   1. each warp multiplies its columns with those of q' (and dz); parts of scores of all warps
//      meet in shared memory;
//   2. all threads add the parts, and make p (and ds) of them;
//   3. each warp adds p^T h (or ds^T h) at its columns, and writes dh = ds q' + p dz there.
//
// h is bf16 and exact as an operand. What it is multiplied with is float, and goes in as two bf16
// numbers, high and low, that keep 16 bits. They are neighbours: of four heads, the 8 columns of an
// operand are head 0 high, head 0 low, head 1 high, ..., so that a lane that holds columns 2 t and
// 2 t + 1 of a result adds them to the one of head t.
//
// Letters: g = lane / 4 and t = lane % 4, as matrices lie in the registers of a warp.

namespace segue::attention::cuda {
namespace {

using ops::cuda::kThreads;
using ops::cuda::kWarp;
using ops::cuda::Matrix;

constexpr int kRowsAtOnce = 32, kSliceColumns = 64;
constexpr int kSliceRowBytes = kSliceColumns * 2, kSliceBytes = kRowsAtOnce * kSliceRowBytes;
constexpr int kMostColumns = kThreads / kWarp * kSliceColumns;
constexpr int kStages = 2;                           // tiles on their way, or in use
constexpr int kScores = kRowsAtOnce * kHeadsAtOnce;  // of a tile

__device__ int lane_id() { return static_cast<int>(threadIdx.x % kWarp); }
__device__ int warp_id() { return static_cast<int>(threadIdx.x / kWarp); }
__device__ int warps() { return static_cast<int>(blockDim.x / kWarp); }

/// Two bf16 numbers of which x is the sum, to 16 bits; the larger one in the low half.
__device__ uint32_t split(float x) {
  const float high = ops::cuda::rounded<bf16>(x);
  return ops::cuda::packed<bf16>(high, x - high);
}

/// Columns 8 chunk .. 8 chunk + 7 of a row of a slice; swizzled, so that ldmatrix meets no bank
/// twice. Chunk (c ^ x) is at this address ^ 16 x, rows 8 further down 1,024 bytes on.
__device__ uint32_t slice_at(uint32_t slice, int row, int chunk) {
  return slice + static_cast<uint32_t>(row * kSliceRowBytes + ((chunk ^ (row & 7)) << 4));
}

/// Where lane l finds 16 bytes of row 4 i + l / 8, from what slice_at says for i = 0.
__device__ uint32_t four_rows_down(uint32_t at, int i) {
  return (at ^ (i % 2 == 0 ? 0u : 64u)) + static_cast<uint32_t>(4 * i * kSliceRowBytes);
}

__device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  mma::multiply_add<__nv_bfloat16>(d, a, b0, b1);
}

/// Shared memory of a block. `kKinds`: scores alone, or scores and their gradients.
template <int kKinds>
struct Shared {
  uint8_t* slices;    // [stages][warps][kSliceBytes]
  float* parts;       // [warps][kinds][kScores]
  uint32_t* weights;  // [kinds][kScores]: p, or p and ds, each split

  __device__ explicit Shared(uint8_t* memory)
      : slices(memory),
        parts(reinterpret_cast<float*>(memory + kStages * warps() * kSliceBytes)),
        weights(reinterpret_cast<uint32_t*>(parts + warps() * kKinds * kScores)) {}

  static size_t bytes(int warps) {
    return static_cast<size_t>(kStages * warps * kSliceBytes +
                               (warps + 1) * kKinds * kScores * int{sizeof(float)});
  }
};

/// The columns of this warp in the rows of a chunk, on their way to shared memory.
struct Rows {
  const bf16* from;  // row 0 of the chunk
  int64_t stride;
  int count;
  uint32_t slices;

  template <int kKinds>
  __device__ Rows(const Matrix<const bf16>& h, int64_t first, int rows,
                  const Shared<kKinds>& shared)
      : from(h.row(first) + warp_id() * kSliceColumns),
        stride(h.stride),
        count(rows),
        slices(mma::address(shared.slices) + static_cast<uint32_t>(warp_id() * kSliceBytes)) {
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
      const int first = tile * kRowsAtOnce + lane_id() / 8;
#pragma unroll
      for (int i = 0; i < kRowsAtOnce / 4; ++i) {
        const bool exists = first + 4 * i < count;
        const bf16* row = from + (exists ? first + 4 * i : 0) * stride;
        mma::copy_16(four_rows_down(to, i), row + lane_id() % 8 * 8, exists);
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

/// q' or dz of up to four heads at the columns of this warp, as operands.
struct HeadRows {
  uint32_t along[kSliceColumns / 16][2];  // summed over columns
  uint32_t across[kSliceColumns / 8];     // summed over heads: column g of 8, head t, split

  __device__ void load_along(const float* from, int heads, int dim) {
    const int head = lane_id() / 8, t = lane_id() % 4;
    const uint32_t part = lane_id() / 4 % 2 == 0 ? 0x5410 : 0x7632;
#pragma unroll
    for (int k = 0; k < kSliceColumns / 16; ++k) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float2 pair{};
        if (head < heads) {
          pair = *reinterpret_cast<const float2*>(from + head * dim + 16 * k + 8 * half + 2 * t);
        }
        along[k][half] = __byte_perm(split(pair.x), split(pair.y), part);
      }
    }
  }
  __device__ void load_across(const float* from, int heads, int dim) {
    const int g = lane_id() / 4, t = lane_id() % 4;
#pragma unroll
    for (int n = 0; n < kSliceColumns / 8; ++n) {
      across[n] = t < heads ? split(from[t * dim + 8 * n + g]) : 0;
    }
  }
};

/// parts[kind][row, head] = the product of each row with those of the heads, at these columns.
template <int kKinds>
__device__ void multiply_rows(uint32_t slice, const HeadRows (&x)[kKinds], float* parts) {
  const int lane = lane_id();
  const uint32_t at = slice_at(slice, lane % 16, lane / 16);
  float d[2][kKinds][4] = {};
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
    }
  }
#pragma unroll
  for (int kind = 0; kind < kKinds; ++kind) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      float* to = parts + kind * kScores + 16 * m * kHeadsAtOnce + lane;
      to[0] = d[m][kind][0] + d[m][kind][1];
      to[8 * kHeadsAtOnce] = d[m][kind][2] + d[m][kind][3];
    }
  }
}

/// Sums over rows of a weight per head times h, at the columns of this warp, and of the weights.
struct RowSums {
  float sums[kSliceColumns / 16][4];  // transposed: columns of h down, heads across
  float weights[4];

  __device__ void clear() { *this = {}; }
  __device__ void add(uint32_t slice, const uint32_t* tile_weights) {
    const int lane = lane_id();
    constexpr uint32_t kOnes = 0x3f803f80;
    const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
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
      multiply_add(weights, ones, b[2 * k], b[2 * k + 1]);
    }
  }
  /// To the partial sums of a task, or on top of what is there.
  template <bool kAdd>
  __device__ void store(const TargetArgs& a, int64_t task, int first_head, int heads) const {
    const int g = lane_id() / 4, t = lane_id() % 4;
    if (t >= heads) return;
    const int64_t at = task * a.heads + first_head + t;
    const auto put = [](float* to, float x) { *to = kAdd ? *to + x : x; };
    float* to = a.partials + at * a.dim + warp_id() * kSliceColumns + g;
#pragma unroll
    for (int m = 0; m < kSliceColumns / 16; ++m) {
      put(to + 16 * m, sums[m][0] + sums[m][1]);
      put(to + 16 * m + 8, sums[m][2] + sums[m][3]);
    }
    if (warp_id() == 0 && g == 0) put(a.partial_weights + at, weights[0] + weights[1]);
  }
};

/// Adds the parts of score i of a tile, in order of warps.
template <int kKinds>
__device__ float add_parts(const float* parts, int kind, int i, float sum) {
  for (int w = 0; w < warps(); ++w) sum += parts[(w * kKinds + kind) * kScores + i];
  return sum;
}

__global__ void __launch_bounds__(kThreads, 3) forward_kernel(TargetArgs a, Matrix<const bf16> h) {
  extern __shared__ __align__(128) uint8_t memory[];
  const Shared<1> shared(memory);
  const int32_t sequence = a.plan.of_task[blockIdx.x];
  const SequenceView s = a.plan.sequences[sequence];
  const int32_t local = static_cast<int32_t>(blockIdx.x) - s.first_task;
  const int32_t chunk = local % s.chunks();
  const int first = chunk * kChunkRows;
  const Rows rows(h, s.first_row + first, min(s.n - first, kChunkRows), shared);

  const TaskView task(a, s, local / s.chunks(), chunk);
  const int first_head = static_cast<int>(blockIdx.y) * kHeadsAtOnce;
  const int heads = min(kHeadsAtOnce, a.heads - first_head);
  const int64_t at = a.at(task.global_target, first_head);
  HeadRows query[1];
  query[0].load_along(a.key_query + at * a.dim + warp_id() * kSliceColumns, heads, a.dim);
  const int head = static_cast<int>(threadIdx.x) % kHeadsAtOnce;
  const float bias = head < heads ? a.key_bias[at + head] : 0.f;

  RowSums sums;
  sums.clear();
  for (int tile = 0; tile < rows.tiles(); ++tile) {
    const uint32_t slice = rows.wait(tile);
    multiply_rows(slice, query, shared.parts + warp_id() * kScores);
    __syncthreads();
    for (int i = static_cast<int>(threadIdx.x); i < kScores; i += static_cast<int>(blockDim.x)) {
      const int row = tile * kRowsAtOnce + i / kHeadsAtOnce;
      const ops::cuda::Silu<bf16> silu(add_parts<1>(shared.parts, 0, i, bias));
      const bool visible = row < rows.count && task.sees.sees(task.target_row, first + row);
      shared.weights[i] = split(visible ? silu.value * a.scale : 0.f);
    }
    __syncthreads();
    sums.add(slice, shared.weights);
    rows.release(tile);
  }
  sums.store<false>(a, task.task, first_head, heads);
  finish_block(a, s, sequence, s.chunks() * s.targets * static_cast<int>(gridDim.y));
}

/// d += ds q' + p dz at 16 rows and 8 columns: the heads' halves are both multiplied with the high
/// and with the low half of q' and dz.
__device__ void add_gradients(float (&d)[4], const uint32_t (&weights)[4], int m, uint32_t x) {
  const uint32_t a[4] = {weights[2 * m], weights[2 * m + 1], weights[2 * m], weights[2 * m + 1]};
  multiply_add(d, a, __byte_perm(x, x, 0x1010), __byte_perm(x, x, 0x3232));
}

/// dh of a tile at the columns of this warp, through the slice, which is free by then.
__device__ void put_gradients(uint32_t slice, int m, int n, const float (&d)[4]) {
  const int g = lane_id() / 4, t = lane_id() % 4;
  const uint32_t at = (slice_at(slice, g, 0) ^ (16u * n)) + static_cast<uint32_t>(2048 * m + 4 * t);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(at + 1024 * half),
                 "r"(ops::cuda::packed<bf16>(d[2 * half], d[2 * half + 1]))
                 : "memory");
  }
}
__device__ void write_gradients(uint32_t slice, const Matrix<bf16>& dh, int64_t first, int count) {
  const uint32_t at = slice_at(slice, lane_id() / 8, lane_id() % 8);
  bf16* to = dh.row(first + lane_id() / 8) + warp_id() * kSliceColumns + lane_id() % 8 * 8;
#pragma unroll
  for (int i = 0; i < kRowsAtOnce / 4; ++i) {
    uint4 x;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "r"(four_rows_down(at, i))
                 : "memory");
    if (4 * i + lane_id() / 8 < count) *reinterpret_cast<uint4*>(to + 4 * i * dh.stride) = x;
  }
}

/// kMany: more than one target in some sequence, or more heads than go at once. Then a tile meets
/// one group of heads after the other, and their sums live in memory between tiles.
template <bool kMany>
__global__ void __launch_bounds__(kThreads, kMany ? 1 : 2)
    backward_kernel(TargetArgs a, Matrix<const bf16> h, Matrix<bf16> dh) {
  extern __shared__ __align__(128) uint8_t memory[];
  const Shared<2> shared(memory);
  const int32_t sequence = a.plan.of_chunk[blockIdx.x];
  const SequenceView s = a.plan.sequences[sequence];
  const int32_t chunk = static_cast<int32_t>(blockIdx.x) - s.first_chunk;
  const int first = chunk * kChunkRows;
  const Rows rows(h, s.first_row + first, min(s.n - first, kChunkRows), shared);
  const int head_groups = kMany ? (a.heads + kHeadsAtOnce - 1) / kHeadsAtOnce : 1;
  const int groups = s.targets * head_groups;

  // Even threads make scores and p, odd ones their gradients and ds.
  const bool odd = threadIdx.x % 2 == 1;
  const int head = static_cast<int>(threadIdx.x) / 2 % kHeadsAtOnce;
  HeadRows x[2] = {};  // q', dz; zero where nobody looks
  float bias = 0;
  const auto load_group = [&](int64_t target, int first_head, int heads) {
    const int64_t at = a.at(target, first_head);
    const int64_t from = at * a.dim + warp_id() * kSliceColumns;
    x[0].load_along(a.key_query + from, heads, a.dim);
    x[1].load_along(a.dz + from, heads, a.dim);
    x[0].load_across(a.key_query + from, heads, a.dim);
    x[1].load_across(a.dz + from, heads, a.dim);
    bias = head < heads ? (odd ? a.dp_sum : a.key_bias)[at + head] : 0.f;
  };

  if (!kMany && groups > 0) load_group(s.first_target, 0, a.heads);
  RowSums sums;
  sums.clear();
  for (int tile = 0; tile < rows.tiles(); ++tile) {
    const uint32_t slice = rows.wait(tile);
    constexpr int kColumns = kSliceColumns / 8;
    float gradients[2][kMany ? kColumns : 1][4] = {};
    uint32_t p[4] = {}, ds[4] = {};
    for (int group = 0; group < groups; ++group) {
      const TaskView task(a, s, group / head_groups, chunk);
      const int first_head = group % head_groups * kHeadsAtOnce;
      const int heads = min(kHeadsAtOnce, a.heads - first_head);
      if constexpr (kMany) load_group(task.global_target, first_head, heads);
      multiply_rows(slice, x, shared.parts + warp_id() * 2 * kScores);
      __syncthreads();
      for (int i = static_cast<int>(threadIdx.x) / 2; i < kScores;
           i += static_cast<int>(blockDim.x) / 2) {
        const int row = tile * kRowsAtOnce + i / kHeadsAtOnce;
        const float mine = add_parts<2>(shared.parts, odd ? 1 : 0, i, bias);
        const float other = __shfl_xor_sync(~0u, mine, 1);
        const ops::cuda::Silu<bf16> silu(odd ? other : mine);
        const bool visible = row < rows.count && task.sees.sees(task.target_row, first + row);
        const float weight = odd ? mine * silu.derivative : silu.value;
        shared.weights[(odd ? kScores : 0) + i] = split(visible ? weight * a.scale : 0.f);
      }
      __syncthreads();
      sums.add(slice, shared.weights + kScores);
      mma::load_4(p, shared.weights + lane_id() * kHeadsAtOnce);
      mma::load_4(ds, shared.weights + kScores + lane_id() * kHeadsAtOnce);
      if constexpr (kMany) {
        if (tile == 0) {
          sums.store<false>(a, task.task, first_head, heads);
        } else {
          sums.store<true>(a, task.task, first_head, heads);
        }
        sums.clear();
#pragma unroll
        for (int i = 0; i < 2 * kColumns; ++i) {
          add_gradients(gradients[i / kColumns][i % kColumns], ds, i / kColumns,
                        x[0].across[i % kColumns]);
          add_gradients(gradients[i / kColumns][i % kColumns], p, i / kColumns,
                        x[1].across[i % kColumns]);
        }
      }
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 2 * kColumns; ++i) {
      const int m = i / kColumns, n = i % kColumns;
      if constexpr (kMany) {
        put_gradients(slice, m, n, gradients[m][n]);
      } else {
        float d[4] = {};
        add_gradients(d, ds, m, x[0].across[n]);
        add_gradients(d, p, m, x[1].across[n]);
        put_gradients(slice, m, n, d);
      }
    }
    __syncwarp();
    const int done = tile * kRowsAtOnce;
    write_gradients(slice, dh, s.first_row + first + done, rows.count - done);
    rows.release(tile);
  }
  if (s.targets == 0) return;
  if (!kMany) sums.store<false>(a, TaskView(a, s, 0, chunk).task, 0, a.heads);
  finish_block(a, s, sequence, s.chunks());
}

template <int kKinds, class Kernel, class... Arguments>
void launch(const Exec& exec, Kernel kernel, dim3 grid, int dim, const Arguments&... arguments) {
  const int warps = dim / kSliceColumns;
  const size_t bytes = Shared<kKinds>::bytes(warps);
  const cudaStream_t stream = ops::cuda::stream_of(exec);
  ops::cuda::allow_shared_memory(kernel, bytes);
  kernel<<<grid, static_cast<unsigned>(warps * kWarp), bytes, stream>>>(arguments...);
  ops::cuda::check_launch();
}

}  // namespace

bool mma_takes(const Tensor& h, const Tensor& dh) {
  return h.dtype == DType::kBf16 && h.size(1) > 0 && h.size(1) % kSliceColumns == 0 &&
         h.size(1) <= kMostColumns && ops::cuda::can_vectorize(h.size(1), {h, dh});
}

void mma_forward(const Exec& exec, const TargetArgs& a, int64_t tasks, const Tensor& h) {
  const dim3 grid(static_cast<unsigned>(tasks),
                  static_cast<unsigned>(ops::cuda::divide_up(a.heads, kHeadsAtOnce)));
  launch<1>(exec, forward_kernel, grid, a.dim, a, ops::cuda::input_of<bf16>(h));
}

void mma_backward(const Exec& exec, const TargetArgs& a, int64_t chunks, bool one_target,
                  const Tensor& h, const Tensor& dh) {
  const bool one_group = one_target && a.heads <= kHeadsAtOnce;
  launch<2>(exec, one_group ? backward_kernel<false> : backward_kernel<true>,
            static_cast<unsigned>(chunks), a.dim, a, ops::cuda::input_of<bf16>(h),
            ops::cuda::matrix_of<bf16>(dh));
}

}  // namespace segue::attention::cuda
