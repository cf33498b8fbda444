#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/sm90_kernels.h"
#include "attention/sm90_work.cuh"

// o = scale * (mask silu(alpha q k^T)) v on Hopper.
// Letters: q, k, v, o as in the contract; s scores, p = silu of them, both 64 queries x kKeys keys;
// d... nothing here. silu(x) = y + y tanh(y) with y = x / 2, and `scale` waits for the end.

namespace segue::attention::hopper {
namespace {

/// Tile choices.
template <int kHeadDim>
struct ForwardShape;
template <>
struct ForwardShape<128> {
  static constexpr int kConsumers = 2, kKeys = 128, kStages = 2;
  static constexpr int kFetchRegisters = 40, kComputeRegisters = 232;
  static constexpr bool kTurns = true;
};
template <>
struct ForwardShape<64> {
  static constexpr int kConsumers = 2, kKeys = 128, kStages = 4;
  static constexpr int kFetchRegisters = 40, kComputeRegisters = 232;
  static constexpr bool kTurns = true;
};

struct ForwardArgs {
  WorkList work;
  KernelMask mask;
  void* o;
  int64_t row_stride, head_stride;
  float half_alpha, scale;
};

template <class T, int kHeadDim>
struct ForwardShared {
  using Shape = ForwardShape<kHeadDim>;
  static constexpr int kQueries = 64 * Shape::kConsumers;
  T q[Shape::kConsumers][64 * kHeadDim];
  T k[Shape::kStages][Shape::kKeys * kHeadDim];
  T v[Shape::kStages][Shape::kKeys * kHeadDim];
  T o[Shape::kConsumers][64 * kHeadDim];
  int begin[Shape::kStages];  // first key of a stage
  TileQueue queue;
  uint64_t q_full[Shape::kConsumers], q_empty[Shape::kConsumers];
  uint64_t k_full[Shape::kStages], k_empty[Shape::kStages];
  uint64_t v_full[Shape::kStages], v_empty[Shape::kStages];
};

#if SEGUE_SM90A

template <class T, int kHeadDim>
__device__ void fetch(ForwardShared<T, kHeadDim>& sh, const CUtensorMap& q_map,
                      const CUtensorMap& k_map, const CUtensorMap& v_map) {
  using Shape = ForwardShape<kHeadDim>;
  const bool leader = (threadIdx.x & 31) == 0;
  RingPosition<kTileSlots> at_tile;
  RingPosition<Shape::kStages> at;
  int q_parity = 1;
  for (;;) {
    Steps steps;
    const Tile t = sh.queue.pop(at_tile, &steps);
    if (t.head < 0) break;
    if (leader) {
      for (int w = 0; w < Shape::kConsumers; ++w) {
        barrier_wait(&sh.q_empty[w], q_parity);
        barrier_expect(&sh.q_full[w], sizeof(sh.q[w]));
        load_tile(sh.q[w], &q_map, &sh.q_full[w], t.first_row + t.begin + 64 * w, t.head);
      }
      q_parity ^= 1;
      for (int i = t.count - 1; i >= 0; --i) {
        const int begin = steps.at(i) * Shape::kKeys;
        const int row = t.first_row + begin;
        barrier_wait(&sh.k_empty[at.stage], at.parity ^ 1);
        sh.begin[at.stage] = begin;
        barrier_expect(&sh.k_full[at.stage], sizeof(sh.k[0]));
        load_tile(sh.k[at.stage], &k_map, &sh.k_full[at.stage], row, t.head);
        barrier_wait(&sh.v_empty[at.stage], at.parity ^ 1);
        barrier_expect(&sh.v_full[at.stage], sizeof(sh.v[0]));
        load_tile(sh.v[at.stage], &v_map, &sh.v_full[at.stage], row, t.head);
        at.advance();
      }
    }
    __syncwarp();
  }
}

template <class T, int kHeadDim>
__device__ void compute(ForwardShared<T, kHeadDim>& sh, const ForwardArgs& args, int consumer) {
  using Shape = ForwardShape<kHeadDim>;
  constexpr int kKeys = Shape::kKeys;
  constexpr int kTurnThreads = 2 * kWarpgroup;
  const bool leader = (threadIdx.x & 31) == 0;
  RingPosition<kTileSlots> at_tile;
  RingPosition<Shape::kStages> at;
  int q_parity = 0;
  const auto release = [&](uint64_t* barrier) {
    if (leader) barrier_arrive(barrier);
  };
  const auto take_turn = [&] {
    if constexpr (Shape::kTurns) named_sync(1 + consumer, kTurnThreads);
  };
  const auto pass_turn = [&] {
    if constexpr (Shape::kTurns) named_arrive(2 - consumer, kTurnThreads);
  };
  if (Shape::kTurns && consumer == 1) named_arrive(1, kTurnThreads);

  for (;;) {
    const Tile t = sh.queue.pop(at_tile);
    if (t.head < 0) break;
    const int first = t.begin + 64 * consumer;
    const int last = min(first + 64, t.n);
    const KernelMask::Rows seen = first < last ? args.mask.rows(first, last, t.n, t.targets)
                                               : KernelMask::Rows{0, 0, 0, 0, t.n};

    uint32_t q[kHeadDim / 16][4];
    barrier_wait(&sh.q_full[consumer], q_parity);
    q_parity ^= 1;
    load_fragment(q, sh.q[consumer]);
    __syncwarp();
    release(&sh.q_empty[consumer]);

    float o[kHeadDim / 2];
#pragma unroll
    for (float& x : o) x = 0;
    float s[kKeys / 2];
    uint32_t p[kKeys / 16][4];

    const auto silu = [&](int begin, bool masked) {
      if (masked) mask_rows<kKeys>(args.mask, t, first, begin, [&](int i) { s[i] = 0; });
#pragma unroll
      for (float& x : s) {
        const float y = args.half_alpha * x;
        x = fmaf(y, tanh_fast(y), y);
      }
    };
    int left = t.count;
    const auto next_begin = [&] {
      barrier_wait(&sh.k_full[at.stage], at.parity);
      return __shfl_sync(~0u, sh.begin[at.stage], 0);
    };
    while (left > 0) {
      int begin = next_begin();
      take_turn();
      if (seen.none_sees(begin, begin + kKeys, last)) {
        pass_turn();
        release(&sh.k_empty[at.stage]);
        barrier_wait(&sh.v_full[at.stage], at.parity);
        release(&sh.v_empty[at.stage]);
        at.advance();
        --left;
        continue;
      }
      // The first block of a run has no product of an earlier one to hide behind; it is nearly
      // always a masked one.
      products_begin();
      multiply<T, kHeadDim / 16, false>(s, q, AlongRows<kKeys>(sh.k[at.stage]));
      products_commit();
      pass_turn();
      products_wait<0>();
      pin(s);
      release(&sh.k_empty[at.stage]);
      silu(begin, true);
      to_fragment<T>(p, s);
      RingPosition<Shape::kStages> before = at;
      at.advance();
      --left;
      while (left > 0) {
        begin = next_begin();
        if (seen.none_sees(begin, begin + kKeys, last)) break;
        take_turn();
        products_begin();
        multiply<T, kHeadDim / 16, false>(s, q, AlongRows<kKeys>(sh.k[at.stage]));
        products_commit();
        barrier_wait(&sh.v_full[before.stage], before.parity);
        products_begin();
        multiply<T, kKeys / 16, true>(o, p, DownRows<kKeys>(sh.v[before.stage]));
        products_commit();
        pass_turn();
        products_wait<1>();
        pin(s);
        release(&sh.k_empty[at.stage]);
        silu(begin, !seen.all_see(begin, begin + kKeys));
        products_wait<0>();
        pin(o);
        release(&sh.v_empty[before.stage]);
        to_fragment<T>(p, s);
        before = at;
        at.advance();
        --left;
      }
      barrier_wait(&sh.v_full[before.stage], before.parity);
      products_begin();
      multiply<T, kKeys / 16, true>(o, p, DownRows<kKeys>(sh.v[before.stage]));
      products_commit();
      products_wait<0>();
      pin(o);
      release(&sh.v_empty[before.stage]);
    }
    T* to = static_cast<T*>(args.o) + (t.first_row + first) * args.row_stride +
            t.head * args.head_stride;
    if (first < last) store_rows(o, args.scale, sh.o[consumer], to, args.row_stride, last - first);
  }
}

#endif

template <class T, int kHeadDim>
__global__ void __launch_bounds__((ForwardShape<kHeadDim>::kConsumers + 1) * kWarpgroup, 1)
    forward_kernel(const __grid_constant__ CUtensorMap q_map,
                   const __grid_constant__ CUtensorMap k_map,
                   const __grid_constant__ CUtensorMap v_map, const ForwardArgs args) {
#if SEGUE_SM90A
  using Shape = ForwardShape<kHeadDim>;
  extern __shared__ uint8_t raw[];
  auto& sh = *reinterpret_cast<ForwardShared<T, kHeadDim>*>(
      (reinterpret_cast<uintptr_t>(raw) + 1023) & ~uintptr_t{1023});
  if (threadIdx.x == 0) {
    sh.queue.init(1 + 4 * Shape::kConsumers);
    for (int w = 0; w < Shape::kConsumers; ++w) {
      barrier_init(&sh.q_full[w], 1);
      barrier_init(&sh.q_empty[w], 4);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(&sh.k_full[i], 1);
      barrier_init(&sh.v_full[i], 1);
      barrier_init(&sh.k_empty[i], 4 * Shape::kConsumers);
      barrier_init(&sh.v_empty[i], 4 * Shape::kConsumers);
    }
    barrier_init_done();
    prefetch_map(&q_map);
    prefetch_map(&k_map);
    prefetch_map(&v_map);
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    registers_lower<Shape::kFetchRegisters>();
    if (threadIdx.x < 32) {
      fetch<T, kHeadDim>(sh, q_map, k_map, v_map);
    } else if (threadIdx.x < 64) {
      const Order order =
          args.mask.contextual_len > 0 ? Order::kFirstTileFirst : Order::kLastTileFirst;
      pick_tiles(sh.queue, args.work, sh.kQueries, order,
                 [&](const Tile& t) { return key_steps(args.mask, t, sh.kQueries, Shape::kKeys); });
    }
  } else {
    registers_raise<Shape::kComputeRegisters>();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpgroup), 0);
    compute<T, kHeadDim>(sh, args, warpgroup - 1);
  }
#endif
}

template <class T, int kHeadDim>
void launch(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  using Shape = ForwardShape<kHeadDim>;
  using Shared = ForwardShared<T, kHeadDim>;
  const CudaPlan plan(exec, p, Shared::kQueries);
  if (plan.tiles() == 0) return;
  const int64_t rows = p.offsets.back();
  const ForwardArgs args{plan.work(0),
                         kernel_mask(p.mask),
                         o.data,
                         o.stride(0),
                         o.stride(1),
                         static_cast<float>(p.alpha / 2),
                         static_cast<float>(p.scale)};
  constexpr int kBytes = sizeof(Shared) + 1024;
  static_assert(kBytes <= 232448);
  const auto kernel = forward_kernel<T, kHeadDim>;
  launch_persistent(exec, reinterpret_cast<const void*>(kernel), plan.tiles(),
                    (Shape::kConsumers + 1) * kWarpgroup, kBytes, tile_map(p.q, rows, 64),
                    tile_map(p.k, rows, Shape::kKeys), tile_map(p.v, rows, Shape::kKeys), args);
}

}  // namespace

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o) {
  if (p.q.size(2) == 128) return launch<__nv_bfloat16, 128>(exec, p, o);
  launch<__nv_bfloat16, 64>(exec, p, o);
}

}  // namespace segue::attention::hopper
