#include "ops/bags.h"

#include <algorithm>

#include "ops/cuda_forms.h"
#include "ops/row_loop.h"
#include "ops/segments.h"

namespace segue::ops {
namespace {

/// Sums bags of rows. Columns come in blocks whose sums stay in registers: what is stored for every
/// row that is read costs a gather from memory a fifth of its speed. The order of additions is that
/// of ids in any block.
template <class From, class To, class Index, class Offset>
class BagSums {
 public:
  BagSums(const Tensor& from, const Index* rows, const Offset* first)
      : from_(from.ptr<From>()),
        stride_(from.stride(0)),
        table_rows_(from.size(0)),
        rows_(rows),
        first_(first) {
    if (from.bytes() >= kLargeTable || from.size(1) <= kLine) {
      ahead_ = std::max<int64_t>(2, kLinesAhead * kLine / std::max<int64_t>(1, from.size(1)));
    }
  }

  /// Before bags [begin, end) are summed.
  void check(int64_t begin, int64_t end) const {
    check_rows("bag_sum_forward", rows_, first_[begin], first_[end], table_rows_);
  }

  /// kColumns columns of bag b from column c on; ids from `end` on are those of another task, which
  /// asks for their rows itself.
  template <int64_t kColumns, class Round>
  void sum(int64_t c, int64_t b, int64_t end, const Round& round, To* __restrict to) const {
    To sum[kColumns] = {};
    const int64_t last = first_[b + 1];
    for (int64_t i = first_[b]; i < last; ++i) {
      if (ahead_ > 0) prefetch<kColumns>(c, i + ahead_, end);
      if (rows_[i] < 0) continue;
      const From* row = from_ + rows_[i] * stride_ + c;
      for (int64_t k = 0; k < kColumns; ++k) sum[k] += static_cast<To>(row[k]);
    }
    for (int64_t k = 0; k < kColumns; ++k) to[k] = round(sum[k]);
  }

 private:
  /// Asks for a row before it is needed, where the table is larger than the caches of a core: an
  /// index tells long in advance what will be read, and a core alone waits for few rows at a time.
  /// Narrow rows of small tables as well: half of those that were updated last are in the caches of
  /// another core. (Four lines a row that are there already would cost a fifth of the time.)
  /// Always inline: GCC drops calls of a function that only prefetches, as one without effects.
  template <int64_t kColumns>
  [[gnu::always_inline]] void prefetch(int64_t c, int64_t i, int64_t end) const {
    if (i >= end || rows_[i] < 0) return;
    const From* row = from_ + rows_[i] * stride_ + c;
    for (int64_t k = 0; k < kColumns; k += kLine) __builtin_prefetch(row + k);
  }

  static constexpr int64_t kLargeTable = int64_t{4} << 20;
  static constexpr int64_t kLinesAhead = 128;  // more than memory answers at once
  static constexpr int64_t kLine = 64 / sizeof(From);
  const From* from_;
  int64_t stride_, table_rows_;
  const Index* rows_;
  const Offset* first_;
  int64_t ahead_ = 0;  // rows
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
  const int64_t columns = y.size(1), count = y.size(0);
  const int64_t rows_a_bag = index.size(0) / std::max<int64_t>(1, count);
  dispatch_real(from.dtype, [&](auto from_zero) {
    dispatch_activation(exec, y.dtype, [&](auto to_zero, auto round) {
      dispatch_index(index, [&](auto index_zero) {
        dispatch_index(offsets, [&](auto offset_zero) {
          using From = decltype(from_zero);
          using To = decltype(to_zero);
          const auto* first = offsets.ptr<decltype(offset_zero)>();
          const BagSums<From, To, decltype(index_zero), decltype(offset_zero)> bags(
              from, index.ptr<decltype(index_zero)>(), first);
          To* const out = y.ptr<To>();
          const int64_t stride = y.stride(0);
          // Enough rows in a task to look ahead, few enough to share out; a row takes a line at
          // least.
          constexpr int64_t kLine = 64 / sizeof(From);
          for_rows(count, std::max(columns, kLine) * std::max<int64_t>(1, rows_a_bag / 4),
                   [&, columns](int64_t begin, int64_t end) {
                     const auto bag = bags;  // its own, which nothing that is stored can change
                     bag.check(begin, end);
                     const int64_t last = first[end];
                     // Many bags to a block of columns if there is one alone; rows that are longer
                     // are read from end to end.
                     const int64_t step = is_one_block(columns) ? end - begin : 1;
                     for (int64_t b = begin; b < end; b += step) {
                       for_column_blocks(columns, [&](auto width, int64_t c) {
                         To* to = out + b * stride + c;
                         for (int64_t i = b; i < b + step; ++i, to += stride) {
                           bag.template sum<width>(c, i, last, round, to);
                         }
                       });
                     }
                   });
        });
      });
    });
  });
}

void bag_sum_backward(const Exec& exec, const Tensor& dy, const Tensor& index, const Tensor& bag,
                      const Tensor& dfrom, const SortedIndex& sorted) {
  SEGUE_ASSERT(bag.size(0) == index.size(0), "bag_sum_backward: a bag for every id");
  const Arena::Mark scratch(*exec.arena);
  if (!exec.device.is_cpu()) {
    const Tensor each = exec.arena->tensor(dy.dtype, {index.size(0), dy.size(1)});
    gather_rows(exec, dy, bag, each);
    return segment_sum(exec, each, index, dfrom, 1, sorted);
  }
  SEGUE_ASSERT(dy.size(1) == dfrom.size(1), "bag_sum_backward: shapes differ");
  if (const int64_t n = bag.size(0); n > 0) {
    dispatch_index(bag, [&](auto bag_zero) {
      const auto* bags = bag.ptr<decltype(bag_zero)>();
      SEGUE_ASSERT(bags[0] >= 0 && bags[n - 1] < dy.size(0), "bag_sum_backward: no such bag");
    });
  }
  // Gradients of bags are read where they are: a copy for each id would be written and read again.
  const Segments segments =
      make_segments(exec, index, dfrom.size(0), "bag_sum_backward", /*stand_ins=*/bag);
  dispatch_real(dy.dtype, [&](auto from_zero) {
    dispatch_real(dfrom.dtype, [&](auto to_zero) {
      using To = decltype(to_zero);
      sum_segments<decltype(from_zero), To>(exec, segments, dy, 1,
                                            [&dfrom](int32_t d) { return dfrom.row<To>(d); });
    });
  });
}

void bag_of_each(std::span<const int64_t> offsets, std::span<int32_t> bag) {
  SEGUE_ASSERT(!offsets.empty() && offsets.back() == static_cast<int64_t>(bag.size()),
               "bag_of_each: offsets end at the number of ids");
  for (size_t b = 0; b + 1 < offsets.size(); ++b) {
    std::fill(bag.begin() + offsets[b], bag.begin() + offsets[b + 1], static_cast<int32_t>(b));
  }
}

}  // namespace segue::ops
