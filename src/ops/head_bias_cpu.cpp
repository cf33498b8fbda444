#include "ops/head_bias.h"

#include "ops/cuda_forms.h"
#include "ops/row_loop.h"

namespace segue::ops {

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

}  // namespace segue::ops
