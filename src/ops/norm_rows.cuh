#pragma once

#include "ops/norm.h"
#include "ops/partial_sums.cuh"

namespace segue::ops::cuda {

/// A row of floats in shared memory. Lanes take 8 columns as two pieces of 16 bytes; the first
/// pieces of all lanes lie together, then the second ones, so that banks do not collide.
template <int kW>
struct SharedRow {
  __device__ static int at(int columns, int c) {
    return kW == 8 ? c % 8 / 4 * (columns / 2) + c / 8 * 4 + c % 4 : c;
  }
  __device__ static void load(const float* row, int columns, int c, float (&to)[kW]) {
    if constexpr (kW == 8) {
      const float4 low = *reinterpret_cast<const float4*>(row + c / 2);
      const float4 high = *reinterpret_cast<const float4*>(row + columns / 2 + c / 2);
      to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
      to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
    } else {
      to[0] = row[c];
    }
  }
  __device__ static void store(float* row, int columns, int c, const float (&from)[kW]) {
    if constexpr (kW == 8) {
      *reinterpret_cast<float4*>(row + c / 2) = make_float4(from[0], from[1], from[2], from[3]);
      *reinterpret_cast<float4*>(row + columns / 2 + c / 2) =
          make_float4(from[4], from[5], from[6], from[7]);
    } else {
      row[c] = from[0];
    }
  }
};

/// The sum over all lanes of a team, the same in all of them. `place` is 0 and 1 in turn: what lies
/// in one is overwritten when all have passed the other, so that a sum waits once.
template <class L>
__device__ float team_sum(float x, int place) {
  x = warp_sum(x);
  if constexpr (L::kTeam > kWarp) {
    __shared__ float parts[2][kWarpsPerBlock];
    constexpr int kWarps = L::kTeam / kWarp;
    const int team = static_cast<int>(threadIdx.x) / L::kTeam;
    if (threadIdx.x % kWarp == 0) parts[place][threadIdx.x / kWarp] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + team), "n"(L::kTeam) : "memory");
    x = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) x += parts[place][team * kWarps + w];
  }
  return x;
}

/// The arithmetic of a norm for kernels that contain one: a team per row, the row in registers.
struct NormArgs {
  const float* weight;
  const float* bias;
  float* mean;
  float* rstd;
  float eps;
  int columns, groups, width;
  int columns_per_weight;  // `width` with one weight per group, 1 with one per column
  bool round_weights;

  NormArgs(const Exec& exec, const NormParams& p, const NormStats& stats, int64_t rows,
           int64_t num_columns)
      : weight(device_ptr<float>(p.weight)),
        bias(device_ptr<float>(p.bias)),
        mean(device_ptr<float>(stats.mean)),
        rstd(device_ptr<float>(stats.rstd)),
        eps(static_cast<float>(p.eps)),
        columns(static_cast<int>(num_columns)),
        groups(static_cast<int>(p.groups)),
        width(static_cast<int>(num_columns / p.groups)),
        columns_per_weight(p.weight.elements() == p.groups ? width : 1),
        round_weights(p.round_weights && exec.rounds_to_bf16()) {
    SEGUE_ASSERT(num_columns % p.groups == 0, "norm: groups must divide the columns");
    SEGUE_ASSERT(
        stats.mean.elements() >= rows * p.groups && stats.rstd.elements() >= rows * p.groups,
        "norm: statistics too short");
    SEGUE_ASSERT(p.weight.elements() == weights() && p.bias.elements() == weights(),
                 "norm: one weight and bias per column, or per group");
  }
  int64_t weights() const { return groups == 1 && columns_per_weight == 1 ? columns : groups; }
  /// A single group that fills the lanes of a team: what __device__ code may take for constant.
  template <class L>
  bool fills() const {
    return groups == 1 && columns == L::kColumns;
  }
  template <class L>
  __device__ void assume_filled() {
    columns = width = L::kColumns;
    groups = 1;
  }
  /// Pieces of 8 columns lie inside one group.
  bool can_vectorize_groups() const { return groups == 1 || width % 8 == 0; }
  size_t parameter_bytes() const { return 2 * static_cast<size_t>(columns) * sizeof(float); }
  /// Of shared memory in a backward kernel: the parameters, then the sums of each team.
  template <class L>
  size_t backward_bytes(int kinds_of_sums) const {
    return (2 + static_cast<size_t>(kinds_of_sums) * L::kTeams) * parameter_bytes() / 2;
  }

  /// Weight and bias as they are used, one per column, into shared memory: two SharedRows.
  template <int kW>
  __device__ void stage(float* shared) const {
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) {
      const int at = c / columns_per_weight;
      const float w = weight[at], b = bias[at];
      const int to = SharedRow<kW>::at(columns, c);
      shared[to] = round_weights ? rounded<bf16>(w) : w;
      shared[columns + to] = round_weights ? rounded<bf16>(b) : b;
    }
    __syncthreads();
  }
};

/// One group of a row: its columns and statistics.
struct NormSpan {
  int begin, end;
  float mean, rstd;
  __device__ bool has(int column) const { return column >= begin && column < end; }
};

template <class L>
__device__ NormSpan measure_group(const NormArgs& a, int64_t row, int group, const L& x) {
  NormSpan s{group * a.width, (group + 1) * a.width, 0.f, 0.f};
  float sum = 0;
  L::for_each(a.columns, [&](int i, int c) {
    if (!s.has(c)) return;
    for (int j = 0; j < L::kW; ++j) sum += x.v[i][j];
  });
  s.mean = team_sum<L>(sum, 0) / static_cast<float>(a.width);
  float squares = 0;
  L::for_each(a.columns, [&](int i, int c) {
    if (!s.has(c)) return;
    for (int j = 0; j < L::kW; ++j) squares += (x.v[i][j] - s.mean) * (x.v[i][j] - s.mean);
  });
  s.rstd = 1.f / sqrtf(team_sum<L>(squares, 1) / static_cast<float>(a.width) + a.eps);
  if (threadIdx.x % L::kTeam == 0) {
    a.mean[row * a.groups + group] = s.mean;
    a.rstd[row * a.groups + group] = s.rstd;
  }
  return s;
}

/// finish(i, first column, normalised values) for every piece of a row. `parameters` is what
/// stage() wrote.
template <class L, class Finish>
__device__ void normalize_row(const NormArgs& a, int64_t row, const float* parameters, const L& x,
                              const Finish& finish) {
  for (int group = 0; group < a.groups; ++group) {
    const NormSpan s = measure_group(a, row, group, x);
    L::for_each(a.columns, [&](int i, int c) {
      if (!s.has(c)) return;
      float w[L::kW], b[L::kW], n[L::kW];
      SharedRow<L::kW>::load(parameters, a.columns, c, w);
      SharedRow<L::kW>::load(parameters + a.columns, a.columns, c, b);
      for (int j = 0; j < L::kW; ++j) n[j] = (x.v[i][j] - s.mean) * s.rstd * w[j] + b[j];
      finish(i, c, n);
    });
  }
}

__device__ inline NormSpan saved_group(const NormArgs& a, int64_t row, int group) {
  const int64_t at = row * a.groups + group;
  return {group * a.width, (group + 1) * a.width, a.mean[at], a.rstd[at]};
}

/// Sums over rows of what weight and bias, and perhaps a third parameter, get per column, in shared
/// memory [kinds * columns] of this team: registers are for rows in flight.
template <class L>
struct TeamSums {
  float* sums;
  int columns;

  __device__ void clear(int kinds = 2) const {
    const float zeros[L::kW] = {};
    L::for_each(columns, [&](int, int c) {
      for (int k = 0; k < kinds; ++k) {
        SharedRow<L::kW>::store(sums + k * columns, columns, c, zeros);
      }
    });
  }
  __device__ void add(int c, const float (&dw)[L::kW], const float (&db)[L::kW]) {
    add_to(0, c, dw);
    add_to(1, c, db);
  }
  __device__ void add_to(int kind, int c, const float (&values)[L::kW]) {
    float* row = sums + kind * columns;
    float now[L::kW];
    SharedRow<L::kW>::load(row, columns, c, now);
    for (int j = 0; j < L::kW; ++j) now[j] += values[j];
    SharedRow<L::kW>::store(row, columns, c, now);
  }
};

/// Gradient of the norm's input for one row: finish(i, first column, gradient) for every piece.
/// x(i, to) and dn(i, to) unpack a piece of the input and of the gradient of the norm's value, as
/// often as it is needed: packed rows take half the registers. sums += what weight and bias get.
/// `parameters` is what stage() wrote, `first` the saved group 0.
template <class L, class X, class Dn, class Finish>
__device__ void norm_backward_row(const NormArgs& a, int64_t row, const NormSpan& first,
                                  const float* parameters, const X& x, const Dn& dn,
                                  TeamSums<L>& sums, const Finish& finish) {
  for (int group = 0; group < a.groups; ++group) {
    const NormSpan s = group == 0 ? first : saved_group(a, row, group);
    float sum1 = 0, sum2 = 0;
    L::for_each(a.columns, [&](int i, int c) {
      if (!s.has(c)) return;
      float w[L::kW], value[L::kW], d[L::kW];
      SharedRow<L::kW>::load(parameters, a.columns, c, w);
      x(i, value);
      dn(i, d);
      for (int j = 0; j < L::kW; ++j) {
        value[j] = d[j] * ((value[j] - s.mean) * s.rstd);
        sum1 += w[j] * d[j];
        sum2 += w[j] * value[j];
      }
      sums.add(c, value, d);
    });
    const float mean1 = team_sum<L>(sum1, 0) / static_cast<float>(a.width);
    const float mean2 = team_sum<L>(sum2, 1) / static_cast<float>(a.width);
    L::for_each(a.columns, [&](int i, int c) {
      if (!s.has(c)) return;
      float w[L::kW], value[L::kW], d[L::kW];
      SharedRow<L::kW>::load(parameters, a.columns, c, w);
      x(i, value);
      dn(i, d);
      for (int j = 0; j < L::kW; ++j) {
        const float xhat = (value[j] - s.mean) * s.rstd;
        d[j] = s.rstd * (w[j] * d[j] - mean1 - xhat * mean2);
      }
      finish(i, c, d);
    });
  }
}

/// Adds the sums of this block's teams in order and writes them to partials[blockIdx.x]
/// [kinds * columns]: weight, then bias.
template <class L>
__device__ void write_partials(int columns, int kinds, const float* team_sums, float* partials) {
  __syncthreads();
  const int all = kinds * columns;
  float* to = partials + static_cast<int64_t>(blockIdx.x) * all;
  for (int c = static_cast<int>(threadIdx.x); c < all; c += kThreads) {
    const int half = c / columns * columns;
    const int at = half + SharedRow<L::kW>::at(columns, c - half);
    float sum = 0;
    for (int t = 0; t < L::kTeams; ++t) sum += team_sums[t * all + at];
    to[c] = sum;
  }
}

/// dweight, dbias += what write_partials wrote; either may be absent.
inline void fold_norm_gradients(const NormArgs& a, PartialSums& partials, const Tensor& dweight,
                                const Tensor& dbias) {
  const int64_t n = a.weights(), part = a.columns_per_weight;
  partials.fold(dweight, 0, n, part);
  partials.fold(dbias, a.columns, n, part);
}

}  // namespace segue::ops::cuda
