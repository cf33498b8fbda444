#pragma once

#include "sparse/hash_index_runs.cuh"

// For hash_index_cuda.cu alone: where keys are, and phase 1.

namespace segue::sparse::detail {
namespace {

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
__global__ void __launch_bounds__(kThreads) plan_kernel(const __grid_constant__ IndexCalls calls) {
  const auto& [table, rules, b, expects_evictions, end_block] = calls.mine();
  const int64_t i = calls.first_key() + threadIdx.x;
  if (i >= b.n) b.marks[i] = kNothing;  // what lies between calls is counted, too
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

}  // namespace
}  // namespace segue::sparse::detail
