#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>

#include "base/parallel.h"
#include "ops/row_loop.h"
#include "tensor/exec.h"

namespace segue::ops {

/// Items 0 .. n-1 grouped by destination for sums that need no atomics and whose bits depend on the
/// items alone. A destination may be hot (every token of a batch has one of nine actions), so
/// groups are cut into pieces of fixed length: the pieces are what threads share out, and the sums
/// of the pieces of one group are added in order.
struct Segments {
  static constexpr int64_t kPieceLength = 256;

  struct Piece {
    int32_t destination;
    int32_t begin, end;  // in `order`
    int32_t partial;  // row of the scratch that receives the sum; -1: the only piece of its group
  };
  struct HotGroup {
    int32_t destination;
    int32_t begin, end;  // rows of the scratch
  };

  std::span<const int32_t> order;  // items, group after group, ascending inside a group
  std::span<const Piece> pieces;
  std::span<const HotGroup> hot_groups;
  int64_t partials = 0;
};

/// `index` is i32 or i64 [n]; -1 belongs to no destination. Error(kOutOfRange), naming `op`, for
/// anything else outside [0, destinations). Memory comes from exec.arena: the caller holds the
/// Mark. With `stand_ins` (i32 or i64 [n]), `order` holds them instead of the items' own numbers.
Segments make_segments(const Exec& exec, const Tensor& index, int64_t destinations, const char* op,
                       const Tensor& stand_ins = {});

namespace detail {

/// sum[c] = from[items[0]][first + c] + from[items[1]][first + c] + ..., in this order.
template <int64_t kColumns, class From, class To>
void sum_items(const From* from, int64_t stride, std::span<const int32_t> items, int64_t first,
               To (&sum)[kColumns]) {
  const From* row = from + items[0] * stride + first;
  for (int64_t c = 0; c < kColumns; ++c) sum[c] = static_cast<To>(row[c]);
  for (size_t i = 1; i < items.size(); ++i) {
    row = from + items[i] * stride + first;
    for (int64_t c = 0; c < kColumns; ++c) sum[c] += static_cast<To>(row[c]);
  }
}

}  // namespace detail

/// row_of(destination) += scale * (sum of the items' rows of `from`); a null row is skipped.
template <class From, class To, class RowOf>
void sum_segments(const Exec& exec, const Segments& segments, const Tensor& from, double scale,
                  const RowOf& row_of) {
  static_assert(std::is_same_v<To*, std::invoke_result_t<RowOf, int32_t>>);
  const int64_t columns = from.size(1);
  const To factor = static_cast<To>(scale);
  const From* rows = from.ptr<From>();
  const int64_t stride = from.stride(0);

  const Arena::Mark mark(*exec.arena);
  const Tensor partials = exec.arena->tensor(kDTypeOf<To>, {segments.partials, columns});

  // Tasks are cut by items: pieces are of any length, most of them short.
  for_rows(std::ssize(segments.order), columns, [&](int64_t begin, int64_t end) {
    auto next = std::ranges::lower_bound(segments.pieces, begin, {}, &Segments::Piece::begin);
    for (; next != segments.pieces.end() && next->begin < end; ++next) {
      const Segments::Piece& piece = *next;
      To* to = row_of(piece.destination);
      if (to == nullptr) continue;
      const auto items = segments.order.subspan(static_cast<size_t>(piece.begin),
                                                static_cast<size_t>(piece.end - piece.begin));
      for_column_blocks(columns, [&](auto width, int64_t first) {
        To sum[width];
        detail::sum_items(rows, stride, items, first, sum);
        if (piece.partial >= 0) {
          To* partial = partials.row<To>(piece.partial) + first;
          for (int64_t c = 0; c < width; ++c) partial[c] = sum[c];
          return;
        }
        for (int64_t c = 0; c < width; ++c) to[first + c] += factor * sum[c];
      });
    }
  });

  // Few groups are hot, so their columns are shared out as well.
  constexpr int64_t kStrip = 64;
  const int64_t strips = base::num_chunks(columns, kStrip);
  const auto hot = static_cast<int64_t>(segments.hot_groups.size());
  base::parallel_for(hot * strips, 1, [&](int64_t unit, int64_t) {
    const Segments::HotGroup& group = segments.hot_groups[static_cast<size_t>(unit / strips)];
    To* to = row_of(group.destination);
    if (to == nullptr) return;
    const int64_t first = unit % strips * kStrip;
    const int64_t count = std::min(kStrip, columns - first);
    To sum[kStrip] = {};
    for (int64_t r = group.begin; r < group.end; ++r) {
      const To* row = partials.row<To>(r) + first;
      for (int64_t c = 0; c < count; ++c) sum[c] += row[c];
    }
    for (int64_t c = 0; c < count; ++c) to[first + c] += factor * sum[c];
  });
}

}  // namespace segue::ops
