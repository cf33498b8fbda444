#pragma once

#include "ops/norm.h"
#include "ops/partial_sums.cuh"

namespace segue::ops::cuda {

/// The arithmetic of a norm for kernels that contain one: a warp per row, the row in registers.
struct NormArgs {
  const float* weight;
  const float* bias;
  float* mean;
  float* rstd;
  float eps;
  int columns, groups, width;
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
        round_weights(p.round_weights && exec.rounds_to_bf16()) {
    SEGUE_ASSERT(num_columns % p.groups == 0, "norm: groups must divide the columns");
    SEGUE_ASSERT(
        stats.mean.elements() >= rows * p.groups && stats.rstd.elements() >= rows * p.groups,
        "norm: statistics too short");
    const int64_t parameters = p.groups == 1 ? num_columns : p.groups;
    SEGUE_ASSERT(p.weight.elements() == parameters && p.bias.elements() == parameters,
                 "norm: one weight and bias per column, or per group");
  }
  /// Pieces of 8 columns lie inside one group.
  bool can_vectorize_groups() const { return groups == 1 || width % 8 == 0; }
  size_t parameter_bytes() const { return 2 * static_cast<size_t>(columns) * sizeof(float); }
  /// Of shared memory in a backward kernel: the parameters, then the sums of each warp.
  size_t backward_bytes() const { return (1 + kWarpsPerBlock) * parameter_bytes(); }

  /// Weight and bias as they are used, one per column, into shared memory [2 * columns].
  __device__ void stage(float* shared) const {
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += kThreads) {
      const int at = groups == 1 ? c : c / width;
      const float w = weight[at], b = bias[at];
      shared[c] = round_weights ? rounded<bf16>(w) : w;
      shared[columns + c] = round_weights ? rounded<bf16>(b) : b;
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
  s.mean = warp_sum(sum) / static_cast<float>(a.width);
  float squares = 0;
  L::for_each(a.columns, [&](int i, int c) {
    if (!s.has(c)) return;
    for (int j = 0; j < L::kW; ++j) squares += (x.v[i][j] - s.mean) * (x.v[i][j] - s.mean);
  });
  s.rstd = 1.f / sqrtf(warp_sum(squares) / static_cast<float>(a.width) + a.eps);
  if (threadIdx.x % kWarp == 0) {
    a.mean[row * a.groups + group] = s.mean;
    a.rstd[row * a.groups + group] = s.rstd;
  }
  return s;
}

__device__ inline NormSpan saved_group(const NormArgs& a, int64_t row, int group) {
  const int64_t at = row * a.groups + group;
  return {group * a.width, (group + 1) * a.width, a.mean[at], a.rstd[at]};
}

/// Sums over rows of what weight and bias get per column, in shared memory [2 * columns] of this
/// warp: registers are for rows in flight.
template <class L>
struct WarpSums {
  float* sums;
  int columns;

  __device__ void clear() const {
    const float zeros[L::kW] = {};
    L::for_each(columns, [&](int, int c) {
      store(sums + c, zeros);
      store(sums + columns + c, zeros);
    });
  }
  __device__ void add(int c, const float (&dw)[L::kW], const float (&db)[L::kW]) {
    float now[L::kW];
    load(sums + c, now);
    for (int j = 0; j < L::kW; ++j) now[j] += dw[j];
    store(sums + c, now);
    load(sums + columns + c, now);
    for (int j = 0; j < L::kW; ++j) now[j] += db[j];
    store(sums + columns + c, now);
  }
};

/// add += gradient of the norm's input, given the gradient `dn` of its value; sums += what weight
/// and bias get per column. `parameters` is what stage() wrote, `first` the saved group 0.
template <class L>
__device__ void norm_backward_row(const NormArgs& a, int64_t row, const NormSpan& first,
                                  const float* parameters, const L& x, const L& dn, L& add,
                                  WarpSums<L>& sums) {
  for (int group = 0; group < a.groups; ++group) {
    const NormSpan s = group == 0 ? first : saved_group(a, row, group);
    float sum1 = 0, sum2 = 0;
    L::for_each(a.columns, [&](int i, int c) {
      if (!s.has(c)) return;
      float w[L::kW], dw[L::kW];
      load(parameters + c, w);
      for (int j = 0; j < L::kW; ++j) {
        const float xhat = (x.v[i][j] - s.mean) * s.rstd;
        dw[j] = dn.v[i][j] * xhat;
        sum1 += w[j] * dn.v[i][j];
        sum2 += w[j] * dw[j];
      }
      sums.add(c, dw, dn.v[i]);
    });
    const float mean1 = warp_sum(sum1) / static_cast<float>(a.width);
    const float mean2 = warp_sum(sum2) / static_cast<float>(a.width);
    L::for_each(a.columns, [&](int i, int c) {
      if (!s.has(c)) return;
      float w[L::kW];
      load(parameters + c, w);
      for (int j = 0; j < L::kW; ++j) {
        const float xhat = (x.v[i][j] - s.mean) * s.rstd;
        add.v[i][j] += s.rstd * (w[j] * dn.v[i][j] - mean1 - xhat * mean2);
      }
    });
  }
}

/// Adds the sums of this block's warps in order and writes them to partials[blockIdx.x]
/// [2 * columns]: weight, then bias.
__device__ inline void write_partials(int columns, const float* warp_sums, float* partials) {
  __syncthreads();
  float* to = partials + static_cast<int64_t>(blockIdx.x) * 2 * columns;
  for (int c = static_cast<int>(threadIdx.x); c < 2 * columns; c += kThreads) {
    float sum = 0;
    for (int w = 0; w < kWarpsPerBlock; ++w) sum += warp_sums[w * 2 * columns + c];
    to[c] = sum;
  }
}

/// dweight, dbias += the partial sums of `blocks` blocks; either may be absent.
inline void fold_norm_gradients(cudaStream_t stream, const NormArgs& a, const Tensor& partials,
                                const Tensor& dweight, const Tensor& dbias) {
  const int64_t blocks = partials.size(0), stride = 2 * int64_t{a.columns};
  const int64_t n = a.groups == 1 ? a.columns : a.groups, part = a.groups == 1 ? 1 : a.width;
  const float* from = device_ptr<float>(partials);
  if (dweight) fold_partials(stream, from, blocks, stride, device_ptr<float>(dweight), n, part);
  if (dbias)
    fold_partials(stream, from + a.columns, blocks, stride, device_ptr<float>(dbias), n, part);
}

}  // namespace segue::ops::cuda
