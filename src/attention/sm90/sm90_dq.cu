#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/sm90/sm90_kernels.h"
#include "attention/sm90/sm90_sums.cuh"
#include "attention/sm90/sm90_work.cuh"

// dq = alpha ds k on Hopper: queries and do stay in registers, keys and values stream by.
// Letters: s scores, dp = do v^T, ds = dp silu'(s), 64 queries x kKeys keys. With y = s / 2,
// t = tanh(y), w = 1 + t: 2 silu' = w + y w (1 - t). scale alpha / 2 waits for the end.

namespace segue::attention::hopper {
namespace {

/// Tile choices.
template <int kHeadDim>
struct QueryShape;
template <>
struct QueryShape<128> {
  static constexpr int kKeys = 64, kStages = 4;
  static constexpr int kFetchRegisters = 24, kComputeRegisters = 240;
};
template <>
struct QueryShape<64> {
  static constexpr int kKeys = 64, kStages = 4;
  static constexpr int kFetchRegisters = 40, kComputeRegisters = 232;
};
constexpr int kConsumers = 2;
constexpr int kQueries = 64 * kConsumers;
constexpr int kTileSlots = 2;

struct QueryArgs {
  WorkList work;
  KernelMask mask;
  void* dq;
  int64_t row_stride, head_stride;
  int columns;  // of a head
  float half_alpha, dq_scale;
  ResultSums sums;
};

template <class T, int kHeadDim>
struct QueryShared {
  using Shape = QueryShape<kHeadDim>;
  T q[kConsumers][64 * kHeadDim];
  T grad_o[kConsumers][64 * kHeadDim];
  T k[Shape::kStages][Shape::kKeys * kHeadDim];
  T v[Shape::kStages][Shape::kKeys * kHeadDim];
  uint8_t dq[kConsumers][kStagingBytes];
  uint32_t begin[Shape::kStages];  // first key of a stage
  TileQueue<kTileSlots> queue;
  uint64_t q_full[kConsumers], q_empty[kConsumers];
  uint64_t k_full[Shape::kStages], k_empty[Shape::kStages];
  uint64_t v_full[Shape::kStages], v_empty[Shape::kStages];
};

template <class T, int kHeadDim>
__device__ void fetch(QueryShared<T, kHeadDim>& sh, const CUtensorMap& q_map,
                      const CUtensorMap& k_map, const CUtensorMap& v_map,
                      const CUtensorMap& o_map) {
  using Shape = QueryShape<kHeadDim>;
  const bool leader = (threadIdx.x & 31) == 0;
  RingPosition<kTileSlots> at_tile;
  RingPosition<Shape::kStages> at;
  int q_parity = 1;
  for (;;) {
    Steps steps;
    const Tile t = sh.queue.pop(at_tile, &steps);
    if (t.head < 0) break;
    if (leader) {
      for (int w = 0; w < kConsumers; ++w) {
        const int row = t.first_row + t.begin + 64 * w;
        barrier_wait(&sh.q_empty[w], q_parity);
        barrier_expect(&sh.q_full[w], sizeof(sh.q[w]) + sizeof(sh.grad_o[w]));
        load_tile<64>(sh.q[w], &q_map, &sh.q_full[w], row, t.head);
        load_tile<64>(sh.grad_o[w], &o_map, &sh.q_full[w], row, t.head);
      }
      q_parity ^= 1;
      for_each_step_down(steps, [&](int block) {
        const int begin = block * Shape::kKeys;
        const int row = t.first_row + begin;
        barrier_wait(&sh.k_empty[at.stage], at.parity ^ 1);
        sh.begin[at.stage] = static_cast<uint32_t>(begin);
        barrier_expect(&sh.k_full[at.stage], sizeof(sh.k[0]));
        load_tile<Shape::kKeys>(sh.k[at.stage], &k_map, &sh.k_full[at.stage], row, t.head);
        barrier_wait(&sh.v_empty[at.stage], at.parity ^ 1);
        barrier_expect(&sh.v_full[at.stage], sizeof(sh.v[0]));
        load_tile<Shape::kKeys>(sh.v[at.stage], &v_map, &sh.v_full[at.stage], row, t.head);
        at.advance();
      });
    }
    __syncwarp();
  }
}

template <class T, int kHeadDim>
__device__ void compute(QueryShared<T, kHeadDim>& sh, const QueryArgs& args, int consumer) {
  using Shape = QueryShape<kHeadDim>;
  constexpr int kKeys = Shape::kKeys;
  const bool leader = (threadIdx.x & 31) == 0;
  RingPosition<kTileSlots> at_tile;
  RingPosition<Shape::kStages> at;
  int q_parity = 0;
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();  // what other lanes read is read
    if (leader) barrier_arrive(barrier);
  };
  for (;;) {
    const Tile t = sh.queue.pop(at_tile);
    if (t.head < 0) break;
    const int first = t.begin + 64 * consumer;
    const int last = min(first + 64, t.n);
    const KernelMask::Rows seen = first < last ? args.mask.rows(first, last, t.n, t.targets)
                                               : KernelMask::Rows{0, 0, 0, 0, t.n};
    uint32_t q[kHeadDim / 16][4];
    uint32_t grad_o[kHeadDim / 16][4];
    barrier_wait(&sh.q_full[consumer], q_parity);
    q_parity ^= 1;
    load_fragment(q, sh.q[consumer]);
    load_fragment(grad_o, sh.grad_o[consumer]);
    fence_async_proxy();
    release(&sh.q_empty[consumer]);

    float dq[kHeadDim / 2];
#pragma unroll
    for (float& x : dq) x = 0;
    float s[kKeys / 2];
    float dp[kKeys / 2];
    uint32_t ds[kKeys / 16][4];

    int left = t.count;
    const auto next_begin = [&] {
      barrier_wait(&sh.k_full[at.stage], at.parity);
      return static_cast<int>(load_uniform(&sh.begin[at.stage]));
    };
    const auto scores = [&] {
      products_begin();
      multiply<T, kHeadDim / 16, false>(s, q, AlongRows<kKeys>(sh.k[at.stage]));
      products_commit();
      barrier_wait(&sh.v_full[at.stage], at.parity);
      products_begin();
      multiply<T, kHeadDim / 16, false>(dp, grad_o, AlongRows<kKeys>(sh.v[at.stage]));
      products_commit();
    };
    // s becomes twice the derivative of silu.
    const auto derive = [&](int begin, bool masked) {
#pragma unroll
      for (float& x : s) {
        const float y = args.half_alpha * x;
        const float th = tanh_fast(y);
        const float w = 1 + th;
        x = fmaf(y * w, 1 - th, w);
      }
      if (masked) {
        KeepBits<kKeys> keep;
        keep.set_queries(args.mask, t, first, begin);
#pragma unroll
        for (int i = 0; i < kKeys / 2; ++i) s[i] = keep.keeps(i) ? s[i] : 0;
      }
    };
    const auto combine = [&] {
      pin(dp);
      release(&sh.v_empty[at.stage]);
#pragma unroll
      for (int i = 0; i < kKeys / 2; ++i) dp[i] *= s[i];
    };
    while (left > 0) {
      int begin = next_begin();
      if (seen.none_sees(begin, begin + kKeys, last)) {
        release(&sh.k_empty[at.stage]);
        barrier_wait(&sh.v_full[at.stage], at.parity);
        release(&sh.v_empty[at.stage]);
        at.advance();
        --left;
        continue;
      }
      scores();
      products_wait<1>();
      pin(s);
      derive(begin, true);
      products_wait<0>();
      combine();
      to_fragment<T>(ds, dp);
      int before = at.stage;
      at.advance();
      --left;
      while (left > 0) {
        begin = next_begin();
        if (seen.none_sees(begin, begin + kKeys, last)) break;
        scores();
        products_begin();
        multiply<T, kKeys / 16, true>(dq, ds, DownRows<kKeys>(sh.k[before]));
        products_commit();
        products_wait<2>();
        pin(s);
        derive(begin, !seen.all_see(begin, begin + kKeys));
        settle(s);
        products_wait<1>();
        combine();
        settle(dp);
        products_wait<0>();
        pin(dq);
        release(&sh.k_empty[before]);
        to_fragment<T>(ds, dp);
        before = at.stage;
        at.advance();
        --left;
      }
      products_begin();
      multiply<T, kKeys / 16, true>(dq, ds, DownRows<kKeys>(sh.k[before]));
      products_commit();
      products_wait<0>();
      pin(dq);
      release(&sh.k_empty[before]);
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
__global__ void __launch_bounds__((kConsumers + 1) * kWarpgroup, 1)
    dq_kernel(const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
              const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap o_map,
              const QueryArgs args, const __grid_constant__ FewSequences few) {
#if SEGUE_SM90A
  using Shape = QueryShape<kHeadDim>;
  extern __shared__ uint8_t raw[];
  auto& sh = *reinterpret_cast<QueryShared<T, kHeadDim>*>(tile_aligned(raw));
  if (threadIdx.x == 0) {
    sh.queue.init(1 + 4 * kConsumers);
    for (int w = 0; w < kConsumers; ++w) {
      barrier_init(&sh.q_full[w], 1);
      barrier_init(&sh.q_empty[w], 4);
    }
    for (int i = 0; i < Shape::kStages; ++i) {
      barrier_init(&sh.k_full[i], 1);
      barrier_init(&sh.v_full[i], 1);
      barrier_init(&sh.k_empty[i], 4 * kConsumers);
      barrier_init(&sh.v_empty[i], 4 * kConsumers);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    registers_lower<Shape::kFetchRegisters>();
    if (threadIdx.x < 32) {
      fetch<T, kHeadDim>(sh, q_map, k_map, v_map, o_map);
    } else if (threadIdx.x < 64) {
      pick_tiles<kQueries>(sh.queue, args.work, few, query_order(args.mask), [&](const Tile& t) {
        return key_steps(args.mask, t, kQueries, Shape::kKeys);
      });
    }
  } else {
    registers_raise<Shape::kComputeRegisters>();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpgroup), 0);
    compute<T, kHeadDim>(sh, args, warpgroup - 1);
  }
#endif
}

template <class T, int kHeadDim>
void launch(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o, const Tensor& dq,
            const CudaPlan& plan, const Tensor& sums) {
  using Shape = QueryShape<kHeadDim>;
  using Shared = QueryShared<T, kHeadDim>;
  const int64_t rows = p.offsets.back();
  const QueryArgs args{plan.key_tiles(0, 1),
                       kernel_mask(p.mask),
                       dq.data,
                       dq.stride(0),
                       dq.stride(1),
                       static_cast<int>(dq.size(2)),
                       static_cast<float>(p.alpha / 2),
                       static_cast<float>(p.scale * p.alpha / 2),
                       result_sums(sums)};
  constexpr int kBytes = sizeof(Shared) + 1024;
  SEGUE_ASSERT(plan.tile_rows().keys == kQueries, "attention: tiles of another kernel");
  static_assert(kBytes <= kMaxSharedBytes);
  static_assert(Shape::kFetchRegisters + kConsumers * Shape::kComputeRegisters <=
                shared_registers(kConsumers + 1));
  launch_persistent(exec, reinterpret_cast<const void*>(dq_kernel<T, kHeadDim>), args.work.tiles,
                    (kConsumers + 1) * kWarpgroup, kBytes, tile_map(p.q, rows, 64),
                    tile_map(p.k, rows, Shape::kKeys), tile_map(p.v, rows, Shape::kKeys),
                    tile_map(grad_o, rows, 64), args, plan.few());
}

}  // namespace

void backward_dq(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                 const Tensor& dq, const CudaPlan& plan, const Tensor& sums) {
  dispatch_element(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (p.q.size(2) > 64) return launch<T, 128>(exec, p, grad_o, dq, plan, sums);
    launch<T, 64>(exec, p, grad_o, dq, plan, sums);
  });
}

}  // namespace segue::attention::hopper
