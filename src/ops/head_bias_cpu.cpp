#include "ops/head_bias.h"

#include <utility>

#include "ops/cuda_forms.h"
#include "ops/gemm.h"
#include "ops/row_loop.h"

namespace segue::ops {
namespace {

/// [rows, heads * width] as a [rows, width] for each head.
Tensor by_head(const Tensor& t, int64_t heads) {
  Tensor view = t.split_columns(heads);
  std::swap(view.sizes[0], view.sizes[1]);
  std::swap(view.strides[0], view.strides[1]);
  return view;
}

}  // namespace

void head_bias_dot(const Exec& exec, const Tensor& x, double factor, const Tensor& bias,
                   const Tensor& y, const Tensor& dot) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::head_bias_dot(exec, x, factor, bias, y, dot);
  }
  require_cpu(exec, "head_bias_dot");
  const int64_t columns = x.size(1), heads = dot.size(1), width = columns / heads;
  dispatch_real(y.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const T f = static_cast<T>(factor);
    const T* b = bias.span<T>().data();
    for_rows(x.size(0), columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* from = x.row<T>(r);
        T* to = y.row<T>(r);
        for (int64_t h = 0; h < heads; ++h) {
          T sum = 0;
          for (int64_t c = h * width; c < (h + 1) * width; ++c) {
            to[c] = f * from[c];
            sum += to[c] * b[c];
          }
          dot.row<T>(r)[h] = sum;
        }
      }
    });
  });
}

void head_bias_add(const Exec& exec, const Tensor& x, const Tensor& weights, const Tensor& bias,
                   double factor, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::head_bias_add(exec, x, weights, bias, factor, y);
  }
  require_cpu(exec, "head_bias_add");
  const int64_t columns = x.size(1), width = columns / weights.size(1);
  dispatch_activation(exec, y.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const T f = static_cast<T>(factor);
    const T* b = bias.span<T>().data();
    for_rows(x.size(0), columns, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* from = x.row<T>(r);
        const T* weight = weights.row<T>(r);
        T* to = y.row<T>(r);
        for (int64_t c = 0; c < columns; ++c) {
          to[c] = round(f * (from[c] + weight[c / width] * b[c]));
        }
      }
    });
  });
}

void head_bias_gradients(const Exec& exec, std::span<const HeadBiasGradient> parts) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::head_bias_gradients(exec, parts);
  }
  require_cpu(exec, "head_bias_gradients");
  const Exec wide = exec.rounds_to_bf16() ? exec.with(Precision::kF32) : exec;
  for (const HeadBiasGradient& p : parts) {
    if (!p.weights) {
      column_sum(exec, p.x, p.to);
      continue;
    }
    const int64_t heads = p.weights.size(1);
    gemm_each(wide, Trans::kYes, by_head(p.weights, heads), Trans::kNo, by_head(p.x, heads),
              by_head(p.to.reshape({1, p.to.elements()}), heads), true);
  }
}

}  // namespace segue::ops
