#include "ops/norm.h"

#include <cmath>

#include "ops/cuda_forms.h"
#include "ops/gemm.h"
#include "ops/norm_rows.h"
#include "ops/row_chunks.h"
#include "ops/row_loop.h"
#include "ops/rows.h"
#include "ops/vector_math.h"

namespace segue::ops {
namespace {

void check_same_shape(const Tensor& x, const Tensor& y) {
  SEGUE_ASSERT(x.rank == 2 && y.rank == 2 && x.size(0) == y.size(0) && x.size(1) == y.size(1),
               "norm: matrices of one shape");
  SEGUE_ASSERT(x.dtype == y.dtype && x.stride(1) == 1 && y.stride(1) == 1,
               "norm: matrices of one type with unit column stride");
}

template <class T>
T row_length(const T* x, int64_t columns) {
  return std::sqrt(lane_sum<T>(columns, [&](int64_t j) { return x[j] * x[j]; }));
}

}  // namespace

NormStats make_norm_stats(const Exec& exec, int64_t rows, int64_t groups) {
  return {exec.statistic({rows * groups}), exec.statistic({rows * groups})};
}

void norm_forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
                  const NormStats& stats, const Tensor& addend) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::norm_forward(exec, p, x, y, stats, addend);
  }
  require_cpu(exec, "norm_forward");
  check_same_shape(x, y);
  const Arena::Mark scratch(*exec.arena);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const NormRows<T> norm(exec, p, stats, x.size(0), x.size(1));
    for_rows(x.size(0), x.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* xr = x.row<T>(r);
        T* yr = y.row<T>(r);
        for (int64_t g = 0; g < norm.groups(); ++g) {
          const auto s = norm.measure(r, g, xr);
#pragma GCC ivdep
          for (int64_t j = s.begin; j < s.end; ++j) yr[j] = round(norm.apply(s, xr[j], j));
        }
      }
    });
  });
  if (addend) add(exec, y, addend, y);
}

void norm_backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
                   const NormStats& stats, const Tensor& residual, const Tensor& dx,
                   const NormGradients& gradients) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda())
      return cuda::norm_backward(exec, p, dy, x, stats, residual, dx, gradients);
  }
  require_cpu(exec, "norm_backward");
  check_same_shape(x, dy);
  check_same_shape(x, dx);
  if (residual) check_same_shape(x, residual);
  const Arena::Mark scratch(*exec.arena);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const NormRows<T> norm(exec, p, stats, x.size(0), x.size(1));
    RowChunks<T> chunks(exec, x.size(0), 2 * x.size(1));
    chunks.for_each([&](int64_t begin, int64_t end, T* sums, T*) {
      for (int64_t r = begin; r < end; ++r) {
        norm.backward(r, dy.row<T>(r), x.row<T>(r), residual ? residual.row<T>(r) : nullptr,
                      dx.row<T>(r), sums, round);
      }
    });
    norm.add_gradients(chunks.totals(), gradients.weight, gradients.bias);
  });
  if (gradients.input_bias) column_sum(exec, dx, gradients.input_bias);
}

void swish_norm_forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
                        const NormStats& stats) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::swish_norm_forward(exec, p, x, y, stats);
  }
  require_cpu(exec, "swish_norm_forward");
  check_same_shape(x, y);
  SEGUE_ASSERT(p.groups == 1, "swish_norm: layer norm only");
  const Arena::Mark scratch(*exec.arena);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const NormRows<T> norm(exec, p, stats, x.size(0), x.size(1));
    for_rows(x.size(0), x.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* xr = x.row<T>(r);
        T* yr = y.row<T>(r);
        const auto s = norm.measure(r, 0, xr);
#pragma GCC ivdep
        for (int64_t j = s.begin; j < s.end; ++j) {
          yr[j] = round(xr[j] * sigmoid(norm.apply(s, xr[j], j)));
        }
      }
    });
  });
}

void swish_norm_backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
                         const NormStats& stats, const Tensor& dx, const NormGradients& gradients) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda())
      return cuda::swish_norm_backward(exec, p, dy, x, stats, dx, gradients);
  }
  require_cpu(exec, "swish_norm_backward");
  check_same_shape(x, dy);
  check_same_shape(x, dx);
  SEGUE_ASSERT(p.groups == 1, "swish_norm: layer norm only");
  const Arena::Mark scratch(*exec.arena);
  const int64_t columns = x.size(1);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const NormRows<T> norm(exec, p, stats, x.size(0), columns);
    RowChunks<T> chunks(exec, x.size(0), 2 * columns, 2 * columns);
    chunks.for_each([&](int64_t begin, int64_t end, T* sums, T* row_scratch) {
      T* dn = row_scratch;                // gradient of the norm's value
      T* direct = row_scratch + columns;  // gradient of the x outside the norm
      for (int64_t r = begin; r < end; ++r) {
        const T* xr = x.row<T>(r);
        const T* dyr = dy.row<T>(r);
        const auto s = norm.saved(r, 0);
#pragma GCC ivdep
        for (int64_t j = 0; j < columns; ++j) {
          const Sigmoid<T> gate(norm.apply(s, xr[j], j));
          direct[j] = dyr[j] * gate.value;
          dn[j] = dyr[j] * xr[j] * gate.derivative;
        }
        norm.backward(r, dn, xr, direct, dx.row<T>(r), sums, round);
      }
    });
    norm.add_gradients(chunks.totals(), gradients.weight, gradients.bias);
  });
  if (gradients.input_bias) column_sum(exec, dx, gradients.input_bias);
}

void l2_normalize_forward(const Exec& exec, const Tensor& x, double eps, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::l2_normalize_forward(exec, x, eps, y);
  }
  require_cpu(exec, "l2_normalize_forward");
  check_same_shape(x, y);
  const int64_t columns = x.size(1);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    for_rows(x.size(0), columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* xr = x.row<T>(r);
        T* yr = y.row<T>(r);
        const T length = std::max(row_length(xr, columns), static_cast<T>(eps));
#pragma GCC ivdep
        for (int64_t j = 0; j < columns; ++j) yr[j] = round(xr[j] / length);
      }
    });
  });
}

void l2_normalize_backward(const Exec& exec, const Tensor& dy, const Tensor& x, double eps,
                           const Tensor& dx) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::l2_normalize_backward(exec, dy, x, eps, dx);
  }
  require_cpu(exec, "l2_normalize_backward");
  check_same_shape(x, dy);
  check_same_shape(x, dx);
  const int64_t columns = x.size(1);
  dispatch_activation(exec, x.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    for_rows(x.size(0), columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* xr = x.row<T>(r);
        const T* dyr = dy.row<T>(r);
        T* dxr = dx.row<T>(r);
        const T length = row_length(xr, columns);
        // Below eps the divisor is a constant, and nothing flows back through it.
        const T divisor = std::max(length, static_cast<T>(eps));
        const T inner = length < static_cast<T>(eps) ? T(0) : lane_sum<T>(columns, [&](int64_t j) {
                                                                return xr[j] * dyr[j];
                                                              }) / (length * length);
#pragma GCC ivdep
        for (int64_t j = 0; j < columns; ++j) dxr[j] = round((dyr[j] - xr[j] * inner) / divisor);
      }
    });
  });
}

}  // namespace segue::ops
