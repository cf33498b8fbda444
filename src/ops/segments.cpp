#include "ops/segments.h"

#include <algorithm>
#include <cstdint>
#include <limits>

#include "ops/row_loop.h"

namespace segue::ops {

// Sorting is serial: one pass of counting over n small integers costs little beside the n rows that
// are then summed in parallel, and needs no histogram per thread.
Segments make_segments(const Exec& exec, const Tensor& index, int64_t destinations,
                       const char* op) {
  using Piece = Segments::Piece;
  using HotGroup = Segments::HotGroup;
  constexpr int64_t kInt32Max = std::numeric_limits<int32_t>::max();
  const int64_t n = index.size(0);
  SEGUE_ASSERT(n < kInt32Max && destinations < kInt32Max, "too many rows for one sum");

  const Tensor ends = exec.index({destinations + 1});
  zero(ends);
  int32_t* end_of = ends.ptr<int32_t>();  // size of group d, then its begin, then its end
  const Tensor order = exec.index({n});
  int32_t* items = order.ptr<int32_t>();

  dispatch_index(index, [&](auto index_zero) {
    const auto* to = index.ptr<decltype(index_zero)>();
    for (int64_t i = 0; i < n; ++i) {
      if (to[i] == -1) continue;
      check_row(op, i, to[i], destinations);
      ++end_of[to[i]];
    }
    int32_t sum = 0;
    for (int64_t d = 0; d <= destinations; ++d) {
      const int32_t size = end_of[d];
      end_of[d] = sum;
      sum += size;
    }
    for (int64_t i = 0; i < n; ++i) {
      if (to[i] != -1) items[end_of[to[i]]++] = static_cast<int32_t>(i);
    }
  });

  // A group is cut only if it is longer than a piece, hence at most 2 n / kPieceLength partial
  // sums.
  const int64_t most_groups = std::min(n, destinations);
  const int64_t most_hot = n / Segments::kPieceLength;
  const Tensor piece_memory = exec.index({most_groups + most_hot, sizeof(Piece) / sizeof(int32_t)});
  const Tensor hot_memory = exec.index({most_hot, sizeof(HotGroup) / sizeof(int32_t)});
  auto* pieces = static_cast<Piece*>(piece_memory.data);
  auto* hot = static_cast<HotGroup*>(hot_memory.data);
  size_t num_pieces = 0, num_hot = 0;
  int32_t partials = 0;
  int32_t begin = 0;
  for (int32_t d = 0; d < destinations; ++d) {
    const int32_t end = end_of[d];
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
