#pragma once

#include "sparse/hash_index_runs.cuh"

// For hash_index_cuda.cu alone: shards that must grow, and how they do.

namespace segue::sparse::detail {
namespace {

/// Marks shards that must grow, of indices that can.
__global__ void __launch_bounds__(kThreads) check_kernel(const __grid_constant__ IndexCalls calls) {
  const auto& [table, rules, b, expects_evictions, end_block] = calls.mine();
  const int64_t base = calls.first_of_warp();
  if (base >= b.n || b.grows == nullptr) return;
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
      b.grows[shard] = 1;
    }
  }
}

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

}  // namespace
}  // namespace segue::sparse::detail
