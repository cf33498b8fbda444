#include "ops/contextual.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "ops/contextual_shapes.h"
#include "ops/cuda_forms.h"
#include "ops/gemm.h"
#include "ops/row_chunks.h"
#include "ops/row_loop.h"

namespace segue::ops {
void contextual_linear_forward(const Exec& exec, const Tensor& e, const Tensor& weight,
                               const Tensor& bias, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::contextual_linear_forward(exec, e, weight, bias, y);
  }
  require_cpu(exec, "contextual_linear_forward");
  check_contextual_shapes(e, weight, y);
  for (int64_t s = 0; s < weight.size(0); ++s) {
    GemmExtra extra;
    if (bias) extra.bias = bias.select(s);
    gemm(exec, Trans::kNo, e.select(s), Trans::kNo, weight.select(s), contextual_slot(y, s), extra);
  }
}

void contextual_linear_backward(const Exec& exec, const Tensor& dy, const Tensor& e,
                                const Tensor& weight, const Tensor& de, const Tensor& dweight,
                                const Tensor& dbias) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda())
      return cuda::contextual_linear_backward(exec, dy, e, weight, de, dweight, dbias);
  }
  require_cpu(exec, "contextual_linear_backward");
  check_contextual_shapes(e, weight, dy);
  GemmExtra add_to;
  add_to.accumulate = true;
  for (int64_t s = 0; s < weight.size(0); ++s) {
    const Tensor dy_s = contextual_slot(dy, s);
    if (de) gemm(exec, Trans::kNo, dy_s, Trans::kYes, weight.select(s), de.select(s));
    if (dweight) {
      gemm(exec, Trans::kYes, e.select(s), Trans::kNo, dy_s, dweight.select(s), add_to);
    }
    if (dbias) column_sum(exec, dy_s, dbias.select(s));
  }
}

void action_encode_forward(const Exec& exec, const Tensor& table, const Tensor& target,
                           const Tensor& code, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::action_encode_forward(exec, table, target, code, y);
  }
  require_cpu(exec, "action_encode_forward");
  const int64_t bits = table.size(0), dim = table.size(1), width = bits * dim;
  SEGUE_ASSERT(code.size(0) == y.size(0) && y.size(1) == width && target.elements() == width,
               "action_encode: shapes differ");
  dispatch_activation(exec, y.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const int32_t* codes = code.ptr<int32_t>();
    const T* target_row = target.ptr<T>();
    for_rows(y.size(0), width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        check_row("action_encode", r, codes[r], (int64_t{1} << bits) + 1);
        T* out = y.row<T>(r);
        if (codes[r] == int64_t{1} << bits) {
          std::transform(target_row, target_row + width, out, round);
          continue;
        }
        for (int64_t k = 0; k < bits; ++k) {
          if ((codes[r] >> k) & 1) {
            std::transform(table.row<T>(k), table.row<T>(k) + dim, out + k * dim, round);
          } else {
            std::fill_n(out + k * dim, dim, T{0});
          }
        }
      }
    });
  });
}

void action_encode_backward(const Exec& exec, const Tensor& dy, const Tensor& code,
                            const Tensor& dtable, const Tensor& dtarget) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::action_encode_backward(exec, dy, code, dtable, dtarget);
  }
  require_cpu(exec, "action_encode_backward");
  const int64_t bits = dtable.size(0), dim = dtable.size(1), width = bits * dim;
  SEGUE_ASSERT(code.size(0) == dy.size(0) && dy.size(1) == width && dtarget.elements() == width,
               "action_encode: shapes differ");
  SEGUE_ASSERT(dtable.is_contiguous() && dtarget.is_contiguous(),
               "action_encode: strided gradient");
  const Arena::Mark mark(*exec.arena);
  dispatch_real(dy.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const int32_t* codes = code.ptr<int32_t>();
    RowChunks<T> chunks(exec, dy.size(0), 2 * width);
    chunks.for_each([&](int64_t begin, int64_t end, T* table_sum, T*) {
      T* target_sum = table_sum + width;
      for (int64_t r = begin; r < end; ++r) {
        check_row("action_encode", r, codes[r], (int64_t{1} << bits) + 1);
        const T* gradient = dy.row<T>(r);
        if (codes[r] == int64_t{1} << bits) {
          for (int64_t c = 0; c < width; ++c) target_sum[c] += gradient[c];
          continue;
        }
        for (int64_t k = 0; k < bits; ++k) {
          if (((codes[r] >> k) & 1) == 0) continue;
          for (int64_t c = k * dim; c < (k + 1) * dim; ++c) table_sum[c] += gradient[c];
        }
      }
    });
    const T* totals = chunks.totals();
    T* table = dtable.ptr<T>();
    T* target = dtarget.ptr<T>();
    for (int64_t c = 0; c < width; ++c) {
      table[c] += totals[c];
      target[c] += totals[width + c];
    }
  });
}

void cyclic_time_features(const Exec& exec, const CyclicParams& p, const Tensor& timestamps,
                          const Tensor& out) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::cyclic_time_features(exec, p, timestamps, out);
  }
  require_cpu(exec, "cyclic_time_features");
  const size_t periods = p.unit_seconds.size();
  SEGUE_ASSERT(p.units_per_period.size() == periods, "cyclic_time_features: periods");
  SEGUE_ASSERT(
      out.size(0) == timestamps.elements() && out.size(1) == 2 * static_cast<int64_t>(periods),
      "cyclic_time_features: shape of the result");
  const auto pi = static_cast<float>(p.pi);
  const int64_t* times = timestamps.ptr<int64_t>();
  dispatch_activation(exec, out.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    constexpr int64_t kRowsPerTask = 1024;
    base::parallel_for(out.size(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const auto seconds = static_cast<float>(times[r]);
        T* row = out.row<T>(r);
        for (size_t i = 0; i < periods; ++i) {
          const auto count = static_cast<float>(p.units_per_period[i]);
          const float unit = std::floor(seconds / static_cast<float>(p.unit_seconds[i]));
          // Before the origin of time the remainder is negative and the place in the period is not.
          const float remainder = std::fmod(unit, count);
          const float place = remainder < 0 ? remainder + count : remainder;
          const float angle = place / count * 2.0f * pi;
          row[2 * i] = round(static_cast<T>(std::cos(angle)));
          row[2 * i + 1] = round(static_cast<T>(std::sin(angle)));
        }
      }
    });
  });
}

}  // namespace segue::ops
