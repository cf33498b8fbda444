#pragma once

#include "ops/kernel.cuh"

namespace segue::ops::cuda {

/// Calls f(Lanes) for rows of `columns`. From 512 columns on more lanes work on a row rather than
/// each of them on more columns, so that what is right for 512 (registers, shared memory for sums,
/// rows in flight) is right for 4,096, too. Rows that are not multiples of 8 or not aligned move a
/// column at a time.
template <class F>
void dispatch_lanes(int64_t columns, bool vectorize, F&& f) {
  constexpr int64_t kMost = 8192;
  if (columns > kMost) {
    fail(ErrorCode::kUnsupported, "CUDA ops normalise rows of up to " + std::to_string(kMost) +
                                      " columns, not " + std::to_string(columns));
  }
  if (!vectorize && columns <= 512) return f(Lanes<1, 16>{});
  if (!vectorize) return f(Lanes<1, 32, 256>{});
  if (columns <= 256) return f(Lanes<8, 1>{});
  if (columns <= 512) return f(Lanes<8, 2>{});
  if (columns <= 1024) return f(Lanes<8, 2, 64>{});
  if (columns <= 2048) return f(Lanes<8, 2, 128>{});
  if (columns <= 4096) return f(Lanes<8, 2, 256>{});
  f(Lanes<8, 4, 256>{});
}

/// Blocks for a team per row; a function of the rows alone.
template <class L>
unsigned row_blocks(int64_t rows, int64_t most = kMaxBlocks) {
  return static_cast<unsigned>(std::clamp<int64_t>(divide_up(rows, L::kTeams), 1, most));
}

/// Blocks that run at once if each needs so many bytes of shared memory, at most `each` on a
/// multiprocessor; constants of the device class, as are all that sums depend on.
inline int64_t blocks_at_once(int64_t each, size_t bytes) {
  constexpr int64_t kSharedBytes = 228 << 10, kReserved = 2 << 10;
  const int64_t fit = kSharedBytes / (static_cast<int64_t>(bytes) + kReserved);
  return std::clamp<int64_t>(fit, 1, each) * kMultiprocessors;
}

}  // namespace segue::ops::cuda
