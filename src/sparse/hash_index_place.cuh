#pragma once

#include "sparse/hash_index_find.cuh"
#include "sparse/hash_index_runs.cuh"

// For hash_index_cuda.cu alone: phase 2 in its common cases, four buckets of a warp at a time. What
// it leaves, insert_kernel does.

namespace segue::sparse::detail {
namespace {

constexpr int kGroup = 8;                           // lanes of a bucket
constexpr int kPiece = kBucketSlots / kGroup;       // slots of a lane
constexpr int kPieceVectors = kPiece / kLaneSlots;  // of four steps each

template <class T>
__device__ T group_min(T x) {
#pragma unroll
  for (int offset = 1; offset < kGroup; offset *= 2) {
    const T other = __shfl_xor_sync(kAll, x, offset);
    x = other < x ? other : x;
  }
  return x;
}

/// The first lane of this lane's group where `chosen`, counted in the group; -1: none.
__device__ int first_in_group(bool chosen) {
  const int lane = lane_id();
  const unsigned lanes = __ballot_sync(kAll, chosen) >> (lane - lane % kGroup) & 0xffu;
  return __ffs(static_cast<int>(lanes)) - 1;
}

/// Keys of a window that may be placed here: all keys of their bucket lie in one group.
__device__ bool is_within_group(const Table& table, const IndexRules& rules, const BatchArgs& b,
                                const Window& window) {
  const int lane = lane_id();
  const unsigned leaders = window.leaders(table, rules, b);
  const bool goes_on = window.goes_on(table, rules, b);
  const unsigned before = leaders & (kAll >> (kWarp - 1 - lane));
  const unsigned after = leaders & ~(kAll >> (kWarp - 1 - lane));
  if (before == 0 || (after == 0 && goes_on)) return false;
  const int first = kWarp - 1 - __clz(static_cast<int>(before));
  const int64_t of_batch = b.n - 1 - window.base;  // the last of all
  const int end = of_batch < kWarp - 1 ? static_cast<int>(of_batch) : kWarp - 1;
  const int last = after == 0 ? end : __ffs(static_cast<int>(after)) - 2;
  return first / kGroup == last / kGroup;
}

/// Of the slots [first, first + 16) of each lane the one that was used longest ago in its group's
/// bucket, if this lane has it; kNone otherwise, and where all are pinned.
__device__ uint32_t oldest_slot(const Slots& slots, uint32_t first, bool active, int64_t now) {
  uint32_t steps[kPiece];
#pragma unroll
  for (int v = 0; v < kPieceVectors; ++v) {
    uint4 four = {kNone, kNone, kNone, kNone};
    if (active) four = reinterpret_cast<const uint4*>(slots.steps + first)[v];
    steps[4 * v] = four.x, steps[4 * v + 1] = four.y;
    steps[4 * v + 2] = four.z, steps[4 * v + 3] = four.w;
  }
  uint32_t least = kNone;
#pragma unroll
  for (int j = 0; j < kPiece; ++j) {
    if (!is_pinned(steps[j], now)) least = steps[j] < least ? steps[j] : least;
  }
  least = group_min(least);
  uint32_t bits = 0;
#pragma unroll
  for (int j = 0; j < kPiece; ++j) {
    if (least != kNone && steps[j] == least) bits |= 1u << j;
  }
  // Equal ones by key.
  uint64_t lowest = ~uint64_t{0};
  uint32_t slot = kNone;
  for (; bits != 0; bits &= bits - 1) {
    const uint32_t at = first + static_cast<uint32_t>(__ffs(static_cast<int>(bits)) - 1);
    const uint64_t key = unsigned_order(slots.keys[at]);
    if (slot != kNone && key >= lowest) continue;
    lowest = key;
    slot = at;
  }
  const uint64_t of_group = group_min(lowest);
  return slot != kNone && lowest == of_group ? slot : kNone;
}

__device__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Where every key is admitted at once: free slots, and with kLru evictions.
__global__ void __launch_bounds__(kThreads, 4)
    place_kernel(const __grid_constant__ IndexCalls calls) {
  const auto& [table, rules, b, expects_evictions, end_block] = calls.mine();
  if (rules.has_candidates) return;
  const int lane = lane_id(), own = lane % kGroup;
  const int64_t base = calls.first_of_warp();
  int inserted = 0, evicted = 0, refused = 0;
  if (base < b.n) {
    const Window window(table, rules, b, base);
    const bool is_mine = is_within_group(table, rules, b, window) && window.mark == kSlotAndRow;
    if (is_mine) {
      const int64_t first = static_cast<int64_t>(window.bucket) * kBucketSlots;
      prefetch(table.slots.digests + first);
      if (expects_evictions) {
#pragma unroll
        for (int line = 0; line < 4; ++line) prefetch(table.slots.steps + first + line * kWarp);
      }
    }
    // Keys of this lane's group that are left, ascending.
    unsigned todo = __ballot_sync(kAll, is_mine) >> (lane - own) & 0xffu;
    while (__any_sync(kAll, todo != 0)) {
      bool active = todo != 0;
      const int turn = active ? __ffs(static_cast<int>(todo)) - 1 : 0;
      todo &= todo - 1;
      const int64_t key = __shfl_sync(kAll, window.key, turn, kGroup);
      const uint32_t bucket = __shfl_sync(kAll, window.bucket, turn, kGroup);
      const int64_t i = base + (lane - own) + turn;
      const uint32_t first = bucket * kBucketSlots + static_cast<uint32_t>(own * kPiece);

      uint32_t free = 0;
      if (active) {
        free = equal_digests(*reinterpret_cast<const uint4*>(table.slots.digests + first), 0);
      }
      int winner = first_in_group(free != 0);
      uint32_t slot = free == 0 ? kNone : first + first_digest(free);
      const bool is_full = winner < 0;
      if (is_full && rules.evict != Evict::kLru) active = false;  // left to insert_kernel
      const bool evicts = active && is_full;
      if (__any_sync(kAll, evicts)) {
        const uint32_t oldest = oldest_slot(table.slots, first, evicts, b.step);
        const int owner = first_in_group(oldest != kNone);
        if (evicts) {
          winner = owner;
          slot = oldest;
        }
      }
      if (!active) continue;
      if (own == 0) {
        inserted += winner >= 0 ? 1 : 0;
        evicted += winner >= 0 && is_full ? 1 : 0;
        refused += winner < 0 ? 1 : 0;
        if (winner < 0) b.finish(i, kDone, 0);
      }
      if (own != winner) continue;
      const Slots s = table.slots.at(slot);
      *s.digests = digest_of(key);
      *s.keys = key;
      *s.steps = static_cast<uint32_t>(b.step);
      if (rules.keeps_times) *s.times = b.time;
      if (rules.keeps_scores) {
        *s.scores = rules.score_of_new_row(b.uses_of(i), b.time, b.score_of(i));
      }
      b.finish(i, is_full ? kTaken : kFresh, slot);
    }
  }
  const int counts[3] = {warp_sum(inserted), warp_sum(evicted), warp_sum(refused)};
  add_counts<3>(counts, {kInserted, kEvicted, kRefused}, b.state);
}

}  // namespace
}  // namespace segue::sparse::detail
