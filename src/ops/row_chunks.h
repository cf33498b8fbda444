#pragma once

#include <algorithm>
#include <cstdint>

#include "base/parallel.h"
#include "ops/row_loop.h"
#include "tensor/exec.h"

namespace segue::ops {

/// A loop over rows that also sums over them, as gradients of parameters do. Rows are cut into
/// fixed chunks; each has its own partial sums and scratch in the arena, and the partial sums are
/// added in the order of the chunks, so that bits do not depend on the number of threads. The
/// memory belongs to the caller's Arena::Mark.
template <class T>
class RowChunks {
 public:
  RowChunks(const Exec& exec, int64_t rows, int64_t sum_width, int64_t scratch_width = 0)
      : rows_(rows),
        chunks_(base::num_chunks(rows, kRowsPerChunk)),
        sum_width_(sum_width),
        // Chunks that run side by side do not share cache lines.
        width_((sum_width + scratch_width + 15) / 16 * 16),
        memory_(exec.arena->tensor(kDTypeOf<T>, {std::max<int64_t>(1, chunks_), width_})
                    .template ptr<T>()) {}

  /// body(begin, end, sums, scratch): `sums` [sum_width] starts at zero, `scratch` is
  /// uninitialised.
  template <class F>
  void for_each(F&& body) {
    base::parallel_for(chunks_, chunks_per_task(), [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        T* sums = memory_ + chunk * width_;
        std::fill_n(sums, sum_width_, T{0});
        const int64_t begin = chunk * kRowsPerChunk;
        body(begin, std::min(begin + kRowsPerChunk, rows_), sums, sums + sum_width_);
      }
    });
  }

  /// The sums over all rows [sum_width], added in double; zero if there are no rows.
  const T* totals() {
    constexpr int64_t kColumns = 64;
    base::parallel_for(sum_width_, kColumns, [&](int64_t begin, int64_t end) {
      double total[kColumns] = {};
      for (int64_t chunk = 0; chunk < chunks_; ++chunk) {
        const T* sums = memory_ + chunk * width_;
        for (int64_t j = begin; j < end; ++j) total[j - begin] += static_cast<double>(sums[j]);
      }
      for (int64_t j = begin; j < end; ++j) memory_[j] = static_cast<T>(total[j - begin]);
    });
    return memory_;
  }

 private:
  static constexpr int64_t kRowsPerChunk = 64;

  /// A chunk of narrow rows alone takes less time than handing it out.
  int64_t chunks_per_task() const {
    return std::max<int64_t>(1, row_grain(sum_width_) / kRowsPerChunk);
  }

  int64_t rows_, chunks_, sum_width_, width_;
  T* memory_;  // [chunks, width]
};

}  // namespace segue::ops
