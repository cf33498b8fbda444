#pragma once

#include <cstdint>

#include "sparse/mixed_order.h"

namespace segue::sparse {

/// Lists begin on lines of their own, so that what is made of one is aligned.
inline constexpr int64_t kMixedAlignment = 32;

/// What the kernels of MixedOrder see; `n` ids in all.
struct MixedLists {
  struct List {
    const int64_t* ids;
    const int32_t* uses;
    const int64_t* scores;
    int64_t* rows;
    int64_t first;  // of its ids among those of all
    int64_t at;     // place of its first key
  } lists[MixedOrder::kMostLists];
  int count;
  int64_t n;
  int key_bits, bits;  // leading bits of a key that are sorted by; with the list's number
};
struct MixedArrays {
  uint32_t* prefixes[2];  // [n]
  int32_t* items[2];      // [n]
  int32_t* place;         // [n]: of each id's key
  int64_t *keys, *rows;   // [room]
  int32_t* uses;
  int64_t* scores;
  uint8_t* is_new;
  void* scratch;
  int64_t scratch_bytes;
};

namespace cuda {
void sort_mixed(const MixedLists& lists, const MixedArrays& to, const Stream& stream);
void put_back(const MixedLists& lists, const MixedArrays& from, const Stream& stream);
}  // namespace cuda

}  // namespace segue::sparse
