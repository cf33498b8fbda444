#include <vector>

#include "ops/cuda_forms.h"
#include "ops/dropout.cuh"
#include "ops/partial_sums.cuh"
#include "ops/segments.cuh"

namespace segue::ops::cuda {
namespace {

/// A table that tokens may read, in its own type; -1 and an absent table mean: no row.
template <class T>
struct Source {
  Matrix<const T> table;
  int64_t rows = 0;
  const int32_t* index = nullptr;

  Source() = default;
  Source(const Tensor& t, const Tensor& indices, int64_t tokens, int64_t dim) {
    if (!t) return;
    SEGUE_ASSERT(t.rank == 2 && t.size(1) == dim, "assemble: width of a table");
    SEGUE_ASSERT(indices.rank == 1 && indices.size(0) == tokens, "assemble: one index per token");
    table = input_of<T>(t);
    rows = t.size(0);
    index = device_ptr<int32_t>(indices);
  }

  __device__ const T* row(int64_t token) const {
    if (index == nullptr || index[token] == -1) return nullptr;
    require_row(index[token], rows);
    return table.row(index[token]);
  }
};

template <class T>
struct AssembleArgs {
  Matrix<const T> content, context;
  int64_t content_rows, context_rows;
  const int32_t* row_index;
  Source<T> action;
  float scale;
  Source<float> position, time;
  DropoutArgs dropout;

  __device__ const T* row(int64_t token) const {
    const int64_t row = row_index[token];
    if (row == -1) return nullptr;
    require_row(row, content_rows + context_rows);
    return row < content_rows ? content.row(row) : context.row(row - content_rows);
  }
};

/// Rounds where the CPU's mode does, so that bf16 results are equal bit by bit; products and sums
/// are kept apart for the same reason in float.
template <class T, int kW>
__global__ void __launch_bounds__(kThreads, 4)
    assemble_kernel(AssembleArgs<T> a, KeepBits keep, int64_t tokens, int dim, Matrix<T> x) {
  const BlockRows block(tokens);
  for (int64_t t = block.begin; t < block.end; t += kWarpsPerBlock) {
    const T* row = a.row(t);
    const T* action = a.action.row(t);
    const float* position = a.position.row(t);
    const float* time = a.time.row(t);
    const DropoutArgs::Row random = a.dropout.row(t);
    T* to = x.row(t);
#pragma unroll 2
    for (int c = static_cast<int>(threadIdx.x % kWarp) * kW; c < dim; c += kWarp * kW) {
      float value[kW] = {}, other[kW], encoding[kW] = {}, more[kW];
      if (row != nullptr) load(row + c, value);
      if (action != nullptr) load(action + c, other);
      if (position != nullptr) load(position + c, encoding);
      if (time != nullptr) load(time + c, more);
      for (int j = 0; j < kW; ++j) {
        if (action != nullptr) value[j] = rounded<T>(value[j] + other[j]);
        value[j] = rounded<T>(__fmul_rn(value[j], a.scale));
        if (time != nullptr) encoding[j] = position != nullptr ? encoding[j] + more[j] : more[j];
        if (position != nullptr || time != nullptr) {
          value[j] = rounded<T>(__fadd_rn(value[j], rounded<T>(encoding[j])));
        }
      }
      if (!a.dropout.active) {
        store(to + c, value);
        continue;
      }
      const KeepMasks masks = a.dropout.keep_masks(random, c);
      if (keep.data != nullptr && c % 8 == 0) *keep.at(t, c) = KeepBits::fold(masks.bits());
      if constexpr (kW == 8) {
        a.dropout.store_kept(masks, value, to + c);
      } else {
        a.dropout.apply_bits(masks.bits(), c, value);
        store(to + c, value);
      }
    }
  }
}

// ---- backward ----

/// What dropout keeps of every row, where forward did not leave it: one thread for 8 columns.
__global__ void __launch_bounds__(kThreads)
    draw_bits_kernel(DroppedRows dropped, int64_t rows, int groups) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads, n = rows * groups;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < n; i += step) {
    const int64_t r = i / groups;
    const int first = static_cast<int>(i - r * groups) * 8;
    *dropped.keep.at(r, first) =
        KeepBits::fold(dropped.dropout.keep_bits(dropped.dropout.row(r), first));
  }
}

void draw_bits(const Exec& exec, int64_t rows, int64_t columns, const DroppedRows& dropped) {
  const int64_t groups = divide_up(columns, 8);
  const int64_t blocks = std::min(divide_up(rows * groups, kThreads), kMaxBlocks);
  draw_bits_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(exec)>>>(
      dropped, rows, static_cast<int>(groups));
  check_launch();
}

// Sums by action code need no sort: there are so few codes that every warp keeps all their sums in
// shared memory. A warp takes 256 columns of consecutive rows.
constexpr int kCodeColumns = 8 * kWarp;
constexpr int kCodeWarps = 16;
constexpr int kCodeAhead = 8;  // rows loaded before the first is added
constexpr int kMaxCodes = 13;  // what fits into the shared memory of a multiprocessor

/// partials[blockIdx.x][code][column] = sum over this block's rows, each dropped out and rounded.
template <class T, bool kDrops>
__global__ void __launch_bounds__(kCodeWarps* kWarp, 1)
    sum_codes_kernel(Matrix<const T> from, int64_t rows, int columns, DroppedRows dropped,
                     const int32_t* code_of, int codes, float scale, float* partials) {
  extern __shared__ __align__(16) float sums[];  // [warp][code][half of 8 columns][lane][4]
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  float* own = sums + warp * codes * kCodeColumns + lane * 4;
  constexpr int kHalf = kCodeColumns / 2;
  for (int i = 0; i < 2 * codes; ++i) {
    *reinterpret_cast<float4*>(own + i * kHalf) = make_float4(0, 0, 0, 0);
  }
  const int column = static_cast<int>(blockIdx.y) * kCodeColumns + lane * 8;
  const bool inside = column < columns;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kCodeWarps;
  const int64_t each = (rows + warps - 1) / warps;
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kCodeWarps + warp) * each;
  const int64_t end = begin + each < rows ? begin + each : rows;
  for (int64_t r = begin; r < end; r += kCodeAhead) {
    // Lane k knows row r + k and passes it round.
    const int64_t mine = r + lane < end ? r + lane : end - 1;
    const int32_t my_code = lane < kCodeAhead ? code_of[mine] : -1;
    if (my_code != -1) require_row(my_code, codes);
    uint4 raw[kCodeAhead];
    uint32_t bits[kCodeAhead];
#pragma unroll
    for (int k = 0; k < kCodeAhead; ++k) {
      const int64_t at = r + k < end ? r + k : end - 1;
      if (!inside) continue;
      raw[k] = *reinterpret_cast<const uint4*>(from.row(at) + column);
      if constexpr (kDrops) bits[k] = *dropped.keep.at(at, column);
    }
#pragma unroll
    for (int k = 0; k < kCodeAhead; ++k) {
      const int code = __shfl_sync(0xffffffffu, my_code, k);
      if (r + k >= end || !inside) continue;
      float value[8];
      load(reinterpret_cast<const T*>(&raw[k]), value);
      if constexpr (kDrops) {
        dropped.dropout.template apply_rounded<T>(KeepBits::unfold(bits[k]), column, value);
      }
      if (code == -1) continue;
      float4* low = reinterpret_cast<float4*>(own + 2 * code * kHalf);
      float4* high = reinterpret_cast<float4*>(own + (2 * code + 1) * kHalf);
      const float4 a = *low, b = *high;
      *low = make_float4(a.x + value[0], a.y + value[1], a.z + value[2], a.w + value[3]);
      *high = make_float4(b.x + value[4], b.y + value[5], b.z + value[6], b.w + value[7]);
    }
  }
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < codes * kCodeColumns; i += kCodeWarps * kWarp) {
    float total = 0;
    for (int w = 0; w < kCodeWarps; ++w) total += sums[w * codes * kCodeColumns + i];
    const int code = i / kCodeColumns, place = i % kCodeColumns;
    const int c = static_cast<int>(blockIdx.y) * kCodeColumns + place % kHalf / 4 * 8 +
                  place / kHalf * 4 + place % 4;
    if (c < columns) {
      partials[(static_cast<int64_t>(blockIdx.x) * codes + code) * columns + c] = total * scale;
    }
  }
}

bool can_sum_codes(const Tensor& dx, const Tensor& gradient) {
  return gradient && gradient.size(0) <= kMaxCodes && gradient.size(0) > 0 &&
         gradient.is_contiguous() && gradient.dtype == DType::kF32 && dx.dtype == DType::kBf16 &&
         can_vectorize(dx.size(1), {dx});
}

void sum_codes(const Exec& exec, const AssembleParams& p, const Tensor& dx,
               const DroppedRows& dropped, const Tensor& gradient) {
  const int64_t tokens = dx.size(0), dim = dx.size(1), codes = gradient.size(0);
  SEGUE_ASSERT(p.action_index && p.action_index.size(0) == tokens && gradient.size(1) == dim,
               "assemble: gradient without its index");
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const int64_t pieces = divide_up(dim, kCodeColumns);
  const int64_t blocks =
      std::clamp<int64_t>(kMultiprocessors / pieces, 1, divide_up(tokens, kCodeWarps));
  PartialSums partials(exec, blocks, codes * dim);
  const auto kernel =
      dropped.dropout.active ? sum_codes_kernel<bf16, true> : sum_codes_kernel<bf16, false>;
  const auto bytes = static_cast<size_t>(kCodeWarps * codes * kCodeColumns) * sizeof(float);
  allow_shared_memory(kernel, bytes);
  kernel<<<dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(pieces)), kCodeWarps * kWarp,
           bytes, stream>>>(input_of<bf16>(dx), tokens, static_cast<int>(dim), dropped,
                            device_ptr<int32_t>(p.action_index), static_cast<int>(codes),
                            static_cast<float>(p.scale), partials.data());
  check_launch();
  partials.fold(gradient, 0, codes * dim);
}

int64_t rows_or_zero(const Tensor& t) { return t ? t.size(0) : 0; }

/// Empty unless dropout is on and somebody keeps its bits.
KeepBits keep_of(const AssembleParams& p, int64_t tokens, int64_t dim) {
  if (!p.keep || p.dropout.p <= 0) return {};
  SEGUE_ASSERT(p.keep.size(0) == tokens && p.keep.size(1) == divide_up(dim, 8),
               "assemble: bits [tokens, assemble_keep_bytes]");
  return KeepBits(p.keep);
}

}  // namespace

void assemble_forward(const Exec& exec, const AssembleParams& p, const Tensor& x) {
  const int64_t tokens = x.size(0), dim = x.size(1);
  SEGUE_ASSERT(p.row_index.rank == 1 && p.row_index.size(0) == tokens,
               "assemble: one row_index per token");
  SEGUE_ASSERT(!p.content || p.content.size(1) == dim, "assemble: width of content");
  SEGUE_ASSERT(!p.context || p.context.size(1) == dim, "assemble: width of context");
  if (tokens == 0 || dim == 0) return;
  const cudaStream_t stream = stream_of(exec);
  dispatch_type(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    AssembleArgs<T> a{};
    a.content = input_of<T>(p.content);
    a.context = input_of<T>(p.context);
    a.content_rows = rows_or_zero(p.content);
    a.context_rows = rows_or_zero(p.context);
    a.row_index = device_ptr<int32_t>(p.row_index);
    a.action = Source<T>(p.action_rows, p.action_index, tokens, dim);
    a.scale = static_cast<float>(p.scale);
    a.position = Source<float>(p.position_table, p.position_index, tokens, dim);
    a.time = Source<float>(p.time_table, p.time_index, tokens, dim);
    a.dropout = DropoutArgs(exec, p.dropout);
    const auto launch = [&](auto kernel) {
      kernel<<<row_blocks(tokens), kThreads, 0, stream>>>(a, keep_of(p, tokens, dim), tokens,
                                                          static_cast<int>(dim), matrix_of<T>(x));
      check_launch();
    };
    if (can_vectorize(dim,
                      {p.content, p.context, p.action_rows, p.position_table, p.time_table, x})) {
      launch(assemble_kernel<T, 8>);
    } else {
      launch(assemble_kernel<T, 1>);
    }
  });
}

void assemble_backward(const Exec& exec, const AssembleParams& p, const Tensor& dx,
                       const AssembleGradients& gradients) {
  const int64_t tokens = dx.size(0), dim = dx.size(1);
  if (tokens == 0 || dim == 0) return;
  const Arena::Mark mark(*exec.arena);
  // Every sum applies the dropout itself: a pass over dx is cheaper than a copy of it.
  DroppedRows dropped;
  dropped.dropout = DropoutArgs(exec, p.dropout);
  dropped.keep = keep_of(p, tokens, dim);
  if (dropped.dropout.active && dropped.keep.data == nullptr) {
    dropped.keep = KeepBits(exec.arena->tensor(DType::kU8, {tokens, divide_up(dim, 8)}));
    draw_bits(exec, tokens, dim, dropped);
  }
  std::vector<SumOrder> orders;
  const auto order_of = [&](const Tensor& table, const Tensor& index, double scale) {
    if (!table) return;
    SEGUE_ASSERT(index && index.size(0) == tokens && table.size(1) == dim,
                 "assemble: gradient without its index");
    orders.push_back({index, {table, table.size(0), scale}, {}, {}});
  };
  order_of(gradients.position, p.position_index, 1);
  order_of(gradients.time, p.time_index, 1);
  if (can_sum_codes(dx, gradients.action)) {
    sum_codes(exec, p, dx, dropped, gradients.action);
  } else {
    order_of(gradients.action, p.action_index, p.scale);
  }
  if (gradients.content || gradients.context) {
    orders.push_back({p.row_index,
                      {gradients.content, rows_or_zero(p.content), p.scale},
                      {gradients.context, rows_or_zero(p.context), p.scale},
                      {}});
  }
  sum_rows(exec, dx, dropped, orders);
}

}  // namespace segue::ops::cuda
