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
    constexpr int64_t kAhead = 16;
    const int32_t* const last_ahead = segments.order.data() + std::max(begin, end - kAhead);
    auto next = std::ranges::lower_bound(segments.pieces, begin, {}, &Segments::Piece::begin);
    for (; next != segments.pieces.end() && next->begin < end; ++next) {
      const Segments::Piece& piece = *next;
      To* to = row_of(piece.destination);
      if (to == nullptr) continue;
      if (piece.partial >= 0) to = partials.row<To>(piece.partial);
      const auto items = segments.order.subspan(static_cast<size_t>(piece.begin),
                                                static_cast<size_t>(piece.end - piece.begin));
      for_column_blocks(columns, [&, factor, rows, stride, last_ahead](auto width, int64_t first) {
        To sum[width] = {};
        for (const int32_t& item : items) {
          // Narrow rows are asked for ahead: many of them are in the caches of another core.
          if (width * sizeof(From) <= 64 && &item < last_ahead) {
            __builtin_prefetch(rows + (&item)[kAhead] * stride + first);
          }
          const From* row = rows + item * stride + first;
          for (int64_t c = 0; c < width; ++c) sum[c] += static_cast<To>(row[c]);
        }
        To* __restrict out = to + first;
        if (piece.partial >= 0) {
          for (int64_t c = 0; c < width; ++c) out[c] = sum[c];
        } else {
          for (int64_t c = 0; c < width; ++c) out[c] += factor * sum[c];
        }
      });
    }
  });

  // Few groups are hot, so their columns are shared out as well.
  constexpr int64_t kStrip = 64;
  const int64_t strips = base::num_chunks(columns, kStrip);
  const auto hot = static_cast<int64_t>(segments.hot_groups.size());
  const int64_t sums_a_group = segments.partials / std::max<int64_t>(1, hot);
  for_rows(hot * strips, sums_a_group * std::min(columns, kStrip), [&](int64_t unit, int64_t last) {
    for (; unit < last; ++unit) {
      const Segments::HotGroup& group = segments.hot_groups[static_cast<size_t>(unit / strips)];
      To* to = row_of(group.destination);
      if (to == nullptr) continue;
      const int64_t first = unit % strips * kStrip;
      const int64_t count = std::min(kStrip, columns - first);
      To sum[kStrip] = {};
      for (int64_t r = group.begin; r < group.end; ++r) {
        const To* row = partials.row<To>(r) + first;
        for (int64_t c = 0; c < count; ++c) sum[c] += row[c];
      }
      for (int64_t c = 0; c < count; ++c) to[first + c] += factor * sum[c];
    }
  });
}

}  // namespace segue::ops
