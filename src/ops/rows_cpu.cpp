#include "ops/rows.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "ops/cuda_forms.h"
#include "ops/row_loop.h"
#include "ops/segments.h"

namespace segue::ops {
namespace {

/// y[i] = f(a[i], b[i]) over equally shaped tensors; each may be strided by rows and alias another
/// one.
template <class T, class F>
void map2(const Tensor& a_tensor, const Tensor& b_tensor, const Tensor& y_tensor, const F& f) {
  const Tensor a = as_matrix(a_tensor), b = as_matrix(b_tensor), y = as_matrix(y_tensor);
  SEGUE_ASSERT(a.size(0) == y.size(0) && a.size(1) == y.size(1), "shapes differ");
  SEGUE_ASSERT(b.size(0) == y.size(0) && b.size(1) == y.size(1), "shapes differ");
  for_long_rows(y.size(0), y.size(1), {&a, &b, &y}, [&](int64_t r, int64_t columns) {
    const T* a_row = a.row<T>(r);
    const T* b_row = b.row<T>(r);
    T* y_row = y.row<T>(r);
#pragma GCC ivdep  // an operand may be y itself, never y shifted
    for (int64_t c = 0; c < columns; ++c) y_row[c] = f(a_row[c], b_row[c]);
  });
}

/// x[i] = f(x[i]) in place.
template <class T, class F>
void map_in_place(const Tensor& x_tensor, const F& f) {
  const Tensor x = as_matrix(x_tensor);
  for_long_rows(x.size(0), x.size(1), {&x}, [&](int64_t r, int64_t columns) {
    T* row = x.row<T>(r);
    for (int64_t c = 0; c < columns; ++c) row[c] = f(row[c]);
  });
}

}  // namespace

void gather_rows(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::gather_rows(exec, from, index, to);
  }
  require_cpu(exec, "gather_rows");
  SEGUE_ASSERT(from.rank == 2 && to.rank == 2, "gather_rows: rows are matrices");
  SEGUE_ASSERT(to.size(0) == index.size(0) && to.size(1) == from.size(1),
               "gather_rows: shapes differ");
  const int64_t columns = to.size(1);
  dispatch_real(from.dtype, [&](auto from_zero) {
    dispatch_real(to.dtype, [&](auto to_zero) {
      dispatch_index(index, [&](auto index_zero) {
        using From = decltype(from_zero);
        using To = decltype(to_zero);
        const auto* rows = index.ptr<decltype(index_zero)>();
        for_rows(to.size(0), columns, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            To* to_row = to.row<To>(i);
            if (rows[i] == -1) {
              std::fill_n(to_row, columns, To{0});
              continue;
            }
            check_row("gather_rows", i, rows[i], from.size(0));
            const From* from_row = from.row<From>(rows[i]);
            for (int64_t c = 0; c < columns; ++c) to_row[c] = static_cast<To>(from_row[c]);
          }
        });
      });
    });
  });
}

void scatter_rows(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to) {
  SEGUE_ASSERT(from.rank == 2 && to.rank == 2 && from.dtype == to.dtype,
               "scatter_rows: rows are matrices of one type");
  SEGUE_ASSERT(from.size(0) == index.size(0) && to.size(1) == from.size(1),
               "scatter_rows: shapes differ");
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::scatter_rows(exec, from, index, to);
  }
  require_cpu(exec, "scatter_rows");
  dispatch_real(from.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    const int64_t* rows = index.ptr<int64_t>();
    for_rows(from.size(0), from.size(1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        check_row("scatter_rows", i, rows[i], to.size(0));
        std::copy_n(from.row<T>(i), from.size(1), to.row<T>(rows[i]));
      }
    });
  });
}

void segment_sum(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to,
                 double scale, [[maybe_unused]] const SortedIndex& sorted) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::segment_sum(exec, from, index, to, scale, sorted);
  }
  require_cpu(exec, "segment_sum");
  SEGUE_ASSERT(from.rank == 2 && to.rank == 2, "segment_sum: rows are matrices");
  SEGUE_ASSERT(from.size(0) == index.size(0) && to.size(1) == from.size(1),
               "segment_sum: shapes differ");
  const Arena::Mark mark(*exec.arena);
  const Segments segments = make_segments(exec, index, to.size(0), "segment_sum");
  dispatch_real(from.dtype, [&](auto from_zero) {
    dispatch_real(to.dtype, [&](auto to_zero) {
      using To = decltype(to_zero);
      sum_segments<decltype(from_zero), To>(exec, segments, from, scale,
                                            [&to](int32_t d) { return to.row<To>(d); });
    });
  });
}

void sort_index(std::span<const int32_t> index, int64_t destinations, std::span<int32_t> keys,
                std::span<int32_t> items) {
  SEGUE_ASSERT(keys.size() == index.size() && items.size() == index.size(), "sort_index: sizes");
  const auto key_of = [&](int32_t to) { return to < 0 ? static_cast<int32_t>(destinations) : to; };
  std::vector<int32_t> next(static_cast<size_t>(destinations) + 2, 0);  // place of the next one
  for (const int32_t to : index) ++next[static_cast<size_t>(key_of(to)) + 1];
  for (size_t d = 1; d < next.size(); ++d) next[d] += next[d - 1];
  for (size_t i = 0; i < index.size(); ++i) {
    const int32_t key = key_of(index[i]);
    const auto at = static_cast<size_t>(next[static_cast<size_t>(key)]++);
    keys[at] = key;
    items[at] = static_cast<int32_t>(i);
  }
}

void multiply_forward(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::multiply_forward(exec, a, b, y);
  }
  require_cpu(exec, "multiply_forward");
  dispatch_activation(exec, y.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    map2<T>(a, b, y, [round](T x, T z) { return round(x * z); });
  });
}

void multiply_backward(const Exec& exec, const Tensor& dy, const Tensor& a, const Tensor& b,
                       const Tensor& da, const Tensor& db) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::multiply_backward(exec, dy, a, b, da, db);
  }
  if (da) multiply_forward(exec, dy, b, da);
  if (db) multiply_forward(exec, dy, a, db);
}

void add(const Exec& exec, const Tensor& a, const Tensor& b, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::add(exec, a, b, y);
  }
  require_cpu(exec, "add");
  dispatch_activation(exec, y.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    map2<T>(a, b, y, [round](T x, T z) { return round(x + z); });
  });
}

void convert(const Exec& exec, const Tensor& from_tensor, const Tensor& to_tensor) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::convert(exec, from_tensor, to_tensor);
  }
  require_cpu(exec, "convert");
  const Tensor from = as_matrix(from_tensor), to = as_matrix(to_tensor);
  SEGUE_ASSERT(from.size(0) == to.size(0) && from.size(1) == to.size(1), "convert: shapes differ");
  dispatch_real(from.dtype, [&](auto from_zero) {
    dispatch_real(to.dtype, [&](auto to_zero) {
      using To = decltype(to_zero);
      for_long_rows(to.size(0), to.size(1), {&from, &to}, [&](int64_t r, int64_t columns) {
        const auto* from_row = from.row<decltype(from_zero)>(r);
        To* to_row = to.row<To>(r);
        for (int64_t c = 0; c < columns; ++c) to_row[c] = static_cast<To>(from_row[c]);
      });
    });
  });
}

void scale(const Exec& exec, const Tensor& x, double factor, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::scale(exec, x, factor, y);
  }
  require_cpu(exec, "scale");
  dispatch_activation(exec, y.dtype, [&](auto zero_value, auto round) {
    using T = decltype(zero_value);
    const T f = static_cast<T>(factor);
    map2<T>(x, x, y, [round, f](T value, T) { return round(f * value); });
  });
}

void relu_forward(const Exec& exec, const Tensor& x, const Tensor& y) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::relu_forward(exec, x, y);
  }
  require_cpu(exec, "relu_forward");
  dispatch_real(y.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    // Written so that NaN stays NaN: a run that went wrong must not look healthy.
    map2<T>(x, x, y, [](T value, T) { return value < T{0} ? T{0} : value; });
  });
}

void relu_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& dx) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::relu_backward(exec, dy, x, dx);
  }
  require_cpu(exec, "relu_backward");
  dispatch_real(dx.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    map2<T>(dy, x, dx, [](T gradient, T value) { return value > T{0} ? gradient : T{0}; });
  });
}

void round_rows_to_bf16(const Exec& exec, const Tensor& x) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::round_rows_to_bf16(exec, x);
  }
  require_cpu(exec, "round_rows_to_bf16");
  if (!exec.rounds_to_bf16()) return;
  map_in_place<float>(x, [](float value) { return round_to_bf16(value); });
}

void take(const Exec& exec, const Tensor& from, const Tensor& index, const Tensor& to) {
  SEGUE_ASSERT(index.dtype == DType::kI32 && index.elements() == to.elements(),
               "take: one i32 place per number");
  SEGUE_ASSERT(from.dtype == to.dtype, "take: numbers keep their type");
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::take(exec, from, index, to);
  }
  require_cpu(exec, "take");
  const int32_t* places = index.span<int32_t>().data();
  dispatch_index(from, [&](auto zero_value) {
    using T = decltype(zero_value);
    const std::span<const T> values = from.span<T>();
    T* const out = to.span<T>().data();
    for_rows(to.elements(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        check_row("take", i, places[i], std::ssize(values));
        out[i] = values[static_cast<size_t>(places[i])];
      }
    });
  });
}

void mix(const Exec& exec, const Tensor& from, const Tensor& to) {
  SEGUE_ASSERT(from.elements() == to.elements(), "mix: shapes differ");
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::mix(exec, from, to);
  }
  require_cpu(exec, "mix");
  const int64_t* const in = from.span<int64_t>().data();
  int64_t* const out = to.span<int64_t>().data();
  for_rows(to.elements(), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      out[i] = static_cast<int64_t>(base::splitmix64(static_cast<uint64_t>(in[i])));
    }
  });
}

void gather_tables(const Exec& exec, std::span<const TableRows> parts, DType wire) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::gather_tables(exec, parts, wire);
  }
  for (const TableRows& part : parts) {
    gather_rows(exec, part.table, part.index, part.to);
    round_rows_to_wire(exec, wire, part.to);
  }
}

void round_rows_to_wire(const Exec& exec, DType wire, const Tensor& x) {
  if (wire == DType::kF16) round_rows_to_f16(exec, x);
  // The op rounds to the activation type, which is bf16 in this precision alone.
  if (wire == DType::kBf16) round_rows_to_bf16(exec.with(Precision::kBf16), x);
}

void round_rows_to_f16(const Exec& exec, const Tensor& x) {
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::round_rows_to_f16(exec, x);
  }
  require_cpu(exec, "round_rows_to_f16");
  dispatch_real(x.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    map_in_place<T>(
        x, [](T value) { return static_cast<T>(round_to_f16(static_cast<float>(value))); });
  });
}

}  // namespace segue::ops
