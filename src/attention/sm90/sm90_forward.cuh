#pragma once

#include <cstdint>

#include "attention/sm90/sm90_work.cuh"

/// What the forward kernels share: shapes, memory, the warps that fetch, and the arithmetic of
/// scores. Letters as in sm90_forward.cu.
namespace segue::attention::hopper {

/// Tile choices.
template <int kHeadDim>
struct ForwardShape;
template <>
struct ForwardShape<128> {
  static constexpr int kConsumers = 2, kKeys = 128, kKeyStages = 3, kValueStages = 2;
  static constexpr int kFetchRegisters = 56, kComputeRegisters = 224;
  static constexpr bool kTurns = true;
};
template <>
struct ForwardShape<64> {
  static constexpr int kConsumers = 2, kKeys = 128, kKeyStages = 4, kValueStages = 4;
  static constexpr int kFetchRegisters = 56, kComputeRegisters = 224;
  static constexpr bool kTurns = true;
};

/// Heads of 256: the results of 64 queries take half of all registers, so queries stay in shared
/// memory and blocks of keys are small.
template <>
struct ForwardShape<256> {
  static constexpr int kConsumers = 2, kKeys = 64, kKeyStages = 2, kValueStages = 2;
  static constexpr int kFetchRegisters = 40, kComputeRegisters = 232;
  static constexpr bool kTurns = true;
};

/// Where the next tile is picked with kPickAhead steps of a tile left to fetch. Short tiles need
/// several at hand.
template <bool kHalves>
struct Picking {
  static constexpr int kSlots = kHalves ? 2 : 3;
  static constexpr int kPickAhead = kHalves ? 1 : INT32_MAX;
};

struct ForwardArgs {
  WorkList work;
  KernelMask mask;
  void* o;
  int64_t row_stride, head_stride;
  int columns;  // of a head
  float half_alpha, scale;
};

template <class T, int kHeadDim, bool kHalves>
struct ForwardShared {
  using Shape = ForwardShape<kHeadDim>;
  static constexpr int kQueries = 64 * Shape::kConsumers;
  T q[Shape::kConsumers][64 * kHeadDim];
  T k[Shape::kKeyStages][Shape::kKeys * kHeadDim];
  T v[Shape::kValueStages][Shape::kKeys * kHeadDim];
  // On its way out: all of it, or a panel at a time where there is no room.
  T o[Shape::kConsumers][64 * (kHeadDim == 256 ? kPanelColumns : kHeadDim)];
  StepWord word[Shape::kKeyStages];
  TileQueue<Picking<kHalves>::kSlots> queue;
  uint64_t q_full[Shape::kConsumers], q_empty[Shape::kConsumers];
  uint64_t k_full[Shape::kKeyStages], k_empty[Shape::kKeyStages];
  uint64_t v_full[Shape::kValueStages], v_empty[Shape::kValueStages];
};

/// Queries, keys and what there is to say about them.
template <class T, int kHeadDim, bool kHalves>
__device__ void fetch_keys(ForwardShared<T, kHeadDim, kHalves>& sh, const KernelMask& mask,
                           const CUtensorMap& q_map, const CUtensorMap& k_map) {
  using Shape = ForwardShape<kHeadDim>;
  constexpr int kPickAhead = Picking<kHalves>::kPickAhead;
  const int lane = threadIdx.x & 31;
  typename decltype(sh.queue)::Position at_tile;
  RingPosition<Shape::kKeyStages> at;
  int q_parity = 1;
  int before = -1;  // slot of the tile before: released when it is time to pick the next one
  for (;;) {
    Steps steps;
    const Tile t = sh.queue.take(at_tile, &steps);
    if (t.head < 0) break;
    int left = t.count;
    if (before >= 0 && left <= kPickAhead) sh.queue.release(before);
    RowViews rows;
    rows.set<Shape::kConsumers>(mask, t);
    if (lane == 0) {
      for (int w = 0; w < Shape::kConsumers; ++w) {
        barrier_wait(&sh.q_empty[w], q_parity);
        barrier_expect(&sh.q_full[w], sizeof(sh.q[w]));
        load_tile<64>(sh.q[w], &q_map, &sh.q_full[w], t.first_row + t.begin + 64 * w, t.head);
      }
    }
    __syncwarp();
    q_parity ^= 1;
    for_each_step_down(steps, [&](int block) {
      const StepWord word = rows.word<Shape::kConsumers>(block, Shape::kKeys);
      if (lane == 0) {
        const int row = t.first_row + block * Shape::kKeys;
        barrier_wait(&sh.k_empty[at.stage], at.parity ^ 1);
        sh.word[at.stage] = word;
        barrier_expect(&sh.k_full[at.stage], sizeof(sh.k[0]));
        load_tile<Shape::kKeys>(sh.k[at.stage], &k_map, &sh.k_full[at.stage], row, t.head);
      }
      __syncwarp();
      at.advance();
      if (--left == kPickAhead && before >= 0) sh.queue.release(before);
    });
    before = at_tile.stage;
    at_tile.advance();
  }
}

/// Values, by a warp of their own: keys must not wait until there is room for values.
template <class T, int kHeadDim, bool kHalves>
__device__ void fetch_values(ForwardShared<T, kHeadDim, kHalves>& sh, const CUtensorMap& v_map) {
  using Shape = ForwardShape<kHeadDim>;
  typename decltype(sh.queue)::Position at_tile;
  RingPosition<Shape::kValueStages> at;
  for (;;) {
    Steps steps;
    const Tile t = sh.queue.pop(at_tile, &steps);
    if (t.head < 0) break;
    for_each_step_down(steps, [&](int block) {
      if ((threadIdx.x & 31) == 0) {
        barrier_wait(&sh.v_empty[at.stage], at.parity ^ 1);
        barrier_expect(&sh.v_full[at.stage], sizeof(sh.v[0]));
        load_tile<Shape::kKeys>(sh.v[at.stage], &v_map, &sh.v_full[at.stage],
                                t.first_row + block * Shape::kKeys, t.head);
      }
      __syncwarp();
      at.advance();
    });
  }
}

/// silu(x) = y + y tanh(y) with y = x / 2.
template <int kCount>
__device__ inline void silu(float (&s)[kCount], float half_alpha) {
#pragma unroll
  for (float& x : s) {
    const float y = half_alpha * x;
    x = fmaf(y, tanh_fast(y), y);
  }
}

/// Zeros where a query may not look, in scores of this consumer's 64 queries and the first
/// 2 kCount keys of a block of kKeys.
template <int kKeys, int kCount>
__device__ inline void hide(float (&s)[kCount], const KernelMask& mask, const Tile& tile,
                            StepWord word, int consumer) {
  const int query = tile.begin + 64 * consumer;
  const int key = word.block() * kKeys;
  if (word.causal(consumer)) {
    const int self = query + KeepBits<64>::row(0) - key - KeepBits<64>::first_column();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      s[i] = i / 4 * 8 + (i & 1) <= self + (i & 2) * 4 ? s[i] : 0;
    }
  } else {
    KeepBits<2 * kCount> keep;
    keep.set_queries(mask, tile, query, key);
#pragma unroll
    for (int i = 0; i < kCount; ++i) s[i] = keep.keeps(i) ? s[i] : 0;
  }
}

}  // namespace segue::attention::hopper
