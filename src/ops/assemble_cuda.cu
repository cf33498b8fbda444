#include <vector>

#include "ops/cuda_forms.h"
#include "ops/dropout.cuh"
#include "ops/norm_rows.cuh"
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
    if (index == nullptr) return nullptr;
    const int32_t at = index[token];
    if (at == -1) return nullptr;
    require_row(at, rows);
    return table.row(at);
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

/// Where the parts of one token lie; null: it has none.
template <class T>
struct TokenParts {
  const T *row = nullptr, *action = nullptr;
  const float *position = nullptr, *time = nullptr;
  DropoutArgs::Row random;

  TokenParts() = default;
  __device__ TokenParts(const AssembleArgs<T>& a, int64_t token)
      : row(a.row(token)),
        action(a.action.row(token)),
        position(a.position.row(token)),
        time(a.time.row(token)),
        random(a.dropout.row(token)) {}

  /// What another lane found.
  __device__ TokenParts of_lane(int lane) const {
    const auto pointer = [&](const auto* p) {
      return reinterpret_cast<decltype(p)>(
          __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(p), lane));
    };
    TokenParts other;
    other.row = pointer(row);
    other.action = pointer(action);
    other.position = pointer(position);
    other.time = pointer(time);
    other.random = {__shfl_sync(0xffffffffu, random.sample, lane),
                    __shfl_sync(0xffffffffu, random.token, lane)};
    return other;
  }
};

/// f(token, parts) for the tokens of the calling warp. Lanes look up a token each.
template <class T, class F>
__device__ void for_tokens(const AssembleArgs<T>& a, int64_t tokens, F&& f) {
  const BlockRows block(tokens);
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  for (int64_t first = block.begin; first < block.end; first += kWarp * kWarpsPerBlock) {
    TokenParts<T> mine;
    const int64_t own = first + lane * kWarpsPerBlock;
    if (own < block.end) mine = TokenParts<T>(a, own);
    for (int k = 0; k < kWarp; ++k) {
      const int64_t token = first + k * kWarpsPerBlock;
      if (token >= block.end) return;
      f(token, mine.of_lane(k));
    }
  }
}

/// Columns c .. c + kW of a token before dropout. Rounds where the CPU's mode does, so that bf16
/// results are equal bit by bit; products and sums are kept apart for the same reason in float.
template <class T, int kW>
__device__ void add_parts(const AssembleArgs<T>& a, const TokenParts<T>& from, int c,
                          float (&value)[kW]) {
  float other[kW], encoding[kW] = {}, more[kW];
  for (int j = 0; j < kW; ++j) value[j] = 0;
  if (from.row != nullptr) load(from.row + c, value);
  if (from.action != nullptr) load(from.action + c, other);
  if (from.position != nullptr) load(from.position + c, encoding);
  if (from.time != nullptr) load(from.time + c, more);
  for (int j = 0; j < kW; ++j) {
    if (from.action != nullptr) value[j] = rounded<T>(value[j] + other[j]);
    value[j] = rounded<T>(__fmul_rn(value[j], a.scale));
    if (from.time != nullptr) {
      encoding[j] = from.position != nullptr ? encoding[j] + more[j] : more[j];
    }
    if (from.position != nullptr || from.time != nullptr) {
      value[j] = rounded<T>(__fadd_rn(value[j], rounded<T>(encoding[j])));
    }
  }
}

/// Sums of two pairs of bf16, each rounded once: what a float sum gives when it is rounded, since
/// that is exact unless one number is too small to matter.
__device__ inline uint32_t add_pairs(uint32_t a, uint32_t b) {
  const __nv_bfloat162 sum = __hadd2_rn(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                        *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&sum);
}

/// The same for 8 columns of bf16 in pairs and without branches: what a token does not have is a
/// row of -0, which adds nothing.
__device__ inline void add_parts(const AssembleArgs<bf16>& a, const TokenParts<bf16>& from, int c,
                                 float (&value)[8]) {
  constexpr uint32_t kNoPair = 0x80008000u;
  uint4 row = make_uint4(0, 0, 0, 0), action = make_uint4(kNoPair, kNoPair, kNoPair, kNoPair);
  float position[8], time[8];
  for (int j = 0; j < 8; ++j) position[j] = time[j] = -0.f;
  // Pointers from other lanes do not say that they are global; this does.
  const auto read_floats = [](const float* p, float(&to)[8]) {
    const float4 low = __ldg(reinterpret_cast<const float4*>(p));
    const float4 high = __ldg(reinterpret_cast<const float4*>(p) + 1);
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  };
  if (from.row != nullptr) row = __ldg(reinterpret_cast<const uint4*>(from.row + c));
  if (from.action != nullptr) action = __ldg(reinterpret_cast<const uint4*>(from.action + c));
  if (from.position != nullptr) read_floats(from.position + c, position);
  if (from.time != nullptr) read_floats(from.time + c, time);
  const uint32_t rows[4] = {row.x, row.y, row.z, row.w};
  const uint32_t actions[4] = {action.x, action.y, action.z, action.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float low, high;
    unpack_pair<bf16>(add_pairs(rows[i], actions[i]), low, high);
    const uint32_t scaled = packed<bf16>(__fmul_rn(low, a.scale), __fmul_rn(high, a.scale));
    const uint32_t encoding =
        packed<bf16>(position[2 * i] + time[2 * i], position[2 * i + 1] + time[2 * i + 1]);
    unpack_pair<bf16>(add_pairs(scaled, encoding), value[2 * i], value[2 * i + 1]);
  }
}

/// Dropout of the same columns, and its bits for backward. Only where it is on.
template <class T, int kW>
__device__ void drop_piece(const AssembleArgs<T>& a, const DropoutArgs::Row& random, uint8_t* keep,
                           int c, float (&value)[kW]) {
  const KeepMasks masks = a.dropout.keep_masks(random, c);
  if (keep != nullptr && c % 8 == 0) keep[c / 8] = KeepBits::byte_of(masks);
  a.dropout.template apply_rounded<T>(masks, c, value);
}

template <class T, int kW>
__global__ void __launch_bounds__(kThreads, 4)
    assemble_kernel(const __grid_constant__ AssembleArgs<T> a, KeepBits keep, int64_t tokens,
                    int dim, Matrix<T> x) {
  for_tokens(a, tokens, [&](int64_t t, const TokenParts<T>& from) {
    uint8_t* bits = keep.data != nullptr ? keep.at(t, 0) : nullptr;
    T* to = x.row(t);
#pragma unroll 2
    for (int c = static_cast<int>(threadIdx.x % kWarp) * kW; c < dim; c += kWarp * kW) {
      float value[kW];
      add_parts(a, from, c, value);
      if (a.dropout.active) drop_piece(a, from.random, bits, c, value);
      store(to + c, value);
    }
  });
}

/// The same, and its norm while a row is at hand. kFilled: see NormArgs::fills.
template <class T, class L, bool kFilled>
__global__ void __launch_bounds__(kThreads, L::kIters <= 2 ? 3 : 1)
    assemble_norm_kernel(const __grid_constant__ AssembleArgs<T> a, KeepBits keep, NormArgs norm,
                         int64_t tokens, Matrix<T> x, Matrix<T> y) {
  extern __shared__ __align__(16) float parameters[];
  norm.template stage<L::kW>(parameters);
  if constexpr (kFilled) norm.template assume_filled<L>();
  for_tokens(a, tokens, [&](int64_t t, const TokenParts<T>& from) {
    uint8_t* bits = keep.data != nullptr ? keep.at(t, 0) : nullptr;
    L value;
    L::for_each(norm.columns, [&](int i, int c) { add_parts(a, from, c, value.v[i]); });
    if (a.dropout.active) {
      L::for_each(norm.columns,
                  [&](int i, int c) { drop_piece(a, from.random, bits, c, value.v[i]); });
    }
    value.store_row(x.row(t), norm.columns);
    T* to = y.row(t);
    normalize_row(norm, t, parameters, value,
                  [&](int, int c, const float(&out)[L::kW]) { store(to + c, out); });
  });
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
        KeepBits::byte_of(dropped.dropout.keep_masks(dropped.dropout.row(r), first));
  }
}

void draw_bits(const Exec& exec, int64_t rows, int64_t columns, const DroppedRows& dropped) {
  const int64_t groups = divide_up(columns, 8);
  const int64_t blocks = std::min(divide_up(rows * groups, kThreads), kMaxBlocks);
  draw_bits_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(exec)>>>(
      dropped, rows, static_cast<int>(groups));
  check_launch();
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

void assemble_forward(const Exec& exec, const AssembleParams& p, const Tensor& x,
                      const FollowingNorm& norm) {
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
    const KeepBits keep = keep_of(p, tokens, dim);
    const bool vectorize = can_vectorize(
        dim, {p.content, p.context, p.action_rows, p.position_table, p.time_table, x, norm.y});
    constexpr int64_t kWidestNorm = 512;  // what norm_forward leaves to a single warp, too
    if (norm.y && norm.params.groups == 1 && vectorize && dim <= kWidestNorm) {
      SEGUE_ASSERT(norm.y.dtype == x.dtype && norm.y.size(0) == tokens && norm.y.size(1) == dim,
                   "assemble: the norm of x is like x");
      const NormArgs args(exec, norm.params, norm.stats, tokens, dim);
      const auto launch = [&](auto lanes) {
        using L = decltype(lanes);
        const auto kernel =
            args.fills<L>() ? assemble_norm_kernel<T, L, true> : assemble_norm_kernel<T, L, false>;
        kernel<<<row_blocks(tokens), kThreads, args.parameter_bytes(), stream>>>(
            a, keep, args, tokens, matrix_of<T>(x), matrix_of<T>(norm.y));
        check_launch();
      };
      return dim <= 256 ? launch(Lanes<8, 1>{}) : launch(Lanes<8, 2>{});
    }
    const auto kernel = vectorize ? assemble_kernel<T, 8> : assemble_kernel<T, 1>;
    kernel<<<row_blocks(tokens), kThreads, 0, stream>>>(a, keep, tokens, static_cast<int>(dim),
                                                        matrix_of<T>(x));
    check_launch();
    if (norm.y) cuda::norm_forward(exec, norm.params, x, norm.y, norm.stats, {});
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
  // Positions come first: their groups are long, which leaves most time for the fused sum of codes.
  order_of(gradients.position, p.position_index, 1);
  order_of(gradients.time, p.time_index, 1);
  if (gradients.content || gradients.context) {
    orders.push_back({p.row_index,
                      {gradients.content, rows_or_zero(p.content), p.scale},
                      {gradients.context, rows_or_zero(p.context), p.scale},
                      {}});
  }
  FusedSum codes;
  if (!orders.empty() && can_fuse(dx, gradients.action)) {
    codes = {p.action_index, gradients.action, p.scale};
  } else {
    order_of(gradients.action, p.action_index, p.scale);
  }
  sum_rows(exec, dx, dropped, orders, codes);
}

}  // namespace segue::ops::cuda
