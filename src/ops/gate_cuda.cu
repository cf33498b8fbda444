#include "ops/cuda_forms.h"
#include "ops/dropout.cuh"
#include "ops/norm_rows.cuh"
#include "ops/wide_lanes.cuh"

namespace segue::ops::cuda {
namespace {

// Blocks on a multiprocessor: what the registers of a row with five operands allow.
constexpr int kBackwardBlocksEach = 2;

// Sums of backward: for the norm's weight and bias, and of U's gradient. These are made always,
// without a choice in the middle of a row: whoever has many rows wants them.
constexpr int kSums = 3, kUSum = 2;

/// Stores, and leaves in `values` what was stored: unpacking is cheaper than rounding once more.
template <int kW, class T>
__device__ void store_rounded(T* to, float (&values)[kW]) {
  if constexpr (kW == 8 && sizeof(T) == 2) {
    uint4 word;
    uint32_t* pairs = reinterpret_cast<uint32_t*>(&word);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      pairs[j] = packed<T>(values[2 * j], values[2 * j + 1]);
      unpack_pair<T>(pairs[j], values[2 * j], values[2 * j + 1]);
    }
    *reinterpret_cast<uint4*>(to) = word;
  } else {
    store(to, values);
    for (int j = 0; j < kW; ++j) values[j] = rounded<T>(values[j]);
  }
}

/// Bits of dropout that forward leaves for backward: KeepMasks::bits of four groups of 8 columns in
/// a word of one lane, so that a warp writes and reads 128 bytes at once. Rows in pieces of 8
/// columns only. gate_keep_bytes says how many there are.
template <class L, int kParts>
struct KeptRow {
  static constexpr int kGroups = kParts * L::kIters;  // of a lane
  static constexpr int kWords = (kGroups + 3) / 4;
  uint32_t words[kWords] = {};

  __device__ static int64_t place(int64_t row, int word) {
    return (row * kWords + word) * L::kTeam + threadIdx.x % L::kTeam;
  }
  __device__ void put(int part, int i, const KeepMasks& masks) {
    const int group = part * L::kIters + i;
    words[group / 4] |= masks.bits(group % 4);
  }
  __device__ uint32_t get(int part, int i) const {
    const int group = part * L::kIters + i;
    return words[group / 4] >> group % 4 * 4;  // bits of other groups are not looked at
  }
  __device__ void store(uint32_t* keep, int64_t row) const {
#pragma unroll
    for (int k = 0; k < kWords; ++k) keep[place(row, k)] = words[k];
  }
  __device__ void load(const uint32_t* keep, int64_t row) {
#pragma unroll
    for (int k = 0; k < kWords; ++k) words[k] = keep[place(row, k)];
  }
};

/// Null unless dropout is on and somebody keeps its bits.
uint32_t* keep_of(const GateParams& p) {
  if (!p.keep || p.dropout.p <= 0) return nullptr;
  return static_cast<uint32_t*>(p.keep.data);
}

/// kKeep: dropout is on and leaves its bits. kFilled: see NormArgs::fills.
template <class T, class L, bool kConcat, bool kKeep, bool kFilled>
__global__ void __launch_bounds__(kThreads, L::kIters <= 2 ? 2 : 1)
    gate_forward_kernel(NormArgs norm, DropoutArgs dropout, uint32_t* keep, int64_t rows,
                        Matrix<const T> u, Matrix<const T> a, Matrix<T> y) {
  constexpr int kParts = kConcat ? 3 : 1;
  extern __shared__ __align__(16) float parameters[];
  norm.template stage<L::kW>(parameters);
  if constexpr (kFilled) norm.template assume_filled<L>();
  const int width = norm.columns;
  const BlockRows block(rows, L::kTeam);
  using Raw = typename L::template Raw<T>;
  Raw raw_u, raw_a;
  DropoutArgs::Row next_random;
  const auto fetch = [&](int64_t r) {
    if (r >= block.end) return;
    raw_a.load_row(a.row(r), width);
    raw_u.load_row(u.row(r), width);
    next_random = dropout.row(r);
  };
  fetch(block.begin);
  for (int64_t r = block.begin; r < block.end; r += L::kTeams) {
    const DropoutArgs::Row random = next_random;
    L a_row;
    a_row.unpack(raw_a, width);
    Raw silu;
    L::for_each(width, [&](int i, int) {
      float v[L::kW];
      raw_u.unpack(i, v);
      for (int j = 0; j < L::kW; ++j) v[j] = Silu<T>(v[j]).value;
      silu.pack(i, v);
    });
    fetch(r + L::kTeams);  // is on its way while this row is worked on
    T* to = y.row(r);
    KeptRow<L, kParts> kept;
    const auto finish = [&](int part, int i, int c, float(&v)[L::kW]) {
      const int column = part * width + c;
      if (!kKeep && !dropout.active) {
        store(to + column, v);
      } else if constexpr (L::kW == 8) {
        const KeepMasks masks = dropout.keep_masks(random, column);
        if constexpr (kKeep) kept.put(part, i, masks);
        dropout.store_kept(masks, v, to + column);
      } else {
        dropout.apply(random, column, v);
        store(to + column, v);
      }
    };
    for (int group = 0; group < norm.groups; ++group) {
      const NormSpan s = measure_group(norm, r, group, a_row);
      L::for_each(width, [&](int i, int c) {
        if (!s.has(c)) return;
        float w[L::kW], b[L::kW], value[L::kW], gated[L::kW];
        silu.unpack(i, value);
        SharedRow<L::kW>::load(parameters, width, c, w);
        SharedRow<L::kW>::load(parameters + width, width, c, b);
        for (int j = 0; j < L::kW; ++j) {
          gated[j] = value[j] * ((a_row.v[i][j] - s.mean) * s.rstd * w[j] + b[j]);
        }
        finish(kParts - 1, i, c, gated);
        if constexpr (kConcat) {
          finish(0, i, c, value);
          finish(1, i, c, a_row.v[i]);
        }
      });
    }
    if constexpr (kKeep) kept.store(keep, r);
  }
}

template <class T, class L, bool kConcat, bool kKept>
__global__ void __launch_bounds__(kThreads, L::kIters <= 2 ? kBackwardBlocksEach : 1)
    gate_backward_kernel(NormArgs norm, DropoutArgs dropout, const uint32_t* keep, int64_t rows,
                         Matrix<const T> u, Matrix<const T> a, Matrix<const T> dy, Matrix<T> du,
                         Matrix<T> da, float* partials) {
  constexpr int kParts = kConcat ? 3 : 1;
  extern __shared__ __align__(16) float shared[];
  float* parameters = shared;
  norm.template stage<L::kW>(parameters);
  const int width = norm.columns;
  float* team_sums = shared + 2 * width;
  TeamSums<L> sums{team_sums + threadIdx.x / L::kTeam * kSums * width, width};
  sums.clear(kSums);
  const BlockRows block(rows, L::kTeam);
  for (int64_t r = block.begin; r < block.end; r += L::kTeams) {
    typename L::template Raw<T> raw_u, raw_a, raw_gated, raw_plain, raw_direct;
    const T* from = dy.row(r);
    raw_a.load_row(a.row(r), width);
    raw_u.load_row(u.row(r), width);
    raw_gated.load_row(from + (kConcat ? 2 * width : 0), width);
    if constexpr (kConcat) {
      raw_direct.load_row(from, width);
      raw_plain.load_row(from + width, width);
    }
    const DropoutArgs::Row random = dropout.row(r);
    KeptRow<L, kParts> kept;
    if constexpr (kKept) kept.load(keep, r);
    const auto drop = [&](int part, int i, int c, float(&v)[L::kW]) {
      if (!dropout.active) return;
      const int column = part * width + c;
      dropout.apply_bits(kKept ? kept.get(part, i) : dropout.keep_bits(random, column), column, v);
    };
    const NormSpan first = saved_group(norm, r, 0);
    T *du_to = du.row(r), *da_to = da.row(r);
    L dn;
    for (int group = 0; group < norm.groups; ++group) {
      const NormSpan s = group == 0 ? first : saved_group(norm, r, group);
      L::for_each(width, [&](int i, int c) {
        if (!s.has(c)) return;
        float w[L::kW], b[L::kW], value[L::kW], raw[L::kW], direct[L::kW] = {};
        raw_gated.unpack(i, dn.v[i]);
        drop(kParts - 1, i, c, dn.v[i]);
        if constexpr (kConcat) {
          raw_direct.unpack(i, direct);
          drop(0, i, c, direct);
        }
        raw_u.unpack(i, raw);
        raw_a.unpack(i, value);
        SharedRow<L::kW>::load(parameters, width, c, w);
        SharedRow<L::kW>::load(parameters + width, width, c, b);
        for (int j = 0; j < L::kW; ++j) {
          const Silu<T> silu(raw[j]);
          const float g = (value[j] - s.mean) * s.rstd * w[j] + b[j];
          raw[j] = (direct[j] + dn.v[i][j] * g) * silu.derivative;
          dn.v[i][j] *= rounded<T>(silu.value);
        }
        store_rounded(du_to + c, raw);
        sums.add_to(kUSum, c, raw);
      });
    }
    const auto a_at = [&](int i, float(&v)[L::kW]) { raw_a.unpack(i, v); };
    const auto dn_at = [&](int i, float(&v)[L::kW]) {
      for (int j = 0; j < L::kW; ++j) v[j] = dn.v[i][j];
    };
    norm_backward_row(norm, r, first, parameters, a_at, dn_at, sums,
                      [&](int i, int c, float(&gradient)[L::kW]) {
                        if constexpr (kConcat) {
                          float plain[L::kW];
                          raw_plain.unpack(i, plain);
                          drop(1, i, c, plain);
                          for (int j = 0; j < L::kW; ++j) gradient[j] += plain[j];
                        }
                        store(da_to + c, gradient);
                      });
  }
  write_partials<L>(width, kSums, team_sums, partials);
}

template <class T, int kW, bool kBackward>
__global__ void __launch_bounds__(kThreads)
    silu_kernel(int64_t rows, int columns, Matrix<const T> dy, Matrix<const T> x, Matrix<T> to) {
  const BlockRows block(rows);
  for (int64_t r = block.begin; r < block.end; r += kWarpsPerBlock) {
    for (int c = static_cast<int>(threadIdx.x % kWarp) * kW; c < columns; c += kWarp * kW) {
      float value[kW], gradient[kW];
      load(x.row(r) + c, value);
      if constexpr (kBackward) load(dy.row(r) + c, gradient);
      for (int j = 0; j < kW; ++j) {
        const Silu<T> silu(value[j]);
        value[j] = kBackward ? gradient[j] * silu.derivative : silu.value;
      }
      store(to.row(r) + c, value);
    }
  }
}

/// dx = dy silu'(x), and the sums of its columns over this block's rows as column_partials makes
/// them.
template <class T, int kW>
__global__ void __launch_bounds__(kThreads)
    silu_backward_sums_kernel(int64_t rows, int columns, Matrix<const T> dy, Matrix<const T> x,
                              Matrix<T> dx, float* partials) {
  using Piece = SumPiece<kW>;
  const int base = static_cast<int>(blockIdx.x) * kSumWidth;
  const int count = min(kSumWidth, columns - base);
  Piece sum{};
  const BlockRows block(rows, kWarp, blockIdx.y, gridDim.y);
#pragma unroll 2
  for (int64_t r = block.begin; r < block.end; r += kWarpsPerBlock) {
    Piece value, gradient;
    value.load_row(x.row(r) + base, count);
    gradient.load_row(dy.row(r) + base, count);
    T* to = dx.row(r) + base;
    Piece::for_each(count, [&](int i, int c) {
      for (int j = 0; j < kW; ++j) {
        // Not one instruction with the sum below, which is of what is stored.
        gradient.v[i][j] = __fmul_rn(gradient.v[i][j], Silu<T>(value.v[i][j]).derivative);
      }
      store_rounded(to + c, gradient.v[i]);
      for (int j = 0; j < kW; ++j) sum.v[i][j] += gradient.v[i][j];
    });
  }
  write_column_sums<kW>(sum, base, count, columns, partials);
}

void check_matrix(const Tensor& t, int64_t rows, int64_t columns, DType dtype) {
  SEGUE_ASSERT(t.rank == 2 && t.size(0) == rows && t.size(1) == columns && t.dtype == dtype,
               "gate: matrices of one type and the right shape");
}

void check_gate(const GateParams& p, const Tensor& y) {
  const int64_t rows = p.a.size(0), width = p.a.size(1);
  check_matrix(p.u, rows, width, p.a.dtype);
  check_matrix(y, rows, p.concat ? 3 * width : width, p.a.dtype);
}

/// Both directions must cut rows alike.
void check_keep(const Exec& exec, const GateParams& p, int64_t rows, bool vectorize) {
  if (keep_of(p) == nullptr) return;
  SEGUE_ASSERT(vectorize, "gate: bits are kept of aligned rows only");
  SEGUE_ASSERT(p.keep.is_contiguous() && p.keep.size(0) == rows &&
                   p.keep.size(1) == gate_keep_bytes(exec, p),
               "gate: bits [rows, gate_keep_bytes]");
}

template <bool kBackward>
void silu_op(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& to) {
  const int64_t rows = x.size(0), columns = x.size(1);
  check_matrix(to, rows, columns, x.dtype);
  if (kBackward) check_matrix(dy, rows, columns, x.dtype);
  if (rows == 0 || columns == 0) return;
  const cudaStream_t stream = stream_of(exec);
  const auto launch = [&](auto zero_value, auto kernel) {
    using T = decltype(zero_value);
    kernel<<<row_blocks(rows), kThreads, 0, stream>>>(
        rows, static_cast<int>(columns), input_of<T>(dy), input_of<T>(x), matrix_of<T>(to));
    check_launch();
  };
  dispatch_type(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    if (can_vectorize(columns, {dy, x, to})) {
      launch(zero_value, silu_kernel<T, 8, kBackward>);
    } else {
      launch(zero_value, silu_kernel<T, 1, kBackward>);
    }
  });
}

}  // namespace

void gate_forward(const Exec& exec, const GateParams& p, const Tensor& y, const NormStats& stats) {
  check_gate(p, y);
  const int64_t rows = p.a.size(0), width = p.a.size(1);
  if (rows == 0 || width == 0) return;
  const NormArgs norm(exec, p.norm, stats, rows, width);
  const DropoutArgs dropout(exec, p.dropout);
  const cudaStream_t stream = stream_of(exec);
  const auto launch = [&](auto zero_value, auto lanes, auto kernel) {
    using T = decltype(zero_value);
    allow_shared_memory(kernel, norm.parameter_bytes());
    kernel<<<row_blocks<decltype(lanes)>(rows), kThreads, norm.parameter_bytes(), stream>>>(
        norm, dropout, keep_of(p), rows, input_of<T>(p.u), input_of<T>(p.a), matrix_of<T>(y));
    check_launch();
  };
  const bool vectorize = can_vectorize(width, {p.u, p.a, y}) && norm.can_vectorize_groups();
  check_keep(exec, p, rows, vectorize);
  dispatch_type(p.a.dtype, [&](auto zero_value) {
    dispatch_lanes(width, vectorize, [&](auto lanes) {
      using T = decltype(zero_value);
      using L = decltype(lanes);
      if constexpr (L::kW == 8) {
        if (keep_of(p) != nullptr && norm.template fills<L>()) {
          return launch(zero_value, lanes,
                        p.concat ? gate_forward_kernel<T, L, true, true, true>
                                 : gate_forward_kernel<T, L, false, true, true>);
        }
        if (keep_of(p) != nullptr) {
          return launch(zero_value, lanes,
                        p.concat ? gate_forward_kernel<T, L, true, true, false>
                                 : gate_forward_kernel<T, L, false, true, false>);
        }
      }
      launch(zero_value, lanes,
             p.concat ? gate_forward_kernel<T, L, true, false, false>
                      : gate_forward_kernel<T, L, false, false, false>);
    });
  });
}

void gate_backward(const Exec& exec, const GateParams& p, const NormStats& stats, const Tensor& dy,
                   const Tensor& du, const Tensor& da, const GateGradients& gradients) {
  check_gate(p, dy);
  const int64_t rows = p.a.size(0), width = p.a.size(1);
  check_matrix(du, rows, width, p.a.dtype);
  check_matrix(da, rows, width, p.a.dtype);
  if (rows == 0 || width == 0) return;
  const NormArgs norm(exec, p.norm, stats, rows, width);
  const DropoutArgs dropout(exec, p.dropout);
  const cudaStream_t stream = stream_of(exec);
  const Arena::Mark mark(*exec.arena);
  const auto launch = [&](auto zero_value, auto lanes, auto kernel) {
    using T = decltype(zero_value);
    using L = decltype(lanes);
    const size_t bytes = norm.backward_bytes<L>(kSums);
    const unsigned blocks = row_blocks<L>(rows, blocks_at_once(kBackwardBlocksEach, bytes));
    PartialSums partials(exec, blocks, kSums * width);
    allow_shared_memory(kernel, bytes);
    kernel<<<blocks, kThreads, bytes, stream>>>(norm, dropout, keep_of(p), rows, input_of<T>(p.u),
                                                input_of<T>(p.a), input_of<T>(dy), matrix_of<T>(du),
                                                matrix_of<T>(da), partials.data());
    check_launch();
    fold_norm_gradients(norm, partials, gradients.weight, gradients.bias);
    partials.fold(gradients.u_bias, kUSum * width, width);
  };
  const bool vectorize =
      can_vectorize(width, {p.u, p.a, dy, du, da}) && norm.can_vectorize_groups();
  check_keep(exec, p, rows, vectorize);
  dispatch_type(p.a.dtype, [&](auto zero_value) {
    dispatch_lanes(width, vectorize, [&](auto lanes) {
      using T = decltype(zero_value);
      using L = decltype(lanes);
      if constexpr (L::kW == 8) {
        if (keep_of(p) != nullptr) {
          return launch(zero_value, lanes,
                        p.concat ? gate_backward_kernel<T, L, true, true>
                                 : gate_backward_kernel<T, L, false, true>);
        }
      }
      launch(zero_value, lanes,
             p.concat ? gate_backward_kernel<T, L, true, false>
                      : gate_backward_kernel<T, L, false, false>);
    });
  });
}

void silu_forward(const Exec& exec, const Tensor& x, const Tensor& y) {
  silu_op<false>(exec, {}, x, y);
}
void silu_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& dx,
                   const Tensor& sums) {
  const int64_t rows = x.size(0), columns = x.size(1);
  if (!sums || rows == 0 || columns == 0) return silu_op<true>(exec, dy, x, dx);
  check_matrix(dx, rows, columns, x.dtype);
  check_matrix(dy, rows, columns, x.dtype);
  const Arena::Mark mark(*exec.arena);
  const int64_t blocks = row_blocks(rows, kPartialBlocks);
  PartialSums partials(exec, blocks, columns);
  const dim3 grid(static_cast<unsigned>(divide_up(columns, kSumWidth)),
                  static_cast<unsigned>(blocks));
  dispatch_type(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const auto kernel = can_vectorize(columns, {dy, x, dx}) ? silu_backward_sums_kernel<T, 8>
                                                            : silu_backward_sums_kernel<T, 1>;
    kernel<<<grid, kThreads, 0, stream_of(exec)>>>(rows, static_cast<int>(columns), input_of<T>(dy),
                                                   input_of<T>(x), matrix_of<T>(dx),
                                                   partials.data());
    check_launch();
  });
  partials.fold(sums, 0, columns);
}

}  // namespace segue::ops::cuda
