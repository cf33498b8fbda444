#pragma once

#include <cstdint>

#include <cuda_runtime.h>

#include "sparse/hash_index_rules.h"

// What the kernels of hash_index_cuda.cu share, which alone includes this.

namespace segue::sparse::detail {
namespace {

constexpr int kWarp = 32;
constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / kWarp;
constexpr unsigned kAll = 0xffffffffu;
constexpr uint32_t kNone = 0xffffffffu;
constexpr int kLaneSlots = kBucketSlots / kWarp;
static_assert(kLaneSlots == 4, "a lane reads its digests as a word, its steps as a vector");

/// What a batch's key becomes after Need: its row is new and needs a number, or lies in its slot.
enum Outcome : uint8_t { kDone = 0, kFresh = 4, kTaken = 8 };

/// Numbers on the device, one after the other.
enum State : int {
  kNextRow,
  kFreeRows,
  kInserted,
  kEvicted,
  kExpired,
  kRefused,
  kCandidates,
  kStates
};

/// Where keys are.
struct Table {
  Slots slots;
  const uint32_t* sizes;  // of each shard; null: all have `capacity`
  uint32_t capacity;
  int64_t first_shard, end_shard;

  /// Counted from the first bucket here.
  __device__ uint32_t bucket_of(const IndexRules& rules, int64_t key) const {
    if (sizes == nullptr) {  // shards follow each other without gaps
      const uint64_t all = static_cast<uint64_t>(capacity) << rules.shard_bits;
      return static_cast<uint32_t>(high_product(unsigned_order(key), all) -
                                   static_cast<uint64_t>(first_shard) * capacity);
    }
    const auto shard = static_cast<uint32_t>(rules.shard_of(key) - first_shard);
    return shard * capacity + rules.bucket_of(key, sizes[shard]);
  }
  __device__ bool is_here(const IndexRules& rules, int64_t key) const {
    const int64_t shard = rules.shard_of(key);
    return shard >= first_shard && shard < end_shard;
  }
};

struct BatchArgs {
  const int64_t* keys;
  const int32_t* uses;
  const int64_t* scores;
  int64_t n, step, time, oldest_kept;
  int64_t* rows;
  uint8_t* is_new;
  uint8_t* marks;     // Need, then Outcome
  uint32_t* slot_of;  // of kFresh and kTaken
  int32_t* place;     // counts keys that need a new number
  uint8_t* grows;     // of each shard: whether it must
  int64_t* state;
  int32_t* free_rows;  // numbers of rows that were forgotten
  int64_t* next_row;   // on the host: what state[kNextRow] is after the batch

  __device__ int64_t uses_of(int64_t i) const { return uses == nullptr ? 1 : uses[i]; }
  __device__ int64_t score_of(int64_t i) const { return scores == nullptr ? 0 : scores[i]; }

  /// Phase 2 is through with a key; number_kernel gives it a row from its slot.
  __device__ void finish(int64_t i, Outcome outcome, uint32_t slot) const {
    marks[i] = outcome;
    if (outcome != kDone) {
      slot_of[i] = slot;
    } else {
      rows[i] = -1;
      is_new[i] = 0;
    }
  }
};

/// What one index does of a call that several share. It has blocks of threads of its own, and its
/// arrays in the scratch memory begin where they do.
struct IndexCall {
  Table table;
  IndexRules rules;
  BatchArgs b;
  bool expects_evictions;
  unsigned end_block;  // one past its last, counted through all
};
constexpr int kMostCalls = 16;  // of one launch: their list is a kernel parameter
struct IndexCalls {
  IndexCall calls[kMostCalls];
  int count;

  /// The call that this block belongs to.
  __device__ const IndexCall& mine() const {
    int at = 0;
    while (blockIdx.x >= calls[at].end_block) ++at;
    return calls[at];
  }
  /// The first of this block's keys, counted in its call.
  __device__ int64_t first_key() const {
    unsigned begin = 0;
    for (int at = 0; blockIdx.x >= calls[at].end_block; ++at) begin = calls[at].end_block;
    return static_cast<int64_t>(blockIdx.x - begin) * kThreads;
  }
  /// The first of this warp's.
  __device__ int64_t first_of_warp() const {
    return first_key() + static_cast<int64_t>(threadIdx.x / kWarp) * kWarp;
  }
};

struct alignas(16) Pair {
  int64_t x, y;
};

__device__ int lane_id() { return static_cast<int>(threadIdx.x % kWarp); }

__device__ unsigned below_lane() { return (1u << lane_id()) - 1; }
__device__ int warp_sum(int x) { return __reduce_add_sync(kAll, x); }

/// What was there before.
__device__ int64_t add_to(int64_t* counter, int64_t amount) {
  return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(counter),
                                        static_cast<unsigned long long>(amount)));
}

/// The highest bit of each byte that is equal in both.
__device__ uint32_t equal_bytes(uint32_t a, uint32_t b) {
  constexpr uint32_t kLow = 0x7f7f7f7fu;
  const uint32_t x = a ^ b;
  return ~(((x & kLow) + kLow) | x | kLow);
}

// ---- runs: the keys of a batch that belong to one bucket ----

/// 32 neighbouring keys of a batch, one in each lane.
struct Window {
  int64_t base, key = 0;
  uint32_t bucket = kNone;
  uint8_t mark = kNothing;

  __device__ Window(const Table& table, const IndexRules& rules, const BatchArgs& b, int64_t first)
      : base(first) {
    const int64_t i = base + lane_id();
    if (i >= b.n) return;
    key = b.keys[i];
    bucket = table.bucket_of(rules, key);
    mark = b.marks[i];
  }

  /// Lanes whose key is the first of its bucket.
  __device__ unsigned leaders(const Table& table, const IndexRules& rules,
                              const BatchArgs& b) const {
    int64_t key_before = __shfl_up_sync(kAll, key, 1);
    uint32_t bucket_before = __shfl_up_sync(kAll, bucket, 1);
    if (lane_id() == 0 && base > 0) {
      key_before = b.keys[base - 1];
      bucket_before = table.bucket_of(rules, key_before);
    }
    const int64_t i = base + lane_id();
    if (i > 0 && i < b.n && key_before >= key) __trap();  // not ascending: no result at all
    return __ballot_sync(kAll, i < b.n && (i == 0 || bucket_before != bucket));
  }

  /// Whether the last bucket has keys in the next window.
  __device__ bool goes_on(const Table& table, const IndexRules& rules, const BatchArgs& b) const {
    const int64_t next = base + kWarp;
    const bool is_last = lane_id() == kWarp - 1;
    return __any_sync(kAll,
                      is_last && next < b.n && table.bucket_of(rules, b.keys[next]) == bucket);
  }
};

/// Calls f(bucket, window, lanes) for the run whose first key is in lane `first` of `window`: once
/// for every window that it reaches into, with those of its lanes that have `wanted` marks.
template <class F>
__device__ void each_window(const Table& table, const IndexRules& rules, const BatchArgs& b,
                            Window window, int first, uint8_t wanted, F f) {
  const uint32_t bucket = __shfl_sync(kAll, window.bucket, first);
  unsigned allowed = kAll << first;
  for (;;) {
    const unsigned run = __ballot_sync(kAll, window.bucket == bucket) & allowed;
    const unsigned lanes = __ballot_sync(kAll, (window.mark & wanted) != 0) & run;
    if (lanes != 0) f(bucket, window, lanes);
    const int64_t next = window.base + kWarp;
    if (run >> (kWarp - 1) == 0 || next >= b.n) return;
    window = Window(table, rules, b, next);
    allowed = kAll;
  }
}

/// Adds what the warps of a block have counted to the device's numbers, an atomic each.
template <int kCounts>
__device__ void add_counts(const int (&counts)[kCounts], const State (&states)[kCounts],
                           int64_t* state) {
  __shared__ int sums[kCounts];
  if (threadIdx.x < kCounts) sums[threadIdx.x] = 0;
  __syncthreads();
  if (lane_id() == 0) {
    for (int c = 0; c < kCounts; ++c) {
      if (counts[c] != 0) atomicAdd(&sums[c], counts[c]);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int c = 0; c < kCounts; ++c) {
    if (sums[c] != 0) add_to(state + states[c], sums[c]);
  }
}

/// Bit j where byte j is not 0.
__device__ uint32_t used_bits(uint32_t digests) {
  const uint32_t free = equal_bytes(digests, 0);
  return ~(free >> 7 | free >> 14 | free >> 21 | free >> 28) & 0xfu;
}

/// Of a lane's four slots: bit j where slot j has a row.
__device__ uint32_t row_bits(const IndexRules& rules, const Slots& lane, uint32_t used) {
  if (!rules.has_candidates || used == 0) return used;
  const int4 rows = *reinterpret_cast<const int4*>(lane.rows);
  const uint32_t present = (rows.x >= 0 ? 1u : 0u) | (rows.y >= 0 ? 2u : 0u) |
                           (rows.z >= 0 ? 4u : 0u) | (rows.w >= 0 ? 8u : 0u);
  return used & present;
}

__device__ Slots lane_slots(const Slots& slots, uint32_t bucket) {
  return slots.at(static_cast<int64_t>(bucket) * kBucketSlots + lane_id() * kLaneSlots);
}

}  // namespace
}  // namespace segue::sparse::detail
