#pragma once

#include "sparse/hash_index_place.cuh"
#include "sparse/hash_index_runs.cuh"

// For hash_index_cuda.cu alone: phases 0 and 2, a warp per bucket.

namespace segue::sparse::detail {
namespace {

/// Phase 0.
__global__ void __launch_bounds__(kThreads)
    expire_kernel(const __grid_constant__ IndexCalls calls) {
  const auto& [table, rules, b, expects_evictions, end_block] = calls.mine();
  if (!rules.keeps_times) return;
  int counts[2] = {};
  const int64_t base = calls.first_of_warp();
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
    if (lane_id() == 0) b_.finish(i, kDone, 0);
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
      b_.finish(i, kDone, 0);
      return;
    }
    if (takes_row && was_candidate) lane().rows[j] = row;
    b_.finish(i, takes_row ? kTaken : kFresh, first_ + static_cast<uint32_t>(j));
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

/// Phase 2. A warp has the buckets that begin in its window, one after the other; the digests of
/// all are on their way before the first is looked at, steps of the next few.
template <bool kHasCandidates>
__global__ void __launch_bounds__(kThreads, 4)
    insert_kernel(const __grid_constant__ IndexCalls calls) {
  constexpr int kAhead = 4;
  const auto& [table, rules, b, expects_evictions, end_block] = calls.mine();
  if (rules.has_candidates != kHasCandidates) return;
  const int lane = lane_id();
  const int64_t base = calls.first_of_warp();
  WarpBucket<kHasCandidates> bucket(table, rules, b);
  if (base < b.n) {
    const Window window(table, rules, b, base);
    const unsigned leaders = window.leaders(table, rules, b);
    const unsigned work = __ballot_sync(kAll, (window.mark & kSlotAndRow) != 0);
    // Runs with work; the last one may have it further on.
    const unsigned after = lane == kWarp - 1 ? 0 : leaders & (kAll << (lane + 1));
    const unsigned run =
        (after == 0 ? kAll : (1u << (__ffs(static_cast<int>(after)) - 1)) - 1) & (kAll << lane);
    const bool goes_on = window.goes_on(table, rules, b);
    const bool has_work = (work & run) != 0 || (after == 0 && goes_on);
    unsigned todo = __ballot_sync(kAll, (leaders >> lane & 1) != 0 && has_work);

    if ((todo >> lane & 1) != 0) {
      prefetch(table.slots.digests + static_cast<int64_t>(window.bucket) * kBucketSlots);
    }
    unsigned ahead = expects_evictions ? todo : 0;
    const auto fetch_next = [&] {
      if (ahead == 0) return;
      const uint32_t next = __shfl_sync(kAll, window.bucket, __ffs(static_cast<int>(ahead)) - 1);
      ahead &= ahead - 1;
      const int64_t first = static_cast<int64_t>(next) * kBucketSlots;
      if (lane < 4) prefetch(table.slots.steps + first + lane * kWarp);
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

}  // namespace
}  // namespace segue::sparse::detail
