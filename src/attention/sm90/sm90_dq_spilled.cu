#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/sm90/sm90_kernels.h"
#include "attention/sm90/sm90_sums.cuh"
#include "attention/sm90/sm90_work.cuh"

// dq = alpha ds k on Hopper, with ds as the kernel of dk and dv left it: bounded by reading ds
// once. Letters: ds 64 queries x 64 keys; its factor scale alpha / 2 waits for the end.

namespace segue::attention::hopper {
namespace {

/// Tile choices: many queries share the keys, so that those are read less often than ds.
template <int kHeadDim>
struct SpilledShape {
  static constexpr int kConsumers = 4;
  static constexpr int kFetchRegisters = 32, kComputeRegisters = 112;
};
template <>
struct SpilledShape<256> {
  static constexpr int kConsumers = 2;
  static constexpr int kFetchRegisters = 40, kComputeRegisters = 232;
};
constexpr int kKeys = kSpillBlock;
constexpr int kStages = 4;
constexpr int kTileSlots = 1;
constexpr int kPickAhead = 1;  // steps left to fetch when the next tile is picked

struct SpilledArgs {
  WorkList work;
  KernelMask mask;
  const uint4* spill;
  void* dq;
  int64_t row_stride, head_stride;
  int columns;  // of a head
  float dq_scale;
  ResultSums sums;
};

template <class T, int kHeadDim>
struct SpilledShared {
  static constexpr int kConsumers = SpilledShape<kHeadDim>::kConsumers;
  T k[kStages][kKeys * kHeadDim];
  uint4 ds[kStages][kConsumers][kSpillBlockBytes / 16];
  uint8_t dq[kConsumers][kStagingBytes];
  StepWord word[kStages];
  TileQueue<kTileSlots> queue;
  uint64_t full[kStages], empty[kStages];
};

template <class T, int kHeadDim>
__device__ void fetch(SpilledShared<T, kHeadDim>& sh, const SpilledArgs& args,
                      const CUtensorMap& k_map) {
  constexpr int kConsumers = SpilledShape<kHeadDim>::kConsumers;
  const int lane = threadIdx.x & 31;
  RingPosition<kTileSlots> at_tile;
  RingPosition<kStages> at;
  for (;;) {
    Steps steps;
    const Tile t = sh.queue.take(at_tile, &steps);
    if (t.head < 0) break;
    int left = t.count;
    if (left <= kPickAhead) sh.queue.release(at_tile.stage);
    RowViews rows;
    rows.set<kConsumers>(args.mask, t);
    for_each_step_up(steps, [&](int block) {
      const int begin = block * kKeys;
      const StepWord word = rows.word<kConsumers>(block, kKeys);
      int blocks = 0;
      for (int w = 0; w < kConsumers; ++w) blocks += word.view(w) != kNone ? 1 : 0;
      if (lane == 0) {
        uint64_t* const full = &sh.full[at.stage];
        barrier_wait(&sh.empty[at.stage], at.parity ^ 1);
        sh.word[at.stage] = word;
        barrier_expect_more(
            full, static_cast<int>(sizeof(sh.k[0])) + blocks * static_cast<int>(kSpillBlockBytes));
        load_tile<kKeys>(sh.k[at.stage], &k_map, full, t.first_row + begin, t.head);
        for (int w = 0; w < kConsumers; ++w) {
          if (word.view(w) == kNone) continue;
          load_once(sh.ds[at.stage][w],
                    args.spill + spill_block(t, t.begin + 64 * w, begin) * (kSpillBlockBytes / 16),
                    static_cast<int>(kSpillBlockBytes), full);
        }
        barrier_arrive(full);
      }
      __syncwarp();
      at.advance();
      if (--left == kPickAhead) sh.queue.release(at_tile.stage);
    });
    at_tile.advance();
  }
}

template <class T, int kHeadDim>
__device__ void compute(SpilledShared<T, kHeadDim>& sh, const SpilledArgs& args, int consumer) {
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5 & 3;
  RingPosition<kTileSlots> at_tile;
  RingPosition<kStages> at;
  for (;;) {
    const Tile t = sh.queue.pop(at_tile);
    if (t.head < 0) break;
    const int first = t.begin + 64 * consumer;
    const int last = min(first + 64, t.n);
    float dq[kHeadDim / 2];
#pragma unroll
    for (float& x : dq) x = 0;
    for (int left = t.count; left > 0; --left, at.advance()) {
      barrier_wait(&sh.full[at.stage], at.parity);
      const StepWord word = StepWord::read(sh.word[at.stage]);
      if (word.view(consumer) != kNone) {
        // Group `warp` of 16 queries, as warp k of the other kernel (keys 16 k and up) stored it.
        uint32_t ds[4][4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const uint4 r = sh.ds[at.stage][consumer][warp * kWarpgroup + k * 32 + lane];
          ds[k][0] = transpose_8x8(r.x);
          ds[k][1] = transpose_8x8(r.z);
          ds[k][2] = transpose_8x8(r.y);
          ds[k][3] = transpose_8x8(r.w);
        }
        products_begin();
        multiply<T, 4, true>(dq, ds, DownRows<kKeys>(sh.k[at.stage]));
        products_commit();
        products_wait<0>();
        pin(dq);
      }
      // Every thread for itself: 0.7 % slower than one for its warp, but a form that racecheck can
      // follow, as it does not follow __syncwarp.
      barrier_arrive(&sh.empty[at.stage]);
    }
    T* to = static_cast<T*>(args.dq) + (t.first_row + first) * args.row_stride +
            t.head * args.head_stride;
    if (first < last) {
      store_query_rows(dq, args.dq_scale, sh.dq[consumer], to, args.row_stride, last - first,
                       args.columns, args.sums, 1 + consumer, t.head,
                       [&] { return sh.queue.sum_row(at_tile) + consumer; });
    }
  }
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__((SpilledShape<kHeadDim>::kConsumers + 1) * kWarpgroup, 1)
    dq_spilled_kernel(const __grid_constant__ CUtensorMap k_map, const SpilledArgs args,
                      const __grid_constant__ FewSequences few) {
#if SEGUE_SM90A
  using Shape = SpilledShape<kHeadDim>;
  constexpr int kConsumers = Shape::kConsumers, kQueries = 64 * kConsumers;
  extern __shared__ uint8_t raw[];
  auto& sh = *reinterpret_cast<SpilledShared<T, kHeadDim>*>(tile_aligned(raw));
  if (threadIdx.x == 0) {
    sh.queue.init(1 + 4 * kConsumers);
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&sh.full[i], 1);
      barrier_init(&sh.empty[i], kConsumers * kWarpgroup);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    registers_lower<Shape::kFetchRegisters>();
    if (threadIdx.x < 32) {
      fetch<T, kHeadDim>(sh, args, k_map);
    } else if (threadIdx.x < 64) {
      pick_tiles<kQueries>(sh.queue, args.work, few, query_order(args.mask),
                           [&](const Tile& t) { return key_steps(args.mask, t, kQueries, kKeys); });
    }
  } else {
    registers_raise<Shape::kComputeRegisters>();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpgroup), 0);
    compute<T, kHeadDim>(sh, args, warpgroup - 1);
  }
#endif
}

template <class T, int kHeadDim>
void launch(const Exec& exec, const HstuAttentionParams& p, const Tensor& dq, const CudaPlan& plan,
            int chunk, const void* spill, const Tensor& sums) {
  using Shape = SpilledShape<kHeadDim>;
  using Shared = SpilledShared<T, kHeadDim>;
  constexpr int kConsumers = Shape::kConsumers;
  SEGUE_ASSERT(plan.tile_rows().queries == 64 * kConsumers, "attention: tiles of another kernel");
  const SpilledArgs args{plan.query_tiles(chunk, 1),
                         kernel_mask(p.mask),
                         static_cast<const uint4*>(spill),
                         dq.data,
                         dq.stride(0),
                         dq.stride(1),
                         static_cast<int>(dq.size(2)),
                         static_cast<float>(p.scale * p.alpha / 2),
                         result_sums(sums)};
  constexpr int kBytes = sizeof(Shared) + 1024;
  static_assert(kBytes <= kMaxSharedBytes);
  static_assert(Shape::kFetchRegisters + kConsumers * Shape::kComputeRegisters <=
                shared_registers(kConsumers + 1));
  launch_persistent(exec, reinterpret_cast<const void*>(dq_spilled_kernel<T, kHeadDim>),
                    args.work.tiles, (kConsumers + 1) * kWarpgroup, kBytes,
                    tile_map(p.k, p.offsets.back(), kKeys), args, plan.few());
}

}  // namespace

void backward_dq_spilled(const Exec& exec, const HstuAttentionParams& p, const Tensor& dq,
                         const CudaPlan& plan, int chunk, const void* spill, const Tensor& sums) {
  dispatch_element(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    const auto run = is_wide(p)         ? launch<T, 256>
                     : p.q.size(2) > 64 ? launch<T, 128>
                                        : launch<T, 64>;
    run(exec, p, dq, plan, chunk, spill, sums);
  });
}

}  // namespace segue::attention::hopper
