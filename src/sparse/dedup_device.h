#pragma once

#include <cstdint>

#include "sparse/dedup.h"
#include "tensor/device.h"

namespace segue::sparse {

inline constexpr int kMostDedupParts = 64;  // their list is a kernel parameter

/// What find() tells the host. Starts as zeros.
struct DedupReport {
  int64_t count;  // of distinct values
  struct Part {
    int64_t first;          // place of its first value
    uint64_t outside;       // ids outside of the range
    uint64_t before_end;    // of the first of them: how many inputs begin with it
    uint64_t below, above;  // how far the furthest are away
  } parts[kMostDedupParts];
};

/// The memory of a DeviceDedup as the kernels see it: `n` elements each unless it says otherwise.
struct DedupArrays {
  int64_t* values;
  int32_t* first;
  void* keys[2];  // of 32 or 64 bits
  int32_t* items[2];
  int32_t* inverse;
  int32_t* starts;      // [n + 1]
  DedupReport* report;  // [1]
  void* scratch;
  int64_t scratch_bytes;
};

/// Ids of a part become keys base ... base + width.
struct DedupKeys {
  struct Part {
    int64_t end;  // of its inputs
    uint64_t base, smallest, width;
    OutsideIds outside;
  } parts[kMostDedupParts];
  int count;
  bool skips;
  uint64_t skipped;  // key of ids without a place, after all others
  int bits;          // of the largest key
};

namespace cuda {
/// Which of two arrays hold what find_distinct() left.
struct DedupOrder {
  int items;   // the order
  int places;  // in `keys`, i32
};
/// Fills `to` but for the scratch, on `stream`.
DedupOrder find_distinct(const int64_t* ids, int64_t n, const DedupKeys& keys,
                         const DedupArrays& to, const Stream& stream);
}  // namespace cuda

}  // namespace segue::sparse
