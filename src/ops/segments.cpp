#include "ops/segments.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "ops/row_loop.h"

namespace segue::ops {

// Sorting is serial: one pass of counting over n small integers costs little beside the n rows that
// are then summed in parallel. Threads that placed items of one group side by side would take the
// lines of `order` from each other: with two, 112 us instead of 40 for 24,576 items.
Segments make_segments(const Exec& exec, const Tensor& index, int64_t destinations, const char* op,
                       const Tensor& stand_ins) {
  using Piece = Segments::Piece;
  using HotGroup = Segments::HotGroup;
  constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
  const int64_t n = index.size(0);
  SEGUE_ASSERT(n < kInt32Max && destinations < kInt32Max, "too many rows for one sum");
  SEGUE_ASSERT(!stand_ins || stand_ins.size(0) == n, "one number to stand in for each item");

  const Tensor order = exec.index({n});
  int32_t* items = order.ptr<int32_t>();
  int32_t* end_of = nullptr;  // size of group lowest + d, then its begin, then its end
  int64_t lowest = 0, groups = 0;

  dispatch_index(index, [&](auto index_zero) {
    const auto* to = index.ptr<decltype(index_zero)>();
    const RowRange used = check_rows(op, to, 0, n, destinations);
    lowest = used.begin;
    groups = used.end - used.begin;
    const Tensor ends = exec.index({groups + 1});
    zero(ends);
    end_of = ends.ptr<int32_t>();
    for (int64_t i = 0; i < n; ++i) {
      if (to[i] >= 0) ++end_of[to[i] - used.begin];
    }
    int32_t sum = 0;
    for (int64_t d = 0; d <= groups; ++d) sum += std::exchange(end_of[d], sum);
    const auto place = [&](const auto& item_of) {
      for (int64_t i = 0; i < n; ++i) {
        if (to[i] >= 0) items[end_of[to[i] - used.begin]++] = static_cast<int32_t>(item_of(i));
      }
    };
    if (!stand_ins) return place([](int64_t i) { return i; });
    dispatch_index(stand_ins, [&](auto item_zero) {
      const auto* item = stand_ins.ptr<decltype(item_zero)>();
      place([item](int64_t i) { return item[i]; });
    });
  });

  // A group is cut only if it is longer than a piece, hence at most 2 n / kPieceLength partial
  // sums.
  const int64_t most_groups = std::min(n, groups);
  const int64_t most_hot = n / Segments::kPieceLength;
  const Tensor piece_memory = exec.index({most_groups + most_hot, sizeof(Piece) / sizeof(int32_t)});
  const Tensor hot_memory = exec.index({most_hot, sizeof(HotGroup) / sizeof(int32_t)});
  auto* pieces = static_cast<Piece*>(piece_memory.data);
  auto* hot = static_cast<HotGroup*>(hot_memory.data);
  size_t num_pieces = 0, num_hot = 0;
  int32_t partials = 0;
  int32_t begin = 0;
  for (auto d = static_cast<int32_t>(lowest); d < lowest + groups; ++d) {
    const int32_t end = end_of[d - lowest];
    if (end - begin <= Segments::kPieceLength) {
      if (end > begin) pieces[num_pieces++] = {d, begin, end, -1};
    } else {
      const int32_t first_partial = partials;
      for (int32_t from = begin; from < end;) {
        const int32_t until = from + std::min<int32_t>(Segments::kPieceLength, end - from);
        pieces[num_pieces++] = {d, from, until, partials++};
        from = until;
      }
      hot[num_hot++] = {d, first_partial, partials};
    }
    begin = end;
  }

  Segments segments;
  segments.order = {items, static_cast<size_t>(begin)};
  segments.pieces = {pieces, num_pieces};
  segments.hot_groups = {hot, num_hot};
  segments.partials = partials;
  return segments;
}

}  // namespace segue::ops
