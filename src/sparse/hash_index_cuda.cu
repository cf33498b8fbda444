#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <cub/device/device_scan.cuh>
#include <cuda_runtime.h>
#include <thrust/iterator/transform_iterator.h>

#include "ops/kernel.cuh"
#include "sparse/hash_index_rules.h"
#include "sparse/hash_index_slots.h"
#include "tensor/buffer.h"
#include "tensor/event.h"
#include "tensor/host_array.h"
#include "tensor/launches.h"

// A batch takes five kernels and a scan, and no wait once every shard has its largest size:
//   expire  a warp per bucket, with a time to live only
//   plan    finds every key and stamps those that are present; a thread per key, 8 threads for the
//           128 digests of a bucket
//   check   a warp per bucket, below the largest size only: which shards must grow
//   insert  a warp per bucket: slots, evictions; bucket state lies in registers, 4 slots a lane
//   number  rows' numbers, a thread per key, after a scan over keys that need a new one
//   settle  counts

namespace segue::sparse::detail {
namespace {

using ops::cuda::check_cuda;
using ops::cuda::check_launch;
using ops::cuda::device_ptr;
using ops::cuda::divide_up;

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
  int64_t* state;
  int32_t* free_rows;  // numbers of rows that were forgotten

  __device__ int64_t uses_of(int64_t i) const { return uses == nullptr ? 1 : uses[i]; }
  __device__ int64_t score_of(int64_t i) const { return scores == nullptr ? 0 : scores[i]; }
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

// ---- find ----

/// Of 16 digests those that are equal: bit 8 * i + j for digest i + 4 * j.
__device__ uint32_t equal_digests(const uint4& line, uint32_t digest) {
  const uint32_t all = digest * 0x01010101u;
  return equal_bytes(line.x, all) >> 7 | equal_bytes(line.y, all) >> 6 |
         equal_bytes(line.z, all) >> 5 | equal_bytes(line.w, all) >> 4;
}
__device__ uint32_t first_digest(uint32_t equal) {
  const int bit = __ffs(static_cast<int>(equal)) - 1;
  return static_cast<uint32_t>((bit >> 3) + 4 * (bit & 7));
}

/// The slot of every lane's key, or kNone; by a whole warp. Eight lanes read the digests of a key's
/// bucket, 16 each, for the keys of these eight lanes in turn: all 32 lines are on their way before
/// the first is looked at, and so are the keys where a digest is equal.
__device__ uint32_t find_slots(const Slots& slots, int64_t key, uint32_t bucket) {
  constexpr int kGroup = 8, kPiece = kBucketSlots / kGroup;
  const int lane = lane_id(), own = lane % kGroup;
  const auto first = [&](int turn) {
    return __shfl_sync(kAll, bucket, turn, kGroup) * kBucketSlots +
           static_cast<uint32_t>(own * kPiece);
  };
  uint4 lines[kGroup];
#pragma unroll
  for (int turn = 0; turn < kGroup; ++turn) {
    lines[turn] = *reinterpret_cast<const uint4*>(slots.digests + first(turn));
  }
  uint32_t equal[kGroup];
  int64_t candidate[kGroup];
#pragma unroll
  for (int turn = 0; turn < kGroup; ++turn) {
    const int64_t wanted = __shfl_sync(kAll, key, turn, kGroup);
    const uint32_t at = first(turn);
    equal[turn] = equal_digests(lines[turn], digest_of(wanted));
    candidate[turn] = 0;
    if (equal[turn] != 0) candidate[turn] = slots.keys[at + first_digest(equal[turn])];
  }
  uint32_t result = kNone;
#pragma unroll
  for (int turn = 0; turn < kGroup; ++turn) {
    const int64_t wanted = __shfl_sync(kAll, key, turn, kGroup);
    const uint32_t at = first(turn);
    uint32_t found = kNone;
    uint32_t bits = equal[turn];
    if (bits != 0 && candidate[turn] == wanted) {
      found = at + first_digest(bits);
    } else {
      while (bits != 0 && (bits &= bits - 1) != 0) {
        const uint32_t slot = at + first_digest(bits);
        if (slots.keys[slot] != wanted) continue;
        found = slot;
        break;
      }
    }
    const unsigned hits = __ballot_sync(kAll, found != kNone) >> (lane - own) & 0xffu;
    const int finder = hits == 0 ? 0 : __ffs(static_cast<int>(hits)) - 1;
    const uint32_t slot = __shfl_sync(kAll, found, finder, kGroup);
    if (own == turn) result = slot;
  }
  return result;
}

__global__ void __launch_bounds__(kThreads)
    find_kernel(Table table, IndexRules rules, const int64_t* keys, int64_t* rows, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i - lane_id() >= n) return;
  const int64_t key = i < n ? keys[i] : 0;
  const bool is_here = i < n && table.is_here(rules, key);
  const uint32_t bucket = is_here ? table.bucket_of(rules, key) : 0;
  const uint32_t slot = find_slots(table.slots, key, bucket);
  if (i >= n) return;
  rows[i] = is_here && slot != kNone ? table.slots.rows[slot] : -1;
}

/// Phase 1.
__global__ void __launch_bounds__(kThreads)
    plan_kernel(Table table, IndexRules rules, BatchArgs b) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i - lane_id() >= b.n) return;
  const int64_t key = i < b.n ? b.keys[i] : 0;
  if (i < b.n && !table.is_here(rules, key)) __trap();
  const uint32_t bucket = i < b.n ? table.bucket_of(rules, key) : 0;
  const uint32_t slot = find_slots(table.slots, key, bucket);
  if (i >= b.n) return;
  const int64_t uses = b.uses_of(i);
  if (slot == kNone) {
    b.marks[i] = rules.admits(key, uses) ? kSlotAndRow : kSlot;
    return;
  }
  const Slots s = table.slots.at(slot);
  const int32_t row = *s.rows;
  *s.steps = static_cast<uint32_t>(b.step);
  if (rules.keeps_times) *s.times = b.time;
  Need need = kNothing;
  if (rules.keeps_scores) {
    if (row >= 0) {
      if (rules.evict == Evict::kLfu || rules.evict == Evict::kScore) {
        *s.scores = rules.score_of_used_row(*s.scores, uses, b.score_of(i));
      }
    } else {
      const int64_t so_far = add_uses(*s.scores, uses);
      *s.scores = so_far;
      if (rules.admits(key, so_far)) need = kRow;
    }
  }
  b.rows[i] = row;
  b.is_new[i] = 0;
  b.marks[i] = need;
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

/// Phase 0.
__global__ void __launch_bounds__(kThreads)
    expire_kernel(Table table, IndexRules rules, BatchArgs b) {
  int counts[2] = {};
  const int64_t base =
      (static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp) * kWarp;
  if (base < b.n) {
    Window window(table, rules, b, base);
    for (unsigned todo = window.leaders(table, rules, b); todo != 0; todo &= todo - 1) {
      const int leader = __ffs(static_cast<int>(todo)) - 1;
      const Slots lane = lane_slots(table.slots, __shfl_sync(kAll, window.bucket, leader));
      uint32_t digests = *reinterpret_cast<const uint32_t*>(lane.digests);
      const uint32_t used = used_bits(digests), has_row = row_bits(rules, lane, used);
      uint32_t goes = 0;
      for (int j = 0; j < kLaneSlots; ++j) {
        const bool old = (used >> j & 1) != 0 && lane.times[j] < b.oldest_kept &&
                         !is_pinned(lane.steps[j], b.step);
        if (!old) continue;
        goes |= 1u << j;
        digests &= ~(0xffu << (8 * j));
      }
      if (!__any_sync(kAll, goes != 0)) continue;
      if (goes != 0) *reinterpret_cast<uint32_t*>(lane.digests) = digests;
      counts[1] -= warp_sum(__popc(goes & ~has_row));
      const int rows = warp_sum(__popc(goes & has_row));
      counts[0] += rows;
      if (rows == 0) continue;
      int64_t at = 0;
      if (lane_id() == 0) at = add_to(b.state + kFreeRows, rows);
      at = __shfl_sync(kAll, at, 0);
#pragma unroll
      for (int j = 0; j < kLaneSlots; ++j) {
        const bool frees = ((goes & has_row) >> j & 1) != 0;
        const unsigned lanes = __ballot_sync(kAll, frees);
        if (frees) b.free_rows[at + __popc(lanes & below_lane())] = lane.rows[j];
        at += __popc(lanes);
      }
    }
  }
  add_counts<2>(counts, {kExpired, kCandidates}, b.state);
}

/// Marks shards that must grow.
__global__ void __launch_bounds__(kThreads)
    check_kernel(Table table, IndexRules rules, BatchArgs b, uint8_t* grows) {
  const int64_t base =
      (static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp) * kWarp;
  if (base >= b.n) return;
  const Window window(table, rules, b, base);
  for (unsigned todo = window.leaders(table, rules, b); todo != 0; todo &= todo - 1) {
    int needed = 0;
    const int leader = __ffs(static_cast<int>(todo)) - 1;
    each_window(table, rules, b, window, leader, kRow,
                [&](uint32_t, const Window&, unsigned lanes) { needed += __popc(lanes); });
    if (needed == 0) continue;
    const uint32_t bucket = __shfl_sync(kAll, window.bucket, leader);
    const Slots lane = lane_slots(table.slots, bucket);
    const uint32_t used = used_bits(*reinterpret_cast<const uint32_t*>(lane.digests));
    const auto rows = warp_sum(__popc(row_bits(rules, lane, used)));
    const uint32_t shard = bucket / table.capacity;
    const uint32_t size = table.sizes == nullptr ? table.capacity : table.sizes[shard];
    if (rows + needed > rules.rows_per_bucket && size < rules.max_buckets && lane_id() == 0) {
      grows[shard] = 1;
    }
  }
}

// ---- insert ----

/// The lowest of the lanes' numbers.
__device__ uint32_t warp_min(uint32_t x) { return __reduce_min_sync(kAll, x); }
__device__ uint64_t warp_min(uint64_t x) {
  const uint32_t high = warp_min(static_cast<uint32_t>(x >> 32));
  const bool has_it = static_cast<uint32_t>(x >> 32) == high;
  const uint32_t low = warp_min(has_it ? static_cast<uint32_t>(x) : ~uint32_t{0});
  return static_cast<uint64_t>(high) << 32 | low;
}
/// Those of the warp's slots in `bits` whose number is the lowest.
template <class T, class Number>
__device__ uint32_t with_lowest(uint32_t bits, Number number) {
  T values[kLaneSlots];
  T least = ~T{0};
#pragma unroll
  for (int j = 0; j < kLaneSlots; ++j) {
    values[j] = (bits >> j & 1) != 0 ? number(j) : ~T{0};
    least = values[j] < least ? values[j] : least;
  }
  least = warp_min(least);
  uint32_t kept = 0;
#pragma unroll
  for (int j = 0; j < kLaneSlots; ++j) {
    if (values[j] == least) kept |= bits & (1u << j);
  }
  return kept;
}

/// A bucket in the registers of a warp, four slots in each lane. What a lane reads of its slots it
/// has written itself, or another kernel has.
template <bool kHasCandidates>
class WarpBucket {
 public:
  int inserted = 0, evicted = 0, refused = 0, candidates = 0;  // changes, in all buckets

  __device__ WarpBucket(const Table& table, const IndexRules& rules, const BatchArgs& b)
      : slots_(table.slots), rules_(rules), b_(b) {}

  __device__ void open(uint32_t bucket) {
    first_ = bucket * kBucketSlots + static_cast<uint32_t>(lane_id() * kLaneSlots);
    const Slots lane = this->lane();
    digests_ = *reinterpret_cast<const uint32_t*>(lane.digests);
    used_ = used_bits(digests_);
    has_row_ = kHasCandidates ? row_bits(rules_, lane, used_) : used_;
    rows_ = warp_sum(__popc(has_row_));
    stamps_loaded_ = false;
  }

  /// Phase 2 for one key.
  __device__ void add(int64_t i, int64_t key, uint8_t need) {
    const bool needs_row = (need & kRow) != 0;
    Place place, victim;
    const bool was_candidate = kHasCandidates && (need & kSlot) == 0;
    if (was_candidate) place = find(key);
    if (needs_row && rows_ == rules_.rows_per_bucket) {
      victim = lowest_row();
      if (!victim) return refuse(i);
    } else if (!was_candidate) {
      place = free_place();
      if (!place && kHasCandidates) {
        place = lowest_candidate();
        if (place) --candidates;
      }
      if (!place) victim = lowest_row();
      if (!place && !victim) return refuse(i);
    }
    int32_t row = -1;  // where it leaves its slot
    if (victim) {
      row = forget_row(victim, was_candidate || !needs_row);
      if (!place) place = victim;
    }
    fill(i, key, place, was_candidate, needs_row, static_cast<bool>(victim), row);
  }

 private:
  /// A slot of the warp's bucket, the same in all lanes.
  struct Place {
    int lane = -1, slot = 0;
    __device__ explicit operator bool() const { return lane >= 0; }
    __device__ bool is_mine() const { return lane == lane_id(); }
  };

  /// Computed when needed: six pointers would take twelve registers.
  __device__ Slots lane() const { return slots_.at(first_); }

  __device__ static Place first_of(uint32_t bits) {
    const unsigned lanes = __ballot_sync(kAll, bits != 0);
    if (lanes == 0) return {};
    const int lane = __ffs(static_cast<int>(lanes)) - 1;
    return {lane, __shfl_sync(kAll, __ffs(static_cast<int>(bits)) - 1, lane)};
  }

  __device__ Place free_place() const { return first_of(~used_ & 0xfu); }

  __device__ Place find(int64_t key) const {
    const uint32_t equal = equal_bytes(digests_, digest_of(key) * 0x01010101u);
    uint32_t bits = 0;
    for (int j = 0; j < kLaneSlots; ++j) {
      if ((equal >> (8 * j + 7) & 1) != 0 && lane().keys[j] == key) bits |= 1u << j;
    }
    return first_of(bits);
  }

  __device__ void load_stamps() {
    if (stamps_loaded_) return;
    stamps_loaded_ = true;
    const uint4 steps = *reinterpret_cast<const uint4*>(lane().steps);
    steps_[0] = steps.x, steps_[1] = steps.y, steps_[2] = steps.z, steps_[3] = steps.w;
    if (!rules_.keeps_scores) return;
    const Pair* scores = reinterpret_cast<const Pair*>(lane().scores);
    const Pair low = scores[0], high = scores[1];
    scores_[0] = low.x, scores_[1] = low.y, scores_[2] = high.x, scores_[3] = high.y;
  }

  __device__ Place lowest(uint32_t bits, bool by_score, bool by_step) const {
    if (!__any_sync(kAll, bits != 0)) return {};
    if (by_score) {
      bits = with_lowest<uint64_t>(bits, [&](int j) { return unsigned_order(scores_[j]); });
    }
    if (by_step) bits = with_lowest<uint32_t>(bits, [&](int j) { return steps_[j]; });
    if (warp_sum(__popc(bits)) > 1) {
      bits = with_lowest<uint64_t>(bits, [&](int j) { return unsigned_order(lane().keys[j]); });
    }
    return first_of(bits);
  }

  __device__ Place lowest_row() {
    load_stamps();
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kLaneSlots; ++j) {
      if (!is_pinned(steps_[j], b_.step)) bits |= has_row_ & (1u << j);
    }
    return lowest(bits, rules_.evict != Evict::kLru, rules_.evict != Evict::kAge);
  }

  __device__ Place lowest_candidate() {
    load_stamps();
    uint32_t bits = 0;
#pragma unroll
    for (int j = 0; j < kLaneSlots; ++j) {
      if (steps_[j] < b_.step) bits |= used_ & ~has_row_ & (1u << j);
    }
    return lowest(bits, true, true);
  }

  /// Its number in all lanes if it is asked for.
  __device__ int32_t forget_row(Place victim, bool wants_number) {
    ++evicted;
    --rows_;
    int32_t row = -1;
    if (victim.is_mine()) {
      used_ &= ~(1u << victim.slot);
      has_row_ &= ~(1u << victim.slot);
      digests_ &= ~(0xffu << (8 * victim.slot));
      lane().digests[victim.slot] = 0;
      if (wants_number) row = lane().rows[victim.slot];
    }
    return wants_number ? __shfl_sync(kAll, row, victim.lane) : -1;
  }

  __device__ void refuse(int64_t i) {
    ++refused;
    if (lane_id() == 0) finish(i, kDone, 0);
  }

  /// number_kernel gives the key its row from the slot.
  __device__ void finish(int64_t i, Outcome outcome, uint32_t slot) const {
    b_.marks[i] = outcome;
    if (outcome != kDone) {
      b_.slot_of[i] = slot;
    } else {
      b_.rows[i] = -1;
      b_.is_new[i] = 0;
    }
  }

  __device__ void fill(int64_t i, int64_t key, Place place, bool was_candidate, bool has_row,
                       bool takes_row, int32_t row) {
    candidates += (has_row ? 0 : 1) - (was_candidate ? 1 : 0);
    inserted += has_row ? 1 : 0;
    rows_ += has_row ? 1 : 0;
    if (!place.is_mine()) return;
    const int j = place.slot;
    const uint32_t bit = 1u << j, digest = digest_of(key);
    used_ |= bit;
    has_row_ = has_row ? has_row_ | bit : has_row_ & ~bit;
    digests_ = (digests_ & ~(0xffu << (8 * j))) | digest << (8 * j);
    lane().digests[j] = static_cast<uint8_t>(digest);
    lane().keys[j] = key;
    lane().steps[j] = static_cast<uint32_t>(b_.step);
    if (rules_.keeps_times) lane().times[j] = b_.time;
    int64_t score = 0;
    if (rules_.keeps_scores) {
      const int64_t uses = was_candidate ? lane().scores[j] : b_.uses_of(i);
      score = has_row ? rules_.score_of_new_row(uses, b_.time, b_.score_of(i)) : uses;
      lane().scores[j] = score;
    }
    // Their index must be known to the compiler, or they would live in memory.
#pragma unroll
    for (int k = 0; k < kLaneSlots; ++k) {
      if (k != j) continue;
      steps_[k] = static_cast<uint32_t>(b_.step);
      scores_[k] = score;
    }
    if (!has_row) {
      lane().rows[j] = -1;
      if (takes_row) {
        b_.free_rows[add_to(b_.state + kFreeRows, 1)] = row;
      }
      finish(i, kDone, 0);
      return;
    }
    if (takes_row && was_candidate) lane().rows[j] = row;
    finish(i, takes_row ? kTaken : kFresh, first_ + static_cast<uint32_t>(j));
  }

  const Slots& slots_;
  const IndexRules& rules_;
  const BatchArgs& b_;
  uint32_t first_ = 0;  // slot of this lane's four
  uint32_t digests_ = 0, used_ = 0, has_row_ = 0;
  int rows_ = 0;  // of the bucket
  bool stamps_loaded_ = false;
  uint32_t steps_[kLaneSlots];
  int64_t scores_[kLaneSlots];
};

__device__ void prefetch(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

/// Phase 2. A warp has the buckets that begin in its window, one after the other, with the lines of
/// the next few on their way.
template <bool kHasCandidates>
__global__ void __launch_bounds__(kThreads, 4)
    insert_kernel(Table table, IndexRules rules, BatchArgs b, bool expects_evictions) {
  constexpr int kAhead = 4;
  const int lane = lane_id();
  const int64_t base =
      (static_cast<int64_t>(blockIdx.x) * kWarpsPerBlock + threadIdx.x / kWarp) * kWarp;
  WarpBucket<kHasCandidates> bucket(table, rules, b);
  if (base < b.n) {
    const Window window(table, rules, b, base);
    const unsigned leaders = window.leaders(table, rules, b);
    const unsigned work = __ballot_sync(kAll, window.mark != kNothing);
    // Runs with work; the last one may have it further on.
    const unsigned after = lane == kWarp - 1 ? 0 : leaders & (kAll << (lane + 1));
    const unsigned run =
        (after == 0 ? kAll : (1u << (__ffs(static_cast<int>(after)) - 1)) - 1) & (kAll << lane);
    const bool has_work = (work & run) != 0 || after == 0;
    unsigned todo = __ballot_sync(kAll, (leaders >> lane & 1) != 0 && has_work);

    unsigned ahead = todo;
    const auto fetch_next = [&] {
      if (ahead == 0) return;
      const uint32_t next = __shfl_sync(kAll, window.bucket, __ffs(static_cast<int>(ahead)) - 1);
      ahead &= ahead - 1;
      const int64_t first = static_cast<int64_t>(next) * kBucketSlots;
      if (lane == 0) prefetch(table.slots.digests + first);
      if (expects_evictions && lane < 4) prefetch(table.slots.steps + first + lane * kWarp);
    };
    for (int k = 0; k < kAhead; ++k) fetch_next();
    for (; todo != 0; todo &= todo - 1) {
      fetch_next();
      bool is_open = false;
      each_window(table, rules, b, window, __ffs(static_cast<int>(todo)) - 1, kSlotAndRow,
                  [&](uint32_t own, const Window& w, unsigned lanes) {
                    if (!is_open) bucket.open(own);
                    is_open = true;
                    for (; lanes != 0; lanes &= lanes - 1) {
                      const int from = __ffs(static_cast<int>(lanes)) - 1;
                      const int64_t key = __shfl_sync(kAll, w.key, from);
                      const int mark = __shfl_sync(kAll, static_cast<int>(w.mark), from);
                      bucket.add(w.base + from, key, static_cast<uint8_t>(mark));
                    }
                  });
    }
  }
  const int counts[4] = {bucket.inserted, bucket.evicted, bucket.refused, bucket.candidates};
  add_counts<4>(counts, {kInserted, kEvicted, kRefused, kCandidates}, b.state);
}

// ---- rows' numbers ----

struct IsFresh {
  __host__ __device__ int32_t operator()(uint8_t mark) const { return mark == kFresh ? 1 : 0; }
};

__global__ void number_kernel(Table table, BatchArgs b, const int32_t* place) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= b.n) return;
  const uint8_t mark = b.marks[i];
  if (mark == kDone) return;
  const uint32_t slot = b.slot_of[i];
  b.is_new[i] = 1;
  if (mark == kTaken) {
    b.rows[i] = table.slots.rows[slot];
    return;
  }
  const int64_t free = b.state[kFreeRows], at = place[i];
  const int64_t row = at < free ? b.free_rows[free - 1 - at] : b.state[kNextRow] + (at - free);
  table.slots.rows[slot] = static_cast<int32_t>(row);
  b.rows[i] = row;
}

__global__ void settle_kernel(BatchArgs b, const int32_t* place) {
  const int64_t numbered = place[b.n - 1] + IsFresh()(b.marks[b.n - 1]);
  const int64_t reused = min(numbered, b.state[kFreeRows]);
  b.state[kFreeRows] -= reused;
  b.state[kNextRow] += numbered - reused;
}

// ---- growth ----

struct GrowingShard {
  uint32_t shard;           // counted from the first one here
  uint32_t size, new_size;  // buckets
  uint32_t to_bucket;       // where its buckets begin in the new memory
};

/// f(slot, whether it moves to bucket `to` of the grown shard) for all slots that may; by a warp.
template <class F>
__device__ void each_moving_slot(const Table& table, const IndexRules& rules,
                                 const GrowingShard& shard, uint32_t to, F f) {
  const uint64_t size = shard.size, new_size = shard.new_size;
  const uint64_t first = to * size / new_size, last = ((to + 1ull) * size - 1) / new_size;
  for (uint64_t from = first; from <= last; ++from) {
    const uint64_t begin = (uint64_t{shard.shard} * table.capacity + from) * kBucketSlots;
    for (int j = 0; j < kLaneSlots; ++j) {
      const uint64_t slot = begin + static_cast<uint64_t>(j * kWarp + lane_id());
      f(slot, table.slots.digests[slot] != 0 &&
                  rules.bucket_of(table.slots.keys[slot], shard.new_size) == to);
    }
  }
}

/// The first of the batch's keys that belongs to bucket `to` of the grown shard or comes after.
__device__ int64_t first_key(const Table& table, const IndexRules& rules, const BatchArgs& b,
                             const GrowingShard& shard, uint32_t to) {
  const int64_t own = table.first_shard + shard.shard;
  int64_t low = 0, high = b.n;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2, key = b.keys[middle];
    const int64_t at = rules.shard_of(key);
    const bool before = at < own || (at == own && rules.bucket_of(key, shard.new_size) < to);
    low = before ? middle + 1 : low;
    high = before ? high : middle;
  }
  return low;
}

enum Misfit : int { kHoldsTooMuch = 1, kNeedsTooMuch = 2 };

/// Whether shards of another size would do; a warp per new bucket.
__global__ void __launch_bounds__(kThreads) fit_kernel(Table table, IndexRules rules, BatchArgs b,
                                                       const GrowingShard* shards, int* misfits) {
  const GrowingShard shard = shards[blockIdx.y];
  const uint32_t to = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
  if (to >= shard.new_size) return;
  int used = 0, rows = 0, needed = 0;
  each_moving_slot(table, rules, shard, to, [&](uint64_t slot, bool moves) {
    used += __popc(__ballot_sync(kAll, moves));
    rows += __popc(__ballot_sync(kAll, moves && table.slots.rows[slot] >= 0));
  });
  const int64_t own = table.first_shard + shard.shard;
  for (int64_t base = first_key(table, rules, b, shard, to); base < b.n; base += kWarp) {
    const int64_t i = base + lane_id();
    const bool belongs = i < b.n && rules.shard_of(b.keys[i]) == own &&
                         rules.bucket_of(b.keys[i], shard.new_size) == to;
    needed += __popc(__ballot_sync(kAll, belongs && (b.marks[i] & kRow) != 0));
    if (!__all_sync(kAll, belongs)) break;
  }
  int misfit = 0;
  if (rows > rules.rows_per_bucket || used > kBucketSlots) misfit |= kHoldsTooMuch;
  if (rows + needed > rules.rows_per_bucket) misfit |= kNeedsTooMuch;
  if (misfit != 0 && lane_id() == 0) atomicOr(misfits + blockIdx.y, misfit);
}

/// Puts the shards' slots into memory for larger shards, which is zero; a warp per new bucket.
__global__ void __launch_bounds__(kThreads)
    move_kernel(Table table, IndexRules rules, const GrowingShard* shards, Slots to_slots) {
  const GrowingShard shard = shards[blockIdx.y];
  const uint32_t to = blockIdx.x * kWarpsPerBlock + threadIdx.x / kWarp;
  if (to >= shard.new_size) return;
  uint64_t next = (uint64_t{shard.to_bucket} + to) * kBucketSlots;
  each_moving_slot(table, rules, shard, to, [&](uint64_t slot, bool moves) {
    const unsigned movers = __ballot_sync(kAll, moves);
    if (moves) {
      const uint64_t at = next + static_cast<uint64_t>(__popc(movers & below_lane()));
      const Slots from = table.slots.at(static_cast<int64_t>(slot));
      const Slots into = to_slots.at(static_cast<int64_t>(at));
      *into.digests = *from.digests;
      *into.keys = *from.keys;
      *into.rows = *from.rows;
      *into.steps = *from.steps;
      if (rules.keeps_scores) *into.scores = *from.scores;
      if (rules.keeps_times) *into.times = *from.times;
    }
    next += static_cast<uint64_t>(__popc(movers));
  });
}

// ---- host ----

/// Pieces of one buffer, each on a line of its own.
class Layout {
 public:
  int64_t add(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += divide_up(bytes, 256) * 256;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>(divide_up(threads, kThreads)); }

class CudaHashIndex final : public HashIndex {
 public:
  CudaHashIndex(const HashIndexConfig& config, Device device)
      : config_(config),
        rules_(rules_of(config)),
        device_(device),
        sizes_(static_cast<size_t>(rules_.shards_here()), rules_.start_buckets),
        pool_(device, rules_, rules_.shards_here(), rules_.start_buckets),
        sizes_memory_(device, std::max<int64_t>(1, rules_.shards_here()) * 4, Purpose::kTable),
        report_(device, report_bytes(), Purpose::kTable),
        host_report_(Device::cpu(), report_bytes(), Purpose::kScratch, HostMemory::kPinned) {
    make_free_rows();
    send_sizes();
  }
  ~CudaHashIndex() override = default;

  const HashIndexConfig& config() const override { return config_; }

  void find_or_insert(const Batch& batch, const Found& found, const Stream& stream) override {
    SEGUE_ASSERT(batch.step >= last_step_ && batch.step <= kMostSteps,
                 "steps do not go back, and fit 32 bits");
    last_step_ = batch.step;
    const int64_t n = batch.keys.elements();
    if (n == 0) return;
    SEGUE_ASSERT(n <= INT32_MAX && !sizes_.empty(), "keys of shards that are here");
    check_cuda(cudaSetDevice(device_.index));
    const auto queue = static_cast<cudaStream_t>(stream.handle());
    make_scratch(n);
    BatchArgs b = arguments(batch, found);
    const unsigned blocks = blocks_for(n);

    if (rules_.keeps_times) {
      expire_kernel<<<blocks, kThreads, 0, queue>>>(table(), rules_, b);
      check_launch();
    }
    plan_kernel<<<blocks, kThreads, 0, queue>>>(table(), rules_, b);
    check_launch();
    if (!is_largest()) {
      grow(b, stream);
      b.free_rows = static_cast<int32_t*>(free_rows_.data());  // it may have moved
    }
    if (is_largest() && done_.reached() && next_row_.size() > 0) rows_bound_ = next_row_[0];
    rows_bound_ = std::min(capacity_rows(), rows_bound_ + n);
    const auto insert = rules_.has_candidates ? insert_kernel<true> : insert_kernel<false>;
    const bool expects_evictions = rows_bound_ > capacity_rows() / 8 * 7;
    insert<<<blocks, kThreads, 0, queue>>>(table(), rules_, b, expects_evictions);
    check_launch();
    number(b, queue);
    // What the next batch takes the bound from, if it has arrived by then.
    next_row_.set_memory(HostMemory::kPinned);
    next_row_.resize(1);
    copy_bytes(next_row_.data(), Device::cpu(), state() + kNextRow, device_, sizeof(int64_t),
               &stream);
    done_.record(stream);
  }

  void find(const Tensor& keys, const Tensor& rows, const Stream& stream) const override {
    const int64_t n = keys.elements();
    SEGUE_ASSERT(keys.is_contiguous() && rows.is_contiguous() && rows.elements() == n,
                 "a row for every key");
    if (n == 0) return;
    check_cuda(cudaSetDevice(device_.index));
    const auto queue = static_cast<cudaStream_t>(stream.handle());
    if (sizes_.empty()) {
      check_cuda(
          cudaMemsetAsync(device_ptr<int64_t>(rows), 0xff, static_cast<size_t>(n) * 8, queue));
      return;
    }
    find_kernel<<<blocks_for(n), kThreads, 0, queue>>>(table(), rules_, device_ptr<int64_t>(keys),
                                                       device_ptr<int64_t>(rows), n);
    check_launch();
  }

  int64_t rows_in_use() const override { return rows_bound_; }

  Counts counts() const override {
    done_.synchronize();
    std::vector<int64_t> state(kStates);
    copy_bytes(state.data(), Device::cpu(), report_.data(), device_, kStates * sizeof(int64_t),
               nullptr);
    rows_bound_ = state[kNextRow];
    Counts c;
    c.capacity = capacity_rows();
    c.slots = c.capacity / rules_.rows_per_bucket * kBucketSlots;
    c.rows = state[kNextRow] - state[kFreeRows];
    c.candidates = state[kCandidates];
    c.inserted = state[kInserted];
    c.evicted = state[kEvicted];
    c.expired = state[kExpired];
    c.refused = state[kRefused];
    c.growths = growths_;
    return c;
  }

  Entries entries() const override {
    done_.synchronize();
    const SlotPool host(Device::cpu(), rules_, rules_.shards_here(), pool_.capacity());
    copy_bytes(host.data(), Device::cpu(), pool_.data(), device_, static_cast<size_t>(host.bytes()),
               nullptr);
    return collect_entries(rules_, host, sizes_);
  }

  void load(const Entries& entries) override {
    PlacedEntries placed = place_entries(rules_, entries);
    done_.synchronize();
    if (placed.pool.capacity() != pool_.capacity()) {
      pool_ = {};  // first, so that there is room
      pool_ = SlotPool(device_, rules_, rules_.shards_here(), placed.pool.capacity());
    }
    copy_bytes(pool_.data(), device_, placed.pool.data(), Device::cpu(),
               static_cast<size_t>(pool_.bytes()), nullptr);
    sizes_ = std::move(placed.sizes);
    send_sizes();
    free_rows_ = {};
    make_free_rows();
    std::vector<int64_t> state(kStates, 0);
    state[kNextRow] = placed.rows;
    state[kCandidates] = placed.candidates;
    copy_bytes(report_.data(), device_, state.data(), Device::cpu(), kStates * sizeof(int64_t),
               nullptr);
    rows_bound_ = placed.rows;
    next_row_.resize(0);
    growths_ = 0;
    last_step_ = 0;
  }

  int64_t bytes() const override {
    return pool_.bytes() + sizes_memory_.bytes() + report_.bytes() + free_rows_.bytes() +
           scratch_.bytes();
  }

 private:
  // The numbers of State, then a byte per shard that must grow.
  int64_t report_bytes() const {
    return kStates * static_cast<int64_t>(sizeof(int64_t)) + rules_.shards_here();
  }
  int64_t* state() const { return static_cast<int64_t*>(report_.data()); }
  uint8_t* grows() const { return reinterpret_cast<uint8_t*>(state() + kStates); }

  int64_t capacity_rows() const {
    int64_t buckets = 0;
    for (const uint32_t size : sizes_) buckets += size;
    return buckets * rules_.rows_per_bucket;
  }
  bool is_largest() const {
    return std::ranges::all_of(sizes_, [&](uint32_t size) { return size == rules_.max_buckets; });
  }

  Table table() const {
    return {pool_.slots(), is_even_ ? nullptr : static_cast<const uint32_t*>(sizes_memory_.data()),
            pool_.capacity(), rules_.first_shard, rules_.end_shard};
  }

  /// To be done after sizes_ or the pool changed; waits.
  void send_sizes() {
    is_even_ = std::ranges::all_of(sizes_, [&](uint32_t s) { return s == pool_.capacity(); });
    copy_bytes(sizes_memory_.data(), device_, sizes_.data(), Device::cpu(), sizes_.size() * 4,
               nullptr);
  }

  /// Room for the numbers of all rows, where rows can be forgotten without an heir.
  void make_free_rows() {
    if (!rules_.keeps_times && !rules_.has_candidates) return;
    const int64_t rows = rules_.shards_here() * pool_.capacity() * rules_.rows_per_bucket;
    Buffer larger(device_, rows * 4, Purpose::kTable);
    copy_bytes(larger.data(), device_, free_rows_.data(), device_,
               static_cast<size_t>(free_rows_.bytes()), nullptr);
    free_rows_ = std::move(larger);
  }

  void make_scratch(int64_t n) {
    if (n <= scratch_keys_) return;
    const int64_t keys =
        std::max(n, std::min<int64_t>(INT32_MAX, scratch_keys_ + scratch_keys_ / 2));
    check_cuda(cub::DeviceScan::ExclusiveSum(
        nullptr, scan_bytes_,
        thrust::make_transform_iterator(static_cast<uint8_t*>(nullptr), IsFresh()),
        static_cast<int32_t*>(nullptr), static_cast<int>(keys)));
    Layout layout;
    marks_at_ = layout.add(keys);
    slot_of_at_ = layout.add(keys * 4);
    place_at_ = layout.add(keys * 4);
    scan_at_ = layout.add(static_cast<int64_t>(scan_bytes_));
    done_.synchronize();
    scratch_ = {};
    scratch_ = Buffer(device_, layout.bytes(), Purpose::kScratch);
    scratch_keys_ = keys;
  }
  char* scratch_at(int64_t offset) const { return static_cast<char*>(scratch_.data()) + offset; }
  int32_t* places() const { return reinterpret_cast<int32_t*>(scratch_at(place_at_)); }

  BatchArgs arguments(const Batch& batch, const Found& found) const {
    const int64_t n = batch.keys.elements();
    for (const Tensor& t : {batch.keys, batch.uses, batch.scores, found.rows, found.is_new}) {
      SEGUE_ASSERT(!t || (t.is_contiguous() && t.elements() == n), "one of each for every key");
    }
    SEGUE_ASSERT(found.rows && found.is_new, "room for what is found");
    SEGUE_ASSERT(rules_.evict != Evict::kScore || batch.scores, "kScore needs scores");
    BatchArgs b{};
    b.keys = device_ptr<int64_t>(batch.keys);
    b.uses = device_ptr<int32_t>(batch.uses);
    b.scores = device_ptr<int64_t>(batch.scores);
    b.n = n;
    b.step = batch.step;
    b.time = batch.time;
    b.oldest_kept = rules_.oldest_kept(batch.time);
    b.rows = device_ptr<int64_t>(found.rows);
    b.is_new = device_ptr<uint8_t>(found.is_new);
    b.marks = reinterpret_cast<uint8_t*>(scratch_at(marks_at_));
    b.slot_of = reinterpret_cast<uint32_t*>(scratch_at(slot_of_at_));
    b.state = state();
    b.free_rows = static_cast<int32_t*>(free_rows_.data());
    return b;
  }

  void number(const BatchArgs& b, cudaStream_t queue) {
    size_t bytes = scan_bytes_;
    check_cuda(cub::DeviceScan::ExclusiveSum(scratch_at(scan_at_), bytes,
                                             thrust::make_transform_iterator(b.marks, IsFresh()),
                                             places(), static_cast<int>(b.n), queue));
    count_launches(2);
    number_kernel<<<blocks_for(b.n), kThreads, 0, queue>>>(table(), b, places());
    check_launch();
    settle_kernel<<<1, 1, 0, queue>>>(b, places());
    check_launch();
  }

  // ---- growth ----

  /// Waits for the device: what is found there decides what is done next.
  void grow(const BatchArgs& b, const Stream& stream) {
    const auto queue = static_cast<cudaStream_t>(stream.handle());
    check_cuda(cudaMemsetAsync(grows(), 0, sizes_.size(), queue));
    check_kernel<<<blocks_for(b.n), kThreads, 0, queue>>>(table(), rules_, b, grows());
    check_launch();
    copy_bytes(host_report_.data(), Device::cpu(), report_.data(), device_,
               static_cast<size_t>(report_bytes()), &stream);
    stream.synchronize();
    const auto* numbers = static_cast<const int64_t*>(host_report_.data());
    const auto* marked = reinterpret_cast<const uint8_t*>(numbers + kStates);
    rows_bound_ = numbers[kNextRow];
    std::vector<GrowingShard> shards;
    for (size_t s = 0; s < sizes_.size(); ++s) {
      if (marked[s] == 0) continue;
      shards.push_back({static_cast<uint32_t>(s), sizes_[s], sizes_[s], 0});
    }
    if (shards.empty()) return;
    choose_sizes(shards, b, stream);
    if (shards.empty()) return;
    std::vector<uint32_t> sizes = sizes_;
    for (const GrowingShard& shard : shards) sizes[shard.shard] = shard.new_size;
    const uint32_t capacity = largest_size(rules_, sizes);
    if (capacity > pool_.capacity()) {
      move_all(sizes, capacity, stream);
    } else {
      move_in_place(shards, stream);
    }
    growths_ += static_cast<int64_t>(shards.size());
    const bool has_more_room =
        free_rows_.bytes() > 0 && capacity_of(free_rows_) < capacity_of(pool_);
    sizes_ = std::move(sizes);
    send_sizes();
    if (has_more_room) make_free_rows();
  }
  static int64_t capacity_of(const Buffer& numbers) { return numbers.bytes() / 4; }
  int64_t capacity_of(const SlotPool& pool) const {
    return pool.num_slots() / kBucketSlots * rules_.rows_per_bucket;
  }

  /// The new sizes of shards; drops those that cannot grow.
  void choose_sizes(std::vector<GrowingShard>& shards, const BatchArgs& b,
                    const Stream& stream) const {
    std::vector<GrowingShard> chosen, trial = shards;
    while (!trial.empty()) {
      for (GrowingShard& shard : trial) shard.new_size = rules_.next_size(shard.new_size);
      const std::vector<int> misfits = try_sizes(trial, b, stream);
      std::vector<GrowingShard> again;
      for (size_t k = 0; k < trial.size(); ++k) {
        if ((misfits[k] & kHoldsTooMuch) == 0) chosen.push_back(trial[k]);
        if (misfits[k] != 0 && trial[k].new_size < rules_.max_buckets) again.push_back(trial[k]);
      }
      trial = std::move(again);
    }
    // Of the sizes that hold a shard the last: it was tried on only as long as none sufficed.
    std::ranges::sort(chosen, [](const GrowingShard& x, const GrowingShard& y) {
      return x.shard != y.shard ? x.shard < y.shard : x.new_size > y.new_size;
    });
    const auto rest = std::ranges::unique(
        chosen, [](const GrowingShard& x, const GrowingShard& y) { return x.shard == y.shard; });
    chosen.erase(rest.begin(), rest.end());
    shards = std::move(chosen);
  }

  /// A copy of the list on the device.
  Buffer send(const std::vector<GrowingShard>& shards, int64_t extra_bytes = 0) const {
    const auto bytes = static_cast<int64_t>(shards.size() * sizeof(GrowingShard));
    Buffer list(device_, bytes + extra_bytes, Purpose::kScratch);
    copy_bytes(list.data(), device_, shards.data(), Device::cpu(), static_cast<size_t>(bytes),
               nullptr);
    return list;
  }
  /// A warp for every bucket of the largest shard.
  static dim3 grid_for(const std::vector<GrowingShard>& shards) {
    uint32_t largest = 0;
    for (const GrowingShard& shard : shards) largest = std::max(largest, shard.new_size);
    return {static_cast<unsigned>(divide_up(largest, kWarpsPerBlock)),
            static_cast<unsigned>(shards.size()), 1};
  }

  std::vector<int> try_sizes(const std::vector<GrowingShard>& shards, const BatchArgs& b,
                             const Stream& stream) const {
    std::vector<int> misfits(shards.size());
    const Buffer list = send(shards, static_cast<int64_t>(shards.size() * sizeof(int)));
    const auto* on_device = static_cast<const GrowingShard*>(list.data());
    auto* flags = reinterpret_cast<int*>(static_cast<GrowingShard*>(list.data()) + shards.size());
    fit_kernel<<<grid_for(shards), kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
        table(), rules_, b, on_device, flags);
    check_launch();
    copy_bytes(misfits.data(), Device::cpu(), flags, device_, misfits.size() * sizeof(int),
               &stream);
    stream.synchronize();
    return misfits;
  }

  void move(const std::vector<GrowingShard>& shards, const SlotPool& to,
            const Stream& stream) const {
    const Buffer list = send(shards);
    move_kernel<<<grid_for(shards), kThreads, 0, static_cast<cudaStream_t>(stream.handle())>>>(
        table(), rules_, static_cast<const GrowingShard*>(list.data()), to.slots());
    check_launch();
    stream.synchronize();
  }

  /// Every shard into new memory: room to grow for the others, too, so that they do it in place.
  void move_all(const std::vector<uint32_t>& sizes, uint32_t capacity, const Stream& stream) {
    SlotPool grown(device_, rules_, rules_.shards_here(), capacity);
    std::vector<GrowingShard> shards;
    for (size_t s = 0; s < sizes.size(); ++s) {
      const auto shard = static_cast<uint32_t>(s);
      shards.push_back({shard, sizes_[s], sizes[s], shard * capacity});
    }
    move(shards, grown, stream);
    pool_ = std::move(grown);
  }

  /// By way of some other memory, few shards at a time.
  void move_in_place(const std::vector<GrowingShard>& all, const Stream& stream) {
    constexpr int64_t kMostSlots = int64_t{1} << 22;
    for (size_t next = 0; next < all.size();) {
      std::vector<GrowingShard> shards;
      uint32_t buckets = 0;
      do {
        shards.push_back(all[next]);
        shards.back().to_bucket = buckets;
        buckets += all[next++].new_size;
      } while (next < all.size() &&
               (int64_t{buckets} + all[next].new_size) * kBucketSlots <= kMostSlots);
      const SlotPool grown(device_, rules_, 1, buckets);
      move(shards, grown, stream);
      for (const GrowingShard& shard : shards) copy_back(shard, grown, stream);
      stream.synchronize();
    }
  }
  void copy_back(const GrowingShard& shard, const SlotPool& grown, const Stream& stream) const {
    const Slots from = grown.slots().at(grown.first_slot(0, shard.to_bucket));
    const Slots to = pool_.slots().at(pool_.first_slot(shard.shard, 0));
    const auto copy_field = [&]<class T>(T* into, const T* field) {
      if (field == nullptr) return;
      copy_bytes(into, device_, field, device_, size_t{shard.new_size} * kBucketSlots * sizeof(T),
                 &stream);
    };
    copy_field(to.digests, from.digests);
    copy_field(to.keys, from.keys);
    copy_field(to.rows, from.rows);
    copy_field(to.steps, from.steps);
    copy_field(to.scores, from.scores);
    copy_field(to.times, from.times);
  }

  HashIndexConfig config_;
  IndexRules rules_;
  Device device_;
  std::vector<uint32_t> sizes_;  // buckets of each shard
  SlotPool pool_;
  Buffer sizes_memory_;
  Buffer report_, host_report_;
  Buffer free_rows_;
  bool is_even_ = true;
  mutable int64_t rows_bound_ = 0;  // counts() knows better
  int64_t last_step_ = 0, growths_ = 0;
  Event done_;
  HostArray<int64_t> next_row_;  // pinned, one: of the batch before
  // Of a call; kept for the next one.
  Buffer scratch_;
  int64_t scratch_keys_ = 0, marks_at_ = 0, slot_of_at_ = 0, place_at_ = 0, scan_at_ = 0;
  size_t scan_bytes_ = 0;
};

}  // namespace

std::unique_ptr<HashIndex> make_cuda_hash_index(const HashIndexConfig& config, Device device) {
  require_available(device);
  return std::make_unique<CudaHashIndex>(config, device);
}

}  // namespace segue::sparse::detail
