#include "ops/interaction.h"

#include <algorithm>

#include "ops/cuda_forms.h"
#include "ops/row_loop.h"

namespace segue::ops {
namespace {

/// Width of one vector; `y` is the result or its gradient.
int64_t checked_width(const Tensor& x, int64_t count, const Tensor& y) {
  SEGUE_ASSERT(count >= 1 && x.size(1) % count == 0, "dot_interaction: vectors of one width");
  const int64_t dim = x.size(1) / count;
  SEGUE_ASSERT(y.size(0) == x.size(0) && y.size(1) == dot_interaction_columns(count, dim),
               "dot_interaction: shapes differ");
  return dim;
}

}  // namespace

void dot_interaction_forward(const Exec& exec, const Tensor& x, int64_t count, const Tensor& y) {
  const int64_t dim = checked_width(x, count, y);
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::dot_interaction_forward(exec, x, count, y);
  }
  require_cpu(exec, "dot_interaction_forward");
  dispatch_activation(exec, y.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    for_rows(y.size(0), count * x.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* vectors = x.row<T>(r);
        T* out = std::copy_n(vectors, dim, y.row<T>(r));
        for (int64_t i = 1; i < count; ++i) {
          for (int64_t j = 0; j < i; ++j) {
            T sum = 0;
            for (int64_t c = 0; c < dim; ++c) sum += vectors[i * dim + c] * vectors[j * dim + c];
            *out++ = round(sum);
          }
        }
      }
    });
  });
}

void dot_interaction_backward(const Exec& exec, const Tensor& dy, const Tensor& x, int64_t count,
                              const Tensor& dx) {
  const int64_t dim = checked_width(x, count, dy);
  SEGUE_ASSERT(dx.size(0) == x.size(0) && dx.size(1) == x.size(1),
               "dot_interaction: shapes differ");
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::dot_interaction_backward(exec, dy, x, count, dx);
  }
  require_cpu(exec, "dot_interaction_backward");
  dispatch_activation(exec, dx.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    for_rows(dx.size(0), count * x.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T *vectors = x.row<T>(r), *of_copy = dy.row<T>(r), *of_pairs = of_copy + dim;
        for (int64_t i = 0; i < count; ++i) {
          T* sum = dx.row<T>(r) + i * dim;
          for (int64_t c = 0; c < dim; ++c) sum[c] = i == 0 ? of_copy[c] : T{0};
          for (int64_t j = 0; j < count; ++j) {
            if (j == i) continue;
            const T gradient = of_pairs[dot_pair(i, j)];
            for (int64_t c = 0; c < dim; ++c) sum[c] += gradient * vectors[j * dim + c];
          }
          for (int64_t c = 0; c < dim; ++c) sum[c] = round(sum[c]);
        }
      }
    });
  });
}

}  // namespace segue::ops
