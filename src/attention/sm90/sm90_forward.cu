#include <algorithm>

#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/sm90/sm90_forward.cuh"
#include "attention/sm90/sm90_forward_wide.cuh"
#include "attention/sm90/sm90_kernels.h"
#include "attention/sm90/sm90_store.cuh"

// o = scale * (mask silu(alpha q k^T)) v on Hopper.
// Letters: q, k, v, o as in the contract; s scores, p = silu of them, both 64 queries x kKeys keys.
// `scale` waits for the end.

namespace segue::attention::hopper {
namespace {

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};

/// kHalves: blocks of which the second half is hidden are computed by half.
/// One stream of key blocks over all tiles: the product with v of a block, and the output of a
/// tile, come while the scores of the next block are computed, whichever tile that is of.
/// kSlices: scores are sums over so many slices of 16 columns; in others a head has zeros.
template <class T, int kHeadDim, bool kHalves, int kSlices>
__device__ void compute(ForwardShared<T, kHeadDim, kHalves>& sh, const ForwardArgs& args,
                        const CUtensorMap& o_map, int consumer) {
  using Shape = ForwardShape<kHeadDim>;
  constexpr int kKeys = Shape::kKeys;
  constexpr int kTurnThreads = 2 * kWarpgroup;
  const bool leader = (threadIdx.x & 31) == 0;
  typename decltype(sh.queue)::Position at_tile;
  RingPosition<Shape::kKeyStages> at;
  RingPosition<Shape::kValueStages> at_v;  // of the oldest block not yet multiplied by v
  int q_parity = 0;
  bool pending = false;       // there is such a block
  bool pending_half = false;  // and only its first half counts
  int done = -1;              // slot of the tile whose o is complete with that block
  bool o_begun = false;       // o holds a sum; else whatever it holds does not count
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();  // what other lanes read is read
    if (leader) barrier_arrive(barrier);
  };
  const auto take_turn = [&] {
    if constexpr (Shape::kTurns) named_sync(1 + consumer, kTurnThreads);
  };
  const auto pass_turn = [&] {
    if constexpr (Shape::kTurns) named_arrive(2 - consumer, kTurnThreads);
  };
  if (Shape::kTurns && consumer == 1) named_arrive(1, kTurnThreads);

  uint32_t q[kSlices][4];
  uint32_t p[kKeys / 16][4];
  float o[kHeadDim / 2];
#pragma unroll
  for (float& x : o) x = 0;  // for the compiler
  const auto write_out = [&] {
    const Tile& t = sh.queue.tiles[done];
    const int first = t.begin + 64 * consumer;
    T* to = static_cast<T*>(args.o) + (t.first_row + first) * args.row_stride +
            t.head * args.head_stride;
    store_rows_later(o, args.scale, sh.o[consumer], &o_map, t.first_row + first, t.head, to,
                     args.row_stride, t.n - first, args.columns);
    sh.queue.release(done);
    done = -1;
    o_begun = false;
  };
  // o = or += p v of the pending block, p as far as it counts.
  const auto multiply_values = [&](const auto& p_seen) {
    barrier_wait(&sh.v_full[at_v.stage], at_v.parity);
    products_begin();
    multiply<T, sizeof(p_seen) / sizeof(p_seen[0])>(o, p_seen, DownRows<kKeys>(sh.v[at_v.stage]),
                                                    o_begun);
    products_commit();
    o_begun = true;
  };
  // The pending block and, there being no other reason to flush, the output that it completes.
  const auto flush = [&] {
    multiply_values(p);
    products_wait<0>();
    pin(o);
    release(&sh.v_empty[at_v.stage]);
    at_v.advance();
    pending = false;
    write_out();
  };

  for (;;) {
    const Tile& t = sh.queue.wait(at_tile);
    const int head = __shfl_sync(~0u, t.head, 0);
    const int count = __shfl_sync(~0u, t.count, 0);
    const int all_begin = __shfl_sync(~0u, t.all_begin, 0);
    const int all_end = __shfl_sync(~0u, t.all_end, 0);
    if (head < 0) break;
    barrier_wait(&sh.q_full[consumer], q_parity);
    q_parity ^= 1;
    load_fragment(q, sh.q[consumer]);
    barrier_wait(&sh.k_full[at.stage], at.parity);
    StepWord next_word = StepWord::read(sh.word[at.stage]);
    for (int left = count; left > 0; --left) {
      if (pending && !pending_half && done < 0 && count - left >= all_begin &&
          count - left < all_end) {
        // Nearly all blocks of long sequences: nothing to ask, nothing to decide.
        int run = all_end - (count - left);
        left -= run - 1;
        do {
          float s[kKeys / 2];
          barrier_wait(&sh.k_full[at.stage], at.parity);
          take_turn();
          products_begin();
          multiply<T, kSlices, false>(s, q, AlongRows<kKeys>(sh.k[at.stage]));
          products_commit();
          multiply_values(p);
          pass_turn();
          products_wait<1>();
          pin(s);
          release(&sh.k_empty[at.stage]);
          at.advance();
          silu(s, args.half_alpha);
          if constexpr (kHeadDim == 128) settle(s);  // else silu takes longer than the products
          products_wait<0>();
          pin(o);
          release(&sh.v_empty[at_v.stage]);
          at_v.advance();
          to_fragment<T>(p, s);
        } while (--run > 0);
        if (left > 1) {
          barrier_wait(&sh.k_full[at.stage], at.parity);
          next_word = StepWord::read(sh.word[at.stage]);
        }
        continue;
      }
      const StepWord word = next_word;
      const View view = word.view(consumer);
      RingPosition<Shape::kKeyStages> next = at;
      next.advance();
      // The first step of a tile, never one of those above, makes room for the next queries: while
      // its scores are computed, for the fence takes a while.
      const auto free_queries = [&] {
        if (left < count) return;
        fence_async_proxy();
        release(&sh.q_empty[consumer]);
      };
      const auto look_ahead = [&] {
        if (left == 1) return;
        barrier_wait(&sh.k_full[next.stage], next.parity);
        next_word = StepWord::read(sh.word[next.stage]);
      };
      const auto activate = [&](auto& s, bool masked) {
        if (masked) hide<kKeys>(s, args.mask, sh.queue.tiles[at_tile.stage], word, consumer);
        silu(s, args.half_alpha);
      };
      // Scores of this block, half or whole, beside the product with v of the block before.
      const auto step = [&](auto columns, auto columns_before, bool masked) {
        constexpr int kColumns = decltype(columns)::value;
        constexpr int kSlicesBefore = decltype(columns_before)::value / 16;
        float s[kColumns / 2];
        take_turn();
        products_begin();
        multiply<T, kSlices, false>(s, q, AlongRows<kKeys>(sh.k[at.stage]));
        products_commit();
        multiply_values(reinterpret_cast<uint32_t(&)[kSlicesBefore][4]>(p));
        pass_turn();
        free_queries();
        products_wait<1>();
        pin(s);
        release(&sh.k_empty[at.stage]);
        activate(s, masked);
        if constexpr (kHeadDim == 128) settle(s);
        look_ahead();
        products_wait<0>();
        pin(o);
        release(&sh.v_empty[at_v.stage]);
        at_v.advance();
        to_fragment<T>(reinterpret_cast<uint32_t(&)[kColumns / 16][4]>(p), s);
        if (done >= 0) write_out();
      };
      // A block that is hidden between visible ones (rare) is computed, all of it masked: then a
      // tile with rows always ends with a pending block.
      if (view == kNone && (!pending || done >= 0)) {
        if (pending) flush();
        take_turn();
        pass_turn();
        free_queries();
        release(&sh.k_empty[at.stage]);
        barrier_wait(&sh.v_full[at_v.stage], at_v.parity);
        release(&sh.v_empty[at_v.stage]);
        at_v.advance();
        look_ahead();
        at = next;
        continue;
      }
      if (!pending) {
        float s[kKeys / 2];
        take_turn();
        products_begin();
        multiply<T, kSlices, false>(s, q, AlongRows<kKeys>(sh.k[at.stage]));
        products_commit();
        pass_turn();
        free_queries();
        products_wait<0>();
        pin(s);
        release(&sh.k_empty[at.stage]);
        activate(s, true);
        to_fragment<T>(p, s);
        look_ahead();
      } else if (kHalves && view == kHalf) {
        step(Constant<kKeys / 2>(), Constant<kKeys>(), true);
#pragma unroll
        for (int k = kKeys / 32; k < kKeys / 16; ++k) p[k][0] = p[k][1] = p[k][2] = p[k][3] = 0;
      } else if (kHalves && pending_half) {
        step(Constant<kKeys>(), Constant<kKeys / 2>(), view != kAll);
      } else {
        step(Constant<kKeys>(), Constant<kKeys>(), view != kAll);
      }
      at = next;
      pending = true;
      pending_half = kHalves && view == kHalf;
    }
    const bool has_rows = __shfl_sync(~0u, t.begin + 64 * consumer < t.n, 0);
    if (has_rows) {
      done = at_tile.stage;
    } else {
      sh.queue.release(at_tile.stage);
    }
    at_tile.advance();
  }
  if (pending) flush();
  stores_wait();
}

template <class T, int kHeadDim, bool kHalves, int kSlices>
__global__ void __launch_bounds__((ForwardShape<kHeadDim>::kConsumers + 1) * kWarpgroup, 1)
    forward_kernel(const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map,
                   const __grid_constant__ CUtensorMap o_map, const ForwardArgs args,
                   const __grid_constant__ FewSequences few) {
#if SEGUE_SM90A
  using Shape = ForwardShape<kHeadDim>;
  extern __shared__ uint8_t raw[];
  auto& sh = *reinterpret_cast<ForwardShared<T, kHeadDim, kHalves>*>(tile_aligned(raw));
  if (threadIdx.x == 0) {
    sh.queue.init(2 + 4 * Shape::kConsumers);
    for (int w = 0; w < Shape::kConsumers; ++w) {
      barrier_init(&sh.q_full[w], 1);
      barrier_init(&sh.q_empty[w], 4);
    }
    for (int i = 0; i < Shape::kKeyStages; ++i) {
      barrier_init(&sh.k_full[i], 1);
      barrier_init(&sh.k_empty[i], 4 * Shape::kConsumers);
    }
    for (int i = 0; i < Shape::kValueStages; ++i) {
      barrier_init(&sh.v_full[i], 1);
      barrier_init(&sh.v_empty[i], 4 * Shape::kConsumers);
    }
    barrier_init_done();
    prefetch_map(&q_map);
    prefetch_map(&k_map);
    prefetch_map(&v_map);
    prefetch_map(&o_map);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    registers_lower<Shape::kFetchRegisters>();
    if (threadIdx.x < 32) {
      fetch_keys<T, kHeadDim, kHalves>(sh, args.mask, q_map, k_map);
    } else if (threadIdx.x < 64) {
      fetch_values<T, kHeadDim, kHalves>(sh, v_map);
    } else if (threadIdx.x < 96) {
      pick_tiles<sh.kQueries>(sh.queue, args.work, few, query_order(args.mask), [&](Tile& t) {
        const Steps steps = key_steps(args.mask, t, sh.kQueries, Shape::kKeys);
        find_full_steps(args.mask, t, steps, sh.kQueries, Shape::kKeys);
        return steps;
      });
    }
  } else {
    registers_raise<Shape::kComputeRegisters>();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpgroup), 0);
    if constexpr (kHeadDim == 256) {
      compute_wide<T, kHalves>(sh, args, warpgroup - 1);
    } else {
      compute<T, kHeadDim, kHalves, kSlices>(sh, args, o_map, warpgroup - 1);
    }
  }
#endif
}

/// From here on it pays to compute half of a block where nothing of the other half is seen. Shorter
/// sequences have a border every few steps, and there fewer kinds of steps, hence less code to
/// fetch, are worth more (128 x 1024: 501 against 485 TFLOP/s, 64 x 2048: 594 against 608).
constexpr int64_t kLongSequence = 1536;

int64_t longest(const HstuAttentionParams& p) {
  int64_t n = 0;
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b) {
    n = std::max(n, p.offsets[b + 1] - p.offsets[b]);
  }
  return n;
}

template <class T, int kHeadDim, int kSlices = kHeadDim / 16>
void launch(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  using Shape = ForwardShape<kHeadDim>;
  using Shared = ForwardShared<T, kHeadDim, false>;  // the larger one
  const CudaPlan plan(exec, p);
  SEGUE_ASSERT(plan.tile_rows().keys == Shared::kQueries, "attention: tiles of another kernel");
  const int64_t rows = p.offsets.back();
  const ForwardArgs args{plan.key_tiles(0, 0),
                         kernel_mask(p.mask),
                         o.data,
                         o.stride(0),
                         o.stride(1),
                         static_cast<int>(o.size(2)),
                         static_cast<float>(p.alpha / 2),
                         static_cast<float>(p.scale)};
  constexpr int kBytes = sizeof(Shared) + 1024;
  static_assert(kBytes <= kMaxSharedBytes);
  static_assert(Shape::kFetchRegisters + Shape::kConsumers * Shape::kComputeRegisters <=
                shared_registers(Shape::kConsumers + 1));
  static_assert(!Shape::kTurns || Shape::kConsumers == 2);
  // Results are equal to the bit: what a half block leaves out is a sum of zeros.
  const auto kernel = longest(p) >= kLongSequence ? forward_kernel<T, kHeadDim, true, kSlices>
                                                  : forward_kernel<T, kHeadDim, false, kSlices>;
  launch_persistent(exec, reinterpret_cast<const void*>(kernel), args.work.tiles,
                    (Shape::kConsumers + 1) * kWarpgroup, kBytes, tile_map(p.q, rows, 64),
                    tile_map(p.k, rows, Shape::kKeys), tile_map(p.v, rows, Shape::kKeys),
                    tile_map(o, rows, 16), args, plan.few());
}

}  // namespace

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  dispatch_element(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t columns = p.q.size(2);
    if (is_wide(p)) return launch<T, 256>(exec, p, o);
    if (columns > 96) return launch<T, 128>(exec, p, o);
    if (columns > 64) return launch<T, 128, 96 / 16>(exec, p, o);
    if (columns > 32) return launch<T, 64>(exec, p, o);
    launch<T, 64, 32 / 16>(exec, p, o);
  });
}

}  // namespace segue::attention::hopper
