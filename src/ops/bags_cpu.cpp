#include "ops/bags.h"

#include <algorithm>

#include "ops/cuda_forms.h"
#include "ops/row_loop.h"

namespace segue::ops {
namespace {

/// Asks for rows before they are needed, where the table is larger than the caches of a core: an
/// index tells long in advance what will be read, and a core alone waits for few rows at a time.
template <class T>
class RowPrefetch {
 public:
  explicit RowPrefetch(const Tensor& from)
      : from_(from),
        // As many lines on the way as memory answers at once, in whole rows.
        ahead_(
            from.bytes() < kLargeTable
                ? 0
                : std::max<int64_t>(2, kLinesAhead * kLine / std::max<int64_t>(1, from.size(1)))) {}
  template <class Index>
  void before(const Index* rows, int64_t i, int64_t count) const {
    if (ahead_ == 0 || i + ahead_ >= count) return;
    const int64_t next = rows[i + ahead_];
    if (next < 0 || next >= from_.size(0)) return;
    const T* row = from_.row<T>(next);
    for (int64_t c = 0; c < from_.size(1); c += kLine) __builtin_prefetch(row + c);
  }

 private:
  static constexpr int64_t kLargeTable = int64_t{4} << 20;
  static constexpr int64_t kLinesAhead = 64;
  static constexpr int64_t kLine = 64 / sizeof(T);
  const Tensor& from_;
  int64_t ahead_;
};

}  // namespace

void bag_sum_forward(const Exec& exec, const Tensor& from, const Tensor& index,
                     const Tensor& offsets, const Tensor& y) {
  SEGUE_ASSERT(from.rank == 2 && y.rank == 2, "bag_sum_forward: rows are matrices");
  SEGUE_ASSERT(offsets.size(0) == y.size(0) + 1 && y.size(1) == from.size(1),
               "bag_sum_forward: shapes differ");
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::bag_sum_forward(exec, from, index, offsets, y);
  }
  require_cpu(exec, "bag_sum_forward");
  const int64_t columns = y.size(1);
  const auto sum_bags = [&](auto from_zero, auto to_zero, auto round, const auto* rows,
                            const auto* first) {
    using To = decltype(to_zero);
    const RowPrefetch<decltype(from_zero)> prefetch(from);
    const int64_t ids = index.size(0);
    for_rows(y.size(0), columns, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) {
        To* sum = y.row<To>(b);
        std::fill_n(sum, columns, To{0});
        for (int64_t i = first[b]; i < first[b + 1]; ++i) {
          prefetch.before(rows, i, ids);
          if (rows[i] == -1) continue;
          check_row("bag_sum_forward", i, rows[i], from.size(0));
          const auto* row = from.row<decltype(from_zero)>(rows[i]);
          for (int64_t c = 0; c < columns; ++c) sum[c] += static_cast<To>(row[c]);
        }
        for (int64_t c = 0; c < columns; ++c) sum[c] = round(sum[c]);
      }
    });
  };
  dispatch_real(from.dtype, [&](auto from_zero) {
    dispatch_activation(exec, y.dtype, [&](auto to_zero, auto round) {
      dispatch_index(index, [&](auto index_zero) {
        dispatch_index(offsets, [&](auto offset_zero) {
          sum_bags(from_zero, to_zero, round, index.ptr<decltype(index_zero)>(),
                   offsets.ptr<decltype(offset_zero)>());
        });
      });
    });
  });
}

void bag_sum_backward(const Exec& exec, const Tensor& dy, const Tensor& index, const Tensor& bag,
                      const Tensor& dfrom, const SortedIndex& sorted) {
  SEGUE_ASSERT(bag.size(0) == index.size(0), "bag_sum_backward: a bag for every id");
  const Arena::Mark scratch(*exec.arena);
  const Tensor each = exec.arena->tensor(dy.dtype, {index.size(0), dy.size(1)});
  gather_rows(exec, dy, bag, each);
  segment_sum(exec, each, index, dfrom, 1, sorted);
}

void bag_of_each(std::span<const int64_t> offsets, std::span<int32_t> bag) {
  SEGUE_ASSERT(!offsets.empty() && offsets.back() == static_cast<int64_t>(bag.size()),
               "bag_of_each: offsets end at the number of ids");
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    std::fill(bag.begin() + offsets[b], bag.begin() + offsets[b + 1], static_cast<int32_t>(b));
  }
}

}  // namespace segue::ops
