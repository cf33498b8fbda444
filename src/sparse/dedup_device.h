#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace segue::sparse {

/// The memory of a DeviceDedup as the kernels see it: `n` elements each unless it says otherwise.
struct DedupArrays {
  int64_t* values;
  int32_t* first;
  void* keys[2];  // of 32 or 64 bits
  int32_t* items[2];
  int32_t* inverse;
  int32_t* starts;  // [n + 1]
  int64_t* count;   // [1]
  void* scratch;
  int64_t scratch_bytes;
};

/// Ids count from `smallest`; those that are skipped are `width` + 1 then.
struct DedupKeys {
  uint64_t smallest, width;
  bool skip_negative;
  int bits;  // of the largest key
};

namespace cuda {
/// Fills `to` but for the scratch, on `stream`; returns which of the two `items` is the order.
int find_distinct(const int64_t* ids, int64_t n, const DedupKeys& keys, const DedupArrays& to,
                  const Stream& stream);
}  // namespace cuda

}  // namespace segue::sparse
