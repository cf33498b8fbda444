#pragma once

#include <cstdint>

#include "attention/cuda_plan.h"
#include "attention/hopper.cuh"
#include "attention/hstu_mask.h"

/// What the sm_90a kernels share: how a block gets its next tile, which steps a tile has, and the
/// element-wise arithmetic. In every kernel warpgroup 0 fetches (warp 0 copies, warp 1 picks tiles)
/// and the other warpgroups compute 64 rows each, without ever meeting at a common barrier.
namespace segue::attention::hopper {

inline constexpr int kWarpgroup = 128;
inline constexpr int kTileSlots = 4;

/// Up to three runs of blocks, ascending and disjoint.
struct Steps {
  int begin[3] = {0, 0, 0};
  int end[3] = {0, 0, 0};

  __device__ int count() const {
    return end[0] - begin[0] + (end[1] - begin[1]) + (end[2] - begin[2]);
  }
  __device__ int at(int k) const {
    const int first = end[0] - begin[0];
    const int second = first + end[1] - begin[1];
    return k < first ? begin[0] + k : k < second ? begin[1] + k - first : begin[2] + k - second;
  }
  /// Adds columns [from, to) as blocks of `size`, less what is there already.
  __device__ void add(int run, int from, int to, int size) {
    const int before = run > 0 ? end[run - 1] : 0;
    begin[run] = max(from / size, before);
    end[run] = from < to ? max((to + size - 1) / size, begin[run]) : begin[run];
  }
};

/// One tile of work: `begin` is its first row (or key) inside the sequence.
struct Tile {
  int first_row, n, targets, head, begin;  // head < 0: no more tiles
  int count;                               // of steps
  int spill;                               // first spilled block of the head
};

/// Block of score gradients of (query block m, key block n) of a head of n_rows rows.
__device__ inline int64_t spill_block(const Tile& t, int query, int key) {
  const int blocks = (t.n + kSpillBlock - 1) / kSpillBlock;
  const int m = query / kSpillBlock;
  const int n = key / kSpillBlock;
  return t.spill + (n <= m ? m * (m + 1) / 2 + n : blocks * (blocks + 1) / 2 + m * blocks + n);
}

/// Blocks of `block` keys that some row of [first, last) sees.
__device__ inline Steps key_steps(const KernelMask& mask, const Tile& t, int rows, int block) {
  const int last = min(t.begin + rows, t.n);
  const KernelMask::Rows r = mask.rows(t.begin, last, t.n, t.targets);
  Steps steps;
  steps.add(0, r.min_lo, r.max_hi, block);
  steps.add(1, r.own_lo, last, block);
  steps.begin[2] = steps.end[2] = steps.end[1];
  return steps;
}

/// Blocks of `block` queries that see some key of the tile.
__device__ inline Steps query_steps(const KernelMask& mask, const Tile& t, int keys, int block) {
  const KernelMask::Seers s = mask.seers(t.begin, min(t.begin + keys, t.n), t.n, t.targets);
  Steps steps;
  steps.add(0, 0, s.context_end, block);
  steps.add(1, s.near, s.near_end, block);
  steps.add(2, s.far, t.n, block);
  return steps;
}

#if SEGUE_SM90A

/// Tiles on their way from the picking warp to everybody else.
struct TileQueue {
  Tile tiles[kTileSlots];
  Steps steps[kTileSlots];
  uint64_t full[kTileSlots];
  uint64_t empty[kTileSlots];

  /// `readers`: warps that call pop().
  __device__ void init(int readers) {
    for (int i = 0; i < kTileSlots; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], readers);
    }
  }
  /// By a whole warp: waits for a tile, which stays until it is released.
  __device__ const Tile& wait(const RingPosition<kTileSlots>& at) {
    barrier_wait(&full[at.stage], at.parity);
    return tiles[at.stage];
  }
  __device__ void release(int slot) {
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(&empty[slot]);
  }
  /// Waits for a tile, copies it and releases it.
  __device__ Tile pop(RingPosition<kTileSlots>& at, Steps* steps_out = nullptr) {
    barrier_wait(&full[at.stage], at.parity);
    // A value from lane 0 is one that the compiler knows to be the same in all lanes; without it
    // every branch on a tile would look divergent, and products in it would be serialised.
    const auto uniform = [](int x) { return __shfl_sync(~0u, x, 0); };
    const Tile& tile = tiles[at.stage];
    const Tile copy{uniform(tile.first_row), uniform(tile.n),     uniform(tile.targets),
                    uniform(tile.head),      uniform(tile.begin), uniform(tile.count),
                    uniform(tile.spill)};
    if (steps_out != nullptr) *steps_out = steps[at.stage];
    __syncwarp();
    if ((threadIdx.x & 31) == 0) barrier_arrive(&empty[at.stage]);
    at.advance();
    return copy;
  }
};

/// Whether heads and tiles of a sequence come with the longest tile first.
enum class Order { kLastTileFirst, kFirstTileFirst };

/// Finds tile `index`: a search with 32 probes at a time, by a whole warp.
template <int kRows>
__device__ inline Tile find_tile(const WorkList& work, int index, Order order) {
  const auto first_tile = [&](const SequenceEntry& s) {
    return kRows == kWideTileRows ? s.first_wide_tile : s.first_tile;
  };
  const int lane = threadIdx.x & 31;
  int first = 0;
  int count = work.sequences;
  while (count > 1) {
    const int step = (count + 31) / 32;
    const int probe = first + lane * step;
    const bool before = lane * step < count && first_tile(work.table[probe]) <= index;
    const int hits = __popc(__ballot_sync(~0u, before));
    const int end = first + count;
    first += (hits - 1) * step;
    count = min(step, end - first);
  }
  const SequenceEntry& s = work.table[first];
  Tile t;
  t.n = s.n;
  const int tiles = (t.n + kRows - 1) / kRows;
  const int local = index - first_tile(s);
  const int head = local / tiles;
  const int place = local - head * tiles;
  t.first_row = s.first_row;
  t.targets = s.targets;
  t.head = head;
  t.begin = (order == Order::kFirstTileFirst ? place : tiles - 1 - place) * kRows;
  t.spill = s.first_spill + head * s.spill;
  return t;
}

/// Warp 1 of the fetching warpgroup: takes tiles from the common counter until there are none.
/// steps_of(tile) says which steps a tile has.
template <int kRows, class StepsOf>
__device__ void pick_tiles(TileQueue& queue, const WorkList& work, Order order,
                           StepsOf&& steps_of) {
  const int lane = threadIdx.x & 31;
  RingPosition<kTileSlots> at;
  for (;;) {
    int index = 0;
    if (lane == 0) index = atomicAdd(work.counter, 1);
    index = __shfl_sync(~0u, index, 0);
    const bool more = index < work.tiles;
    Tile t;
    Steps steps;
    t.head = -1;
    if (more) {
      t = find_tile<kRows>(work, index, order);
      steps = steps_of(t);
      t.count = steps.count();
    }
    barrier_wait(&queue.empty[at.stage], at.parity ^ 1);
    if (lane == 0) {
      queue.tiles[at.stage] = t;
      queue.steps[at.stage] = steps;
      barrier_arrive(&queue.full[at.stage]);
    }
    __syncwarp();
    at.advance();
    if (!more) return;
  }
}

/// Whether rows [first, last) see exactly what is not after them.
__device__ inline bool is_causal(const KernelMask& mask, const Tile& t,
                                 const KernelMask::Rows& seen, int first, int last) {
  const int history_end = t.n - t.targets;
  return first >= mask.contextual_len && history_end >= mask.contextual_len && seen.max_lo == 0 &&
         last <= history_end + mask.target_group;
}

/// How 64 queries see a block of keys. kHalf: nothing of its second half.
enum View : uint32_t { kNone = 0, kHalf = 1, kSome = 2, kAll = 3 };

/// What the fetching warp tells the consumers (at most 4) about a step: the block, and for each
/// consumer its view and whether its mask is the plain causal one.
struct StepWord {
  uint32_t bits;

  /// By a whole warp, in which lane c speaks for consumer c.
  __device__ static StepWord gather(int block, View view, bool causal, int consumers) {
    const bool speaks = static_cast<int>(threadIdx.x & 31) < consumers;
    const uint32_t low = __ballot_sync(~0u, speaks && (view & 1) != 0);
    const uint32_t high = __ballot_sync(~0u, speaks && (view & 2) != 0);
    const uint32_t plain = __ballot_sync(~0u, speaks && causal);
    return {static_cast<uint32_t>(block) << 12 | plain << 8 | high << 4 | low};
  }
  __device__ int block() const { return static_cast<int>(bits >> 12); }
  __device__ bool causal(int consumer) const { return (bits >> (8 + consumer) & 1) != 0; }
  __device__ View view(int consumer) const {
    return static_cast<View>((bits >> consumer & 1) | (bits >> (4 + consumer) & 1) << 1);
  }
};

/// The 64 rows of one consumer in a tile of queries.
struct RowView {
  int first, last;  // empty: first >= last
  KernelMask::Rows seen;
  bool causal;

  __device__ RowView(const KernelMask& mask, const Tile& t, int consumer) {
    first = t.begin + 64 * consumer;
    last = min(first + 64, t.n);
    if (first < last) {
      seen = mask.rows(first, last, t.n, t.targets);
      causal = is_causal(mask, t, seen, first, last);
    }
  }
  __device__ View of(int begin, int keys) const {
    if (first >= last || seen.none_sees(begin, begin + keys, last)) return kNone;
    if (seen.all_see(begin, begin + keys)) return kAll;
    return seen.none_sees(begin + keys / 2, begin + keys, last) ? kHalf : kSome;
  }
};

/// Which of the 64 x kColumns elements of an accumulator stay, for rows = queries: calls
/// hide(index) for every hidden one. `row` is the first of the 64 queries in the tile, `column` the
/// first key in the sequence.
template <int kColumns, class Hide>
__device__ inline void mask_rows(const KernelMask& mask, const Tile& t, bool causal, int row,
                                 int column, Hide&& hide) {
  const int lane = threadIdx.x & 31;
  const int base = column + 2 * (lane & 3);
  const int first = t.begin + row + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
  if (causal) {
#pragma unroll
    for (int at = 0; at < kColumns / 2; ++at) {
      const int self = first + (at & 2) * 4 - base;
      if (at / 4 * 8 + (at & 1) > self) hide(at);
    }
    return;
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int i = first + half * 8;
    const KernelMask::Row r = mask.row(i, t.n, t.targets);
    const int lo = r.lo - base;
    const int hi = r.hi - base;
    const int own = r.group_lo - base;
    const int self = i - base;
#pragma unroll
    for (int g = 0; g < kColumns / 8; ++g) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int c = 8 * g + e;
        const bool keep = (c >= lo && c < hi) || (c >= own && c <= self);
        if (!keep) hide(4 * g + 2 * half + e);
      }
    }
  }
}

/// For rows = keys and columns = queries: bit e of word w says that element 32 w + e stays.
template <int kColumns>
__device__ inline void keep_bits(uint32_t (&bits)[kColumns / 64], const KernelMask& mask,
                                 const Tile& t, int key, int query) {
  const int lane = threadIdx.x & 31;
  const int first_key = key + (threadIdx.x >> 5 & 3) * 16 + (lane >> 2);
#pragma unroll
  for (uint32_t& b : bits) b = 0;
#pragma unroll
  for (int g = 0; g < kColumns / 8; ++g) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int i = query + 2 * (lane & 3) + 8 * g + e;
      const KernelMask::Row r = mask.row(i, t.n, t.targets);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int at = 4 * g + 2 * half + e;
        const bool keep = i < t.n && r.sees(i, first_key + 8 * half);
        bits[at / 32] |= (keep ? 1u : 0u) << (at % 32);
      }
    }
  }
}

/// How queries [query, query + queries) see 64 keys from `key` on: kNone, kSome or kAll.
__device__ inline View view_of(const KernelMask& mask, const Tile& t, int query, int queries,
                               int key) {
  const int end = min(query + queries, t.n);
  if (key >= t.n) return kNone;
  const KernelMask::Rows r = mask.rows(query, end, t.n, t.targets);
  if (r.none_sees(key, key + 64, end)) return kNone;
  return query + queries <= t.n && r.all_see(key, key + 64) ? kAll : kSome;
}

#endif  // SEGUE_SM90A

}  // namespace segue::attention::hopper
