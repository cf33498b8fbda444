#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/sm90/sm90_dkdv.cuh"
#include "attention/sm90/sm90_kernels.h"

// dv = p^T do, dk = alpha ds^T q on Hopper: keys stay, queries stream by.
// Letters: s scores, p = silu(s), dp = do v^T, ds = dp silu'(s), all transposed: 64 keys x kQueries
// queries, so that p and ds are left operands as they come. With y = s / 2, t = tanh(y), w = 1 + t:
// p = y w and 2 silu' = w + p (1 - t). The factors scale and alpha / 2 wait for the end.

namespace segue::attention::hopper {
namespace {

/// Tile choices. Keys and values are double buffered so that a tile's successor is there when it
/// ends.
template <int kHeadDim>
struct KeyShape;
template <>
struct KeyShape<128> {
  static constexpr int kQueries = 64, kStages = 3;
  static constexpr int kFetchRegisters = 24, kComputeRegisters = 240;
};
template <>
struct KeyShape<64> {
  static constexpr int kQueries = 64, kStages = 4;
  static constexpr int kFetchRegisters = 40, kComputeRegisters = 232;
};
constexpr int kConsumers = 2;
constexpr int kKeys = 64 * kConsumers;
constexpr int kTileSlots = 1;
constexpr int kPickAhead = 1;  // steps left to fetch when the next tile is picked

template <class T, int kHeadDim>
struct KeyShared {
  using Shape = KeyShape<kHeadDim>;
  T k[2][kConsumers][64 * kHeadDim];
  T v[2][kConsumers][64 * kHeadDim];
  T q[Shape::kStages][Shape::kQueries * kHeadDim];
  T grad_o[Shape::kStages][Shape::kQueries * kHeadDim];
  StepWord word[Shape::kStages];
  TileQueue<kTileSlots> queue;
  uint64_t kv_full[2], kv_empty[2];
  uint64_t q_full[Shape::kStages], q_empty[Shape::kStages];
  uint64_t o_full[Shape::kStages], o_empty[Shape::kStages];
};

template <class T, int kHeadDim>
__device__ void fetch(KeyShared<T, kHeadDim>& sh, const KernelMask& mask, const CUtensorMap& q_map,
                      const CUtensorMap& k_map, const CUtensorMap& v_map,
                      const CUtensorMap& o_map) {
  using Shape = KeyShape<kHeadDim>;
  const int lane = threadIdx.x & 31;
  RingPosition<kTileSlots> at_tile;
  RingPosition<Shape::kStages> at;
  RingPosition<2> buffer;
  for (;;) {
    Steps steps;
    const Tile t = sh.queue.take(at_tile, &steps);
    if (t.head < 0) break;
    int left = t.count;
    if (left <= kPickAhead) sh.queue.release(at_tile.stage);
    if (lane == 0) {
      uint64_t* const kv_full = &sh.kv_full[buffer.stage];
      barrier_wait(&sh.kv_empty[buffer.stage], buffer.parity ^ 1);
      barrier_expect(kv_full, sizeof(sh.k[0]) + sizeof(sh.v[0]));
      for (int w = 0; w < kConsumers; ++w) {
        const int row = t.first_row + t.begin + 64 * w;
        load_tile<64>(sh.k[buffer.stage][w], &k_map, kv_full, row, t.head);
        load_tile<64>(sh.v[buffer.stage][w], &v_map, kv_full, row, t.head);
      }
    }
    __syncwarp();
    buffer.advance();
    const KeyViews keys(mask, t, kKeys);
    for_each_step_up(steps, [&](int block) {
      const StepWord word = keys.word<kConsumers>(mask, t, block, Shape::kQueries);
      if (lane == 0) {
        const int row = t.first_row + block * Shape::kQueries;
        barrier_wait(&sh.q_empty[at.stage], at.parity ^ 1);
        sh.word[at.stage] = word;
        barrier_expect(&sh.q_full[at.stage], sizeof(sh.q[0]));
        load_tile<Shape::kQueries>(sh.q[at.stage], &q_map, &sh.q_full[at.stage], row, t.head);
        barrier_wait(&sh.o_empty[at.stage], at.parity ^ 1);
        barrier_expect(&sh.o_full[at.stage], sizeof(sh.grad_o[0]));
        load_tile<Shape::kQueries>(sh.grad_o[at.stage], &o_map, &sh.o_full[at.stage], row, t.head);
      }
      __syncwarp();
      at.advance();
      if (--left == kPickAhead) sh.queue.release(at_tile.stage);
    });
    at_tile.advance();
  }
}

/// kSlices: scores are sums over so many slices of 16 columns; in others a head has zeros.
template <class T, int kHeadDim, bool kSpill, int kSlices>
__device__ void compute(KeyShared<T, kHeadDim>& sh, const KeyArgs& args, int consumer) {
  using Shape = KeyShape<kHeadDim>;
  constexpr int kQueries = Shape::kQueries;
  const bool leader = (threadIdx.x & 31) == 0;
  RingPosition<kTileSlots> at_tile;
  RingPosition<Shape::kStages> at;
  RingPosition<2> buffer;
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();  // what other lanes read is read
    if (leader) barrier_arrive(barrier);
  };
  for (;;) {
    const Tile t = sh.queue.pop(at_tile);
    if (t.head < 0) break;
    const int key = t.begin + 64 * consumer;
    float dk[kHeadDim / 2];
    float dv[kHeadDim / 2];
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) dk[i] = dv[i] = 0;
    T* const k_tile = sh.k[buffer.stage][consumer];
    T* const v_tile = sh.v[buffer.stage][consumer];
    barrier_wait(&sh.kv_full[buffer.stage], buffer.parity);

    for (int left = t.count; left > 0; --left, at.advance()) {
      barrier_wait(&sh.q_full[at.stage], at.parity);
      const StepWord word = StepWord::read(sh.word[at.stage]);
      const View view = word.view(consumer);
      const int query = word.block() * kQueries;
      if (view == kNone) {
        release(&sh.q_empty[at.stage]);
        barrier_wait(&sh.o_full[at.stage], at.parity);
        release(&sh.o_empty[at.stage]);
        continue;
      }
      float s[kQueries / 2];
      float dp[kQueries / 2];
      products_begin();
      multiply<T, kSlices, false>(s, AlongRows<64>(k_tile), AlongRows<kQueries>(sh.q[at.stage]));
      products_commit();
      barrier_wait(&sh.o_full[at.stage], at.parity);
      products_begin();
      multiply<T, kSlices, false>(dp, AlongRows<64>(v_tile),
                                  AlongRows<kQueries>(sh.grad_o[at.stage]));
      products_commit();
      products_wait<1>();
      pin(s);
      uint32_t p[kQueries / 16][4];
      if (view == kAll) {
        activate<T>(s, p, args.half_alpha, [](int) { return true; });
      } else {
        KeepBits<kQueries> keep;
        keep.set_keys(args.mask, t, key, query);
        activate<T>(s, p, args.half_alpha, [&](int i) { return keep.keeps(i); });
      }
      products_begin();
      multiply<T, kQueries / 16, true>(dv, p, DownRows<kQueries>(sh.grad_o[at.stage]));
      products_commit();
      products_wait<1>();
      pin(dp);
#pragma unroll
      for (int i = 0; i < kQueries / 2; ++i) dp[i] *= s[i];
      uint32_t ds[kQueries / 16][4];
      to_fragment<T>(ds, dp);
      static_assert(kQueries == kSpillBlock);
      if constexpr (kSpill) spill_gradients(args, t, query, key, ds);
      products_begin();
      multiply<T, kQueries / 16, true>(dk, ds, DownRows<kQueries>(sh.q[at.stage]));
      products_commit();
      products_wait<1>();
      pin(dv);
      release(&sh.o_empty[at.stage]);
      products_wait<0>();
      pin(dk);
      release(&sh.q_empty[at.stage]);
    }

    // This warpgroup's own keys and values are no longer needed: room to turn the results around.
    named_sync(1 + consumer, kWarpgroup);
    if (key < t.n) {
      const int64_t row = t.first_row + key;
      const int rows = min(64, t.n - key);
      const bool sums = args.dk_sums.wanted();
      WarpRowSums<T, kHeadDim> dk_sums(rows), dv_sums(rows);
      store_and_sum_rows(dk, args.dk_scale, k_tile,
                         static_cast<T*>(args.dk) + row * args.dk_row + t.head * args.dk_head,
                         args.dk_row, rows, args.columns, sums, dk_sums);
      store_and_sum_rows(dv, args.dv_scale, v_tile,
                         static_cast<T*>(args.dv) + row * args.dv_row + t.head * args.dv_head,
                         args.dv_row, rows, args.columns, sums, dv_sums);
      if (sums) {
        const StagedSums<kHeadDim> dk_staged(k_tile), dv_staged(v_tile);
        dk_staged.leave(dk_sums);
        dv_staged.leave(dv_sums);
        named_sync(1 + consumer, kWarpgroup);
        const int sum_row = sh.queue.sum_row(at_tile) + consumer;
        dk_staged.store(args.dk_sums, sum_row, t.head, args.columns);
        dv_staged.store(args.dv_sums, sum_row, t.head, args.columns);
      }
      fence_async_proxy();
      __syncwarp();
    }
    release(&sh.kv_empty[buffer.stage]);
    buffer.advance();
  }
}

template <class T, int kHeadDim, bool kSpill, int kSlices>
__global__ void __launch_bounds__((kConsumers + 1) * kWarpgroup, 1)
    dkdv_kernel(const __grid_constant__ CUtensorMap q_map,
                const __grid_constant__ CUtensorMap k_map,
                const __grid_constant__ CUtensorMap v_map,
                const __grid_constant__ CUtensorMap o_map, const KeyArgs args,
                const __grid_constant__ FewSequences few) {
#if SEGUE_SM90A
  using Shape = KeyShape<kHeadDim>;
  extern __shared__ uint8_t raw[];
  auto& sh = *reinterpret_cast<KeyShared<T, kHeadDim>*>(tile_aligned(raw));
  if (threadIdx.x == 0) {
    sh.queue.init(1 + 4 * kConsumers);
    for (int i = 0; i < 2; ++i) {
      barrier_init(&sh.kv_full[i], 1);
      barrier_init(&sh.kv_empty[i], 4 * kConsumers);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(&sh.q_full[i], 1);
      barrier_init(&sh.o_full[i], 1);
      barrier_init(&sh.q_empty[i], 4 * kConsumers);
      barrier_init(&sh.o_empty[i], 4 * kConsumers);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    registers_lower<Shape::kFetchRegisters>();
    if (threadIdx.x < 32) {
      fetch<T, kHeadDim>(sh, args.mask, q_map, k_map, v_map, o_map);
    } else if (threadIdx.x < 64) {
      pick_tiles<kKeys>(sh.queue, args.work, few, Order::kKeys, [&](const Tile& t) {
        return query_steps(args.mask, t, kKeys, Shape::kQueries);
      });
    }
  } else {
    registers_raise<Shape::kComputeRegisters>();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpgroup), 0);
    compute<T, kHeadDim, kSpill, kSlices>(sh, args, warpgroup - 1);
  }
#endif
}

template <class T, int kHeadDim, bool kSpill, int kSlices>
void launch(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o, const Tensor& dk,
            const Tensor& dv, const CudaPlan& plan, int chunk, void* spill,
            const AttentionSums& sums) {
  using Shape = KeyShape<kHeadDim>;
  using Shared = KeyShared<T, kHeadDim>;
  const int64_t rows = p.offsets.back();
  const KeyArgs args = key_args(p, dk, dv, plan, chunk, spill, sums);
  constexpr int kBytes = sizeof(Shared) + 1024;
  SEGUE_ASSERT(plan.tile_rows().keys == kKeys, "attention: tiles of another kernel");
  static_assert(kBytes <= kMaxSharedBytes);
  static_assert(Shape::kFetchRegisters + kConsumers * Shape::kComputeRegisters <=
                shared_registers(kConsumers + 1));
  launch_persistent(exec, reinterpret_cast<const void*>(dkdv_kernel<T, kHeadDim, kSpill, kSlices>),
                    args.work.tiles, (kConsumers + 1) * kWarpgroup, kBytes,
                    tile_map(p.q, rows, Shape::kQueries), tile_map(p.k, rows, 64),
                    tile_map(p.v, rows, 64), tile_map(grad_o, rows, Shape::kQueries), args,
                    plan.few());
}

}  // namespace

void backward_dkdv(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                   const Tensor& dk, const Tensor& dv, const CudaPlan& plan, int chunk, void* spill,
                   const AttentionSums& sums) {
  if (is_wide(p)) {
    return backward_dkdv_wide(exec, p, grad_o, dk, dv, plan, chunk, spill, sums);
  }
  dispatch_element(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t columns = p.q.size(2);
    const auto run = [&](auto spills) {
      constexpr bool kSpill = decltype(spills)::value;
      const auto launch_it = columns > 96   ? launch<T, 128, kSpill, 8>
                             : columns > 64 ? launch<T, 128, kSpill, 6>
                             : columns > 32 ? launch<T, 64, kSpill, 4>
                                            : launch<T, 64, kSpill, 2>;
      launch_it(exec, p, grad_o, dk, dv, plan, chunk, spill, sums);
    };
    if (spill != nullptr) return run(std::true_type());
    run(std::false_type());
  });
}

}  // namespace segue::attention::hopper
