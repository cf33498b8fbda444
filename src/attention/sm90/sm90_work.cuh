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

/// Up to three runs of blocks, ascending and disjoint.
struct Steps {
  int begin[3] = {0, 0, 0};
  int end[3] = {0, 0, 0};

  __device__ int count() const {
    return end[0] - begin[0] + (end[1] - begin[1]) + (end[2] - begin[2]);
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
  int all_begin, all_end;  // steps of a tile of queries, last block first, that all rows see whole
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
  steps.add(0, 0, r.min_lo > 0 ? r.prefix : 0, block);
  steps.add(1, r.min_lo, r.max_hi, block);
  steps.add(2, r.own_lo, last, block);
  return steps;
}

/// Fills in all_begin and all_end; blocks of a global prefix are not among them.
__device__ inline void find_full_steps(const KernelMask& mask, Tile& t, const Steps& steps,
                                       int rows, int block) {
  t.all_begin = t.all_end = 0;
  if (t.begin + rows - 64 >= t.n) return;  // the last consumer has no rows
  const KernelMask::Rows r = mask.rows(t.begin, min(t.begin + rows, t.n), t.n, t.targets);
  const int first = max((r.max_lo + block - 1) / block, steps.begin[1]);
  const int end = min(r.min_hi / block, steps.end[1]);
  if (first >= end) return;
  const int later = steps.end[2] - steps.begin[2];
  t.all_begin = later + steps.end[1] - end;
  t.all_end = later + steps.end[1] - first;
}

/// Blocks of `block` queries that see some key of the tile.
__device__ inline Steps query_steps(const KernelMask& mask, const Tile& t, int keys, int block) {
  const KernelMask::SeeingRows s =
      mask.rows_that_see(t.begin, min(t.begin + keys, t.n), t.n, t.targets);
  Steps steps;
  steps.add(0, 0, s.context_end, block);
  steps.add(1, s.near, s.near_end, block);
  steps.add(2, s.far, t.n, block);
  return steps;
}

/// Tiles on their way from the picking warp to everybody else. They are picked late and few at a
/// time: what waits here is work that no idle block can have, and tiles next to each other in the
/// list read the same rows, which then are in the cache if all of them start at about one time.
template <int kSlots>
struct TileQueue {
  using Position = RingPosition<kSlots>;
  Tile tiles[kSlots];
  Steps steps[kSlots];
  uint64_t full[kSlots];
  uint64_t empty[kSlots];
  static constexpr int kSumPlaces = 2 * kSlots;
  uint32_t sum_rows[kSumPlaces];

  /// `readers`: warps that take tiles and release them.
  __device__ void init(int readers) {
    for (int i = 0; i < kSlots; ++i) {
      barrier_init(&full[i], 1);
      barrier_init(&empty[i], 32 * readers);
    }
  }
  /// By a whole warp: waits for a tile, which stays until it is released.
  __device__ const Tile& wait(const Position& at) {
    barrier_wait(&full[at.stage], at.parity);
    return tiles[at.stage];
  }
  /// By a whole warp; every lane says itself that it has read, a form that racecheck can follow.
  __device__ void release(int slot) {
    __syncwarp();
    barrier_arrive(&empty[slot]);
  }
  /// Waits for a tile and copies it; its slot is the caller's to release.
  __device__ Tile take(const Position& at, Steps* steps_out = nullptr) {
    barrier_wait(&full[at.stage], at.parity);
    // A value from lane 0 is one that the compiler knows to be the same in all lanes; without it
    // every branch on a tile would look divergent, and products in it would be serialised.
    const auto uniform = [](int x) { return __shfl_sync(~0u, x, 0); };
    const Tile& tile = tiles[at.stage];
    const Tile copy{uniform(tile.first_row), uniform(tile.n),     uniform(tile.targets),
                    uniform(tile.head),      uniform(tile.begin), uniform(tile.count),
                    uniform(tile.spill)};  // what follows is read where it is needed
    if (steps_out != nullptr) *steps_out = steps[at.stage];
    return copy;
  }
  /// Takes a tile and releases it.
  __device__ Tile pop(Position& at, Steps* steps_out = nullptr) {
    const Tile copy = take(at, steps_out);
    release(at.stage);
    at.advance();
    return copy;
  }
  /// The sum row of the first rows of the tile that was popped last, by a whole warp. It outlives
  /// the tile's slot, so that no register has to keep it for the end: it is overwritten by the tile
  /// that is 2 kSlots further, which comes when that warp has popped the one kSlots further.
  __device__ int sum_row(const Position& at) const {
    return static_cast<int>(load_uniform(&sum_rows[(sum_place(at) + kSumPlaces - 1) % kSumPlaces]));
  }
  __device__ static int sum_place(const Position& at) { return at.stage + kSlots * at.parity; }
};

/// In which order the tiles of a head come, the longest first: keys from the first one on; queries
/// from the last one on, and before these, where there is context, the tile that holds it.
enum class Order { kKeys, kQueries, kContextAndQueries };
__device__ inline Order query_order(const KernelMask& mask) {
  return mask.contextual_len > 0 ? Order::kContextAndQueries : Order::kQueries;
}
/// Which of `tiles` comes in such a place.
__device__ inline int tile_in_place(Order order, int place, int tiles) {
  if (order == Order::kKeys || (order == Order::kContextAndQueries && place == 0)) return place;
  return tiles - (order == Order::kQueries ? 1 : 0) - place;
}

/// Finds tile `index` among the sequences of `entries` and the sum row of its first rows: a search
/// with 32 probes at a time, by a whole warp.
template <int kRows, class Entries>
__device__ inline Tile find_tile(const WorkList& work, const Entries& entries, int index,
                                 Order order, int& sum_row) {
  const auto first_tile = [&](const SequenceEntry& s) {
    return work.queries ? s.first_query_tile : s.first_key_tile;
  };
  const int lane = threadIdx.x & 31;
  const bool in_tail = index >= work.tail_tile;
  int first = 0, head = 0, place = 0;
  if (in_tail) {
    const int heads = work.tail * work.heads, local = index - work.tail_tile;
    place = local / heads;
    const int which = local - place * heads;
    first = work.sequences - work.tail + which / work.heads;
    head = which % work.heads;
  }
  int count = in_tail ? 1 : work.sequences - work.tail;
  while (count > 1) {
    const int step = (count + 31) / 32;
    const int probe = first + lane * step;
    const bool before = lane * step < count && first_tile(entries[probe]) <= index;
    const int hits = __popc(__ballot_sync(~0u, before));
    const int end = first + count;
    first += (hits - 1) * step;
    count = min(step, end - first);
  }
  const SequenceEntry& s = entries[first];
  Tile t;
  t.n = s.n;
  const int tiles = (t.n + kRows - 1) / kRows;
  if (!in_tail) {
    const int local = index - first_tile(s);
    head = local / tiles;
    place = local - head * tiles;
  }
  t.first_row = s.first_row;
  t.targets = s.targets;
  t.head = head;
  t.begin = tile_in_place(order, place, tiles) * kRows;
  t.spill = s.first_spill + head * s.spill;
  sum_row = s.sum_row + t.begin / kSummedRows;
  return t;
}

/// The tile that this block takes in its `round`, by a whole warp.
__device__ inline int next_tile(const WorkList& work, int round) {
  const int own = static_cast<int>(blockIdx.x), blocks = static_cast<int>(gridDim.x);
  if (round == 0 || work.counter == nullptr) return own + round * blocks;
  int taken = 0;
  if ((threadIdx.x & 31) == 0) taken = atomicAdd(work.counter, 1);
  return blocks + __shfl_sync(~0u, taken, 0);
}

/// Warp 1 of the fetching warpgroup: takes tiles until there are none. steps_of(tile) says which
/// steps a tile has.
template <int kRows, int kSlots, class StepsOf>
__device__ void pick_tiles(TileQueue<kSlots>& queue, const WorkList& work, const FewSequences& few,
                           Order order, StepsOf&& steps_of) {
  const int lane = threadIdx.x & 31;
  RingPosition<kSlots> at;
  for (int round = 0;; ++round) {
    const int index = next_tile(work, round);
    const bool more = index < work.tiles;
    Tile t;
    Steps steps;
    t.head = -1;
    int sum_row = 0;
    if (more) {
      t = work.table != nullptr ? find_tile<kRows>(work, work.table, index, order, sum_row)
                                : find_tile<kRows>(work, few.entries, index, order, sum_row);
      steps = steps_of(t);  // and may complete the tile
      t.count = steps.count();
    }
    barrier_wait(&queue.empty[at.stage], at.parity ^ 1);
    if (lane == 0) {
      queue.tiles[at.stage] = t;
      queue.steps[at.stage] = steps;
      queue.sum_rows[TileQueue<kSlots>::sum_place(at)] = static_cast<uint32_t>(sum_row);
      barrier_arrive(&queue.full[at.stage]);
    }
    __syncwarp();
    at.advance();
    if (!more) return;
  }
}

/// How 64 queries see a block of keys. kHalf: nothing of its second half.
enum View : uint32_t { kNone = 0, kHalf = 1, kSome = 2, kAll = 3 };

/// Whether rows [first, last), which see `seen` together, each see exactly what is not after them.
__device__ inline bool is_causal(const KernelMask& mask, const Tile& t,
                                 const KernelMask::Rows& seen, int first, int last) {
  const int history_end = t.n - t.targets;
  return first >= mask.contextual_len && history_end >= mask.contextual_len && seen.max_lo == 0 &&
         last <= history_end + mask.target_group;
}

/// What the fetching warp tells the consumers (at most 4) about a step: the block, and for each
/// consumer its view and whether its rows are simply causal.
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
  /// When all consumers see all of it.
  __device__ static StepWord all(int block) { return {static_cast<uint32_t>(block) << 12 | 0xff}; }
  /// By the whole warp of a consumer.
  __device__ static StepWord read(const StepWord& from) { return {load_uniform(&from.bits)}; }
  __device__ int block() const { return static_cast<int>(bits >> 12); }
  __device__ bool causal(int consumer) const { return (bits >> (8 + consumer) & 1) != 0; }
  __device__ View view(int consumer) const {
    return static_cast<View>((bits >> consumer & 1) | (bits >> (4 + consumer) & 1) << 1);
  }
};

/// The rows of a tile of queries as a fetching warp sees them: lane c those of consumer c.
struct RowViews {
  int first, last;  // empty: first >= last
  KernelMask::Rows seen;
  bool causal = false;
  int all_from = 0, all_to = INT32_MAX;  // keys that all rows of all consumers see

  template <int kConsumers>
  __device__ void set(const KernelMask& mask, const Tile& t) {
    const int lane = threadIdx.x & 31;
    first = t.begin + 64 * lane;
    last = min(first + 64, t.n);
    if (lane < kConsumers) {
      all_to = 0;
      if (first < last) {
        seen = mask.rows(first, last, t.n, t.targets);
        causal = is_causal(mask, t, seen, first, last);
        all_from = seen.max_lo;
        all_to = seen.min_hi;
      }
    }
    all_from = __reduce_max_sync(~0u, all_from);
    all_to = __reduce_min_sync(~0u, all_to);
  }
  __device__ View of(int begin, int keys) const {
    if (first >= last || seen.none_sees(begin, begin + keys, last)) return kNone;
    if (seen.all_see(begin, begin + keys)) return kAll;
    return seen.none_sees(begin + keys / 2, begin + keys, last) ? kHalf : kSome;
  }
  /// By the whole warp. Nearly all steps take the short way.
  template <int kConsumers>
  __device__ StepWord word(int block, int keys) const {
    const int begin = block * keys;
    if (begin >= all_from && begin + keys <= all_to) return StepWord::all(block);
    return StepWord::gather(block, of(begin, keys), causal, kConsumers);
  }
};

/// The steps of a tile, last or first one first.
template <class Body>
__device__ inline void for_each_step_down(const Steps& steps, Body&& body) {
#pragma unroll
  for (int run = 2; run >= 0; --run) {
    for (int block = steps.end[run] - 1; block >= steps.begin[run]; --block) body(block);
  }
}
template <class Body>
__device__ inline void for_each_step_up(const Steps& steps, Body&& body) {
#pragma unroll
  for (int run = 0; run < 3; ++run) {
    for (int block = steps.begin[run]; block < steps.end[run]; ++block) body(block);
  }
}

/// Bits [begin, end) of a word, whatever the two are.
__device__ inline uint32_t bit_range(int begin, int end) {
  const uint32_t below_end = end >= 32 ? ~0u : (1u << max(end, 0)) - 1;
  const uint32_t below_begin = begin >= 32 ? ~0u : (1u << max(begin, 0)) - 1;
  return below_end & ~below_begin;
}

/// Which elements of this thread's part of a 64 x kColumns accumulator stay: of the two rows it has
/// (`half`), columns 8 g + e, counted from its first one.
template <int kColumns>
struct KeepBits {
  uint32_t words[2][kColumns / 32];

  __device__ bool keeps(int at) const {  // index into the accumulator
    const int bit = at / 4 * 8 + (at & 1);
    return (words[at >> 1 & 1][bit / 32] >> (bit % 32) & 1) != 0;
  }
  __device__ static int first_column() { return 2 * static_cast<int>(threadIdx.x & 3); }
  __device__ static int row(int half) {
    return static_cast<int>(threadIdx.x >> 5 & 3) * 16 + half * 8 +
           static_cast<int>(threadIdx.x >> 2 & 7);
  }
  __device__ void clear() {
#pragma unroll
    for (auto& half : words) {
#pragma unroll
      for (uint32_t& w : half) w = 0;
    }
  }
  __device__ void add(int half, int begin, int end) {
#pragma unroll
    for (int w = 0; w < kColumns / 32; ++w) {
      words[half][w] |= bit_range(begin - 32 * w, end - 32 * w);
    }
  }

  /// Rows are queries from `query` on, columns keys from `key` on.
  __device__ void set_queries(const KernelMask& mask, const Tile& t, int query, int key) {
    clear();
    const int base = key + first_column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int i = query + row(half);
      const KernelMask::Row r = mask.row(i, t.n, t.targets);
      add(half, 0 - base, r.prefix - base);
      add(half, r.lo - base, r.hi - base);
      add(half, r.group_lo - base, i + 1 - base);
    }
  }
  /// Rows are keys from `key` on, columns queries from `query` on.
  __device__ void set_keys(const KernelMask& mask, const Tile& t, int key, int query) {
    clear();
    const int base = query + first_column();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int j = key + row(half);
      if (j >= t.n) continue;
      const KernelMask::SeeingRows s = mask.rows_that_see(j, j + 1, t.n, t.targets);
      add(half, 0 - base, s.context_end - base);
      add(half, s.near - base, s.near_end - base);
      add(half, s.far - base, t.n - base);
    }
  }
};

/// The keys of a tile as a fetching warp sees them: lane c those of consumer c. What is neither
/// surely hidden nor surely seen counts as kSome.
struct KeyViews {
  int key;
  int all_from, all_to;  // queries that see all keys of all consumers

  __device__ KeyViews(const KernelMask& mask, const Tile& t, int keys) {
    const int history_end = t.n - t.targets;
    key = t.begin + 64 * static_cast<int>(threadIdx.x & 31);
    all_from = max(t.begin + keys, mask.contextual_len);
    const bool always = mask.window == 0 || t.begin + keys <= mask.global_prefix;
    all_to = always ? t.n : min(history_end, t.begin + mask.window + 1);
    if (t.begin + keys > history_end || mask.contextual_len > history_end) all_to = 0;
  }
  /// By the whole warp.
  template <int kConsumers>
  __device__ StepWord word(const KernelMask& mask, const Tile& t, int block, int queries) const {
    const int query = block * queries;
    if (query >= all_from && query + queries <= all_to) return StepWord::all(block);
    const bool before = query + queries <= key && query >= mask.contextual_len;
    return StepWord::gather(block, key >= t.n || before ? kNone : kSome, false, kConsumers);
  }
};

}  // namespace segue::attention::hopper
