#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <type_traits>

#include "base/error.h"
#include "base/parallel.h"
#include "tensor/exec.h"

// What the CPU forms of the ops share: loops over rows, views, dispatch over types and modes.

namespace segue::ops {

/// Rows per task of a loop that touches every element of its rows once: about 16k elements, enough
/// to hide the cost of a task and few enough to share out. Depends on the shape alone.
inline int64_t row_grain(int64_t columns) {
  constexpr int64_t kElementsPerTask = 16384;
  return std::max<int64_t>(1, kElementsPerTask / std::max<int64_t>(1, columns));
}

/// Calls body(first_row, last_row) over the rows of a [rows, columns] tensor, in parts of nearly
/// equal size: a large one and a small one would be two threads of which one waits.
inline void for_rows(int64_t rows, int64_t columns, base::RangeFunction body) {
  const int64_t parts = base::num_chunks(rows, row_grain(columns));
  base::parallel_for(rows, parts > 1 ? base::num_chunks(rows, parts) : row_grain(columns), body);
}

/// Cuts columns into blocks whose width is known to the compiler, so that sums over many rows stay
/// in registers: f(std::integral_constant<int64_t, width>(), first column) for widths of 64, 32,
/// ... 1.
template <int64_t kWidest = 64, class F>
void for_column_blocks(int64_t columns, const F& f, int64_t first = 0) {
  for (; first + kWidest <= columns; first += kWidest) {
    f(std::integral_constant<int64_t, kWidest>(), first);
  }
  if constexpr (kWidest > 1) {
    if (first < columns) for_column_blocks<kWidest / 2>(columns, f, first);
  }
}

/// Whether the above makes one block of that many columns.
inline bool is_one_block(int64_t columns) {
  return columns <= 64 && std::has_single_bit(static_cast<uint64_t>(columns));
}

/// For what treats every element alike: calls body(row, columns) for each row of the matrices, or,
/// if each has its rows one after the other, for many of them at once as one long row. A loop that
/// is set up anew for every row of 8 floats costs several times what it does.
template <class F>
void for_long_rows(int64_t rows, int64_t columns, std::initializer_list<const Tensor*> matrices,
                   const F& body) {
  const bool joined =
      std::ranges::all_of(matrices, [](const Tensor* t) { return t->is_contiguous(); });
  for_rows(rows, columns, [&](int64_t begin, int64_t end) {
    if (joined) return body(begin, (end - begin) * columns);
    for (int64_t r = begin; r < end; ++r) body(r, columns);
  });
}

/// The tensor as [rows, columns] with unit column stride: rank 1 is one row, rank 2 stays as it is,
/// higher ranks must be contiguous and join all dimensions but the last.
inline Tensor as_matrix(const Tensor& t) {
  if (t.rank == 1) {
    SEGUE_ASSERT(t.stride(0) == 1 || t.size(0) <= 1, "strided vector where a row is needed");
    return Tensor(t.data, t.dtype, t.device, {1, t.size(0)});
  }
  if (t.rank == 2) {
    SEGUE_ASSERT(t.stride(1) == 1 || t.size(1) <= 1, "columns must have unit stride");
    return t;
  }
  const int64_t columns = t.size(t.rank - 1);
  return t.reshape({columns == 0 ? 0 : t.elements() / columns, columns});
}

struct NoRounding {
  template <class T>
  T operator()(T value) const {
    return value;
  }
};
struct Bf16Rounding {
  float operator()(float value) const { return round_to_bf16(value); }
};

/// Calls f(value of the C++ type, rounding of activations): the mode becomes a type, outside the
/// loops.
template <class F>
void dispatch_activation(const Exec& exec, DType dtype, F&& f) {
  if (dtype == DType::kF64) return f(double{}, NoRounding{});
  SEGUE_ASSERT(dtype == DType::kF32, "CPU ops compute in float or double");
  if (exec.rounds_to_bf16()) return f(float{}, Bf16Rounding{});
  return f(float{}, NoRounding{});
}

/// Calls f with a value of the C++ type of an index tensor.
template <class F>
void dispatch_index(const Tensor& index, F&& f) {
  SEGUE_ASSERT(index.rank == 1 && index.is_contiguous(), "an index is a contiguous vector");
  if (index.dtype == DType::kI64) return f(int64_t{});
  return f(int32_t{});
}

[[noreturn]] void fail_row(const char* op, int64_t item, int64_t row, int64_t rows);

/// Error(kOutOfRange) unless 0 <= row < rows; `item` is where the number stands.
inline void check_row(const char* op, int64_t item, int64_t row, int64_t rows) {
  if (row < 0 || row >= rows) [[unlikely]]
    fail_row(op, item, row, rows);
}

/// Rows [begin, end).
struct RowRange {
  int64_t begin = 0, end = 0;
};

/// The rows that index[first] .. index[last - 1] lie in; -1 is none. Error(kOutOfRange) for what is
/// neither -1 nor one of `rows` rows. As unsigned numbers, of which -1 is the largest and 0 when
/// one is added, they are looked at without a branch: vector code.
template <class Index>
RowRange check_rows(const char* op, const Index* index, int64_t first, int64_t last, int64_t rows) {
  using Unsigned = std::make_unsigned_t<Index>;
  Unsigned begin = std::numeric_limits<Unsigned>::max(), end = 0;
  for (int64_t i = first; i < last; ++i) {
    const auto row = static_cast<Unsigned>(index[i]);
    begin = std::min(begin, row);
    end = std::max(end, row + 1);
  }
  // No more than there are numbers from 0 on: those below -1 are large ones here.
  if (end > std::min(static_cast<uint64_t>(rows), uint64_t{std::numeric_limits<Index>::max()} + 1))
      [[unlikely]] {
    for (int64_t i = first; i < last; ++i) {
      if (index[i] != -1) check_row(op, i, index[i], rows);
    }
  }
  return {static_cast<int64_t>(std::min(begin, end)), static_cast<int64_t>(end)};
}

}  // namespace segue::ops
