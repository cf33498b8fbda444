#include <cuda_runtime.h>

#include "attention/sm90/sm90_dkdv.cuh"

// dv = p^T do, dk = alpha ds^T q for heads of 256, letters as in sm90_dkdv.cu. dk and dv of 64 keys
// together are more than a thread has registers for, so one warpgroup makes scores, p and dv, and
// the other dp, ds and dk of the same keys. The derivative of silu goes from the one to the other
// through shared memory, by threads with the same place in both. While one of them does arithmetic
// the other has the tensor cores.

namespace segue::attention::hopper {
namespace {

constexpr int kHeadDim = 256, kKeys = 64, kQueries = 64;
constexpr int kStages = 2;
constexpr int kTileSlots = 1;
constexpr int kPickAhead = 1;  // steps left to fetch when the next tile is picked
constexpr int kFetchRegisters = 40, kComputeRegisters = 232;
/// Slices of k and v that stay in registers: reading all of them from shared memory in each step
/// would keep it busier than the tensor cores.
constexpr int kHeld = 4;
constexpr int kSlices = kHeadDim / 16;

/// Named barriers of the two warpgroups.
constexpr int kOwnBarrier = 1;

template <class T>
struct WideKeyShared {
  T k[kKeys * kHeadDim];
  T v[kKeys * kHeadDim];
  T q[kStages][kQueries * kHeadDim];
  T grad_o[kStages][kQueries * kHeadDim];
  uint4 derivative[2][4][kWarpgroup];
  uint8_t staging[2][kStagingBytes];
  StepWord word[kStages];
  TileQueue<kTileSlots> queue;
  uint64_t k_full, k_empty, v_full, v_empty;
  uint64_t derivative_full[2], derivative_empty[2];  // every thread for itself
  uint64_t q_full[kStages], q_empty[kStages];
  uint64_t o_full[kStages], o_empty[kStages];
};

template <class T>
__device__ void fetch(WideKeyShared<T>& sh, const KernelMask& mask, const CUtensorMap& q_map,
                      const CUtensorMap& k_map, const CUtensorMap& v_map,
                      const CUtensorMap& o_map) {
  const int lane = threadIdx.x & 31;
  RingPosition<kTileSlots> at_tile;
  RingPosition<kStages> at;
  int kv_parity = 1;
  for (;;) {
    Steps steps;
    const Tile t = sh.queue.take(at_tile, &steps);
    if (t.head < 0) break;
    int left = t.count;
    if (left <= kPickAhead) sh.queue.release(at_tile.stage);
    const KeyViews keys(mask, t, kKeys);
    for_each_step_up(steps, [&](int block) {
      const StepWord word = keys.word<1>(mask, t, block, kQueries);
      if (lane == 0) {
        const int row = t.first_row + block * kQueries;
        const bool first = left == t.count;
        if (first) {
          barrier_wait(&sh.k_empty, kv_parity);
          barrier_expect(&sh.k_full, sizeof(sh.k));
          load_tile<kKeys>(sh.k, &k_map, &sh.k_full, t.first_row + t.begin, t.head);
        }
        barrier_wait(&sh.q_empty[at.stage], at.parity ^ 1);
        sh.word[at.stage] = word;
        barrier_expect(&sh.q_full[at.stage], sizeof(sh.q[0]));
        load_tile<kQueries>(sh.q[at.stage], &q_map, &sh.q_full[at.stage], row, t.head);
        if (first) {
          barrier_wait(&sh.v_empty, kv_parity);
          barrier_expect(&sh.v_full, sizeof(sh.v));
          load_tile<kKeys>(sh.v, &v_map, &sh.v_full, t.first_row + t.begin, t.head);
        }
        barrier_wait(&sh.o_empty[at.stage], at.parity ^ 1);
        barrier_expect(&sh.o_full[at.stage], sizeof(sh.grad_o[0]));
        load_tile<kQueries>(sh.grad_o[at.stage], &o_map, &sh.o_full[at.stage], row, t.head);
      }
      __syncwarp();
      at.advance();
      if (--left == kPickAhead) sh.queue.release(at_tile.stage);
    });
    kv_parity ^= 1;
    at_tile.advance();
  }
}

template <class T>
__device__ inline float2 unpack(uint32_t pair) {
  if constexpr (kIsHalf<T>) {
    return __half22float2(*reinterpret_cast<const __half2*>(&pair));
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}

/// s = a b^T, the first slices of a from registers.
template <class T>
__device__ inline void multiply_held(float (&s)[kQueries / 2], const uint32_t (&held)[kHeld][4],
                                     const T* a, const T* b) {
  const AlongRows<kKeys> rows(a);
  const AlongRows<kQueries> columns(b);
  multiply<T, kHeld, false>(s, held, columns);
#pragma unroll
  for (int k = kHeld; k < kSlices; ++k) {
    product<T, false, true>(s, rows.slice(k), columns.slice(k));
  }
}

/// kMakesDk: makes dk, else dv.
template <class T, bool kMakesDk>
__device__ void compute(WideKeyShared<T>& sh, const KeyArgs& args) {
  const bool leader = (threadIdx.x & 31) == 0;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroup;
  RingPosition<kTileSlots> at_tile;
  RingPosition<kStages> at;
  RingPosition<2> buffer;  // of derivatives
  int parity = 0;
  uint64_t* const own_full = kMakesDk ? &sh.v_full : &sh.k_full;
  uint64_t* const own_empty = kMakesDk ? &sh.v_empty : &sh.k_empty;
  const T* const own = kMakesDk ? sh.v : sh.k;
  const auto release = [&](uint64_t* barrier) {
    __syncwarp();  // what other lanes read is read
    if (leader) barrier_arrive(barrier);
  };
  for (;;) {
    const Tile t = sh.queue.pop(at_tile);
    if (t.head < 0) break;
    float result[kHeadDim / 2];
#pragma unroll
    for (float& x : result) x = 0;
    uint32_t held[kHeld][4];
    barrier_wait(own_full, parity);
    parity ^= 1;
    load_fragment(held, own);
    for (int left = t.count; left > 0; --left, at.advance()) {
      barrier_wait(&sh.q_full[at.stage], at.parity);
      const StepWord word = StepWord::read(sh.word[at.stage]);
      const int query = word.block() * kQueries;
      const auto end_own = [&] {
        if (left > 1) return;
        fence_async_proxy();
        release(own_empty);
      };
      if (word.view(0) == kNone) {
        release(&sh.q_empty[at.stage]);
        barrier_wait(&sh.o_full[at.stage], at.parity);
        release(&sh.o_empty[at.stage]);
        end_own();
        continue;
      }
      float s[kQueries / 2];
      uint32_t left_operand[kQueries / 16][4];
      if constexpr (kMakesDk) {
        barrier_wait(&sh.o_full[at.stage], at.parity);
        products_begin();
        multiply_held<T>(s, held, own, sh.grad_o[at.stage]);  // dp
        products_commit();
        products_wait<0>();
        pin(s);
        release(&sh.o_empty[at.stage]);
        end_own();
        barrier_wait(&sh.derivative_full[buffer.stage], buffer.parity);
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          const uint4 d = sh.derivative[buffer.stage][g][thread];
          const uint32_t pairs[4] = {d.x, d.y, d.z, d.w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 both = unpack<T>(pairs[i]);
            s[8 * g + 2 * i] *= both.x;
            s[8 * g + 2 * i + 1] *= both.y;
          }
        }
        barrier_arrive(&sh.derivative_empty[buffer.stage]);
        buffer.advance();
        to_fragment<T>(left_operand, s);
        spill_gradients(args, t, query, t.begin, left_operand);
        products_begin();
        multiply<T, kQueries / 16, true>(result, left_operand, DownRows<kQueries>(sh.q[at.stage]));
        products_commit();
        products_wait<0>();
        pin(result);
        release(&sh.q_empty[at.stage]);
      } else {
        products_begin();
        multiply_held<T>(s, held, own, sh.q[at.stage]);
        products_commit();
        products_wait<0>();
        pin(s);
        release(&sh.q_empty[at.stage]);
        end_own();
        if (word.view(0) == kAll) {
          activate<T>(s, left_operand, args.half_alpha, [](int) { return true; });
        } else {
          KeepBits<kQueries> keep;
          keep.set_keys(args.mask, t, t.begin, query);
          activate<T>(s, left_operand, args.half_alpha, [&](int i) { return keep.keeps(i); });
        }
        uint32_t derivative[kQueries / 16][4];
        to_fragment<T>(derivative, s);
        barrier_wait(&sh.derivative_empty[buffer.stage], buffer.parity ^ 1);
#pragma unroll
        for (int g = 0; g < 4; ++g) {
          const auto& d = derivative[g];
          sh.derivative[buffer.stage][g][thread] = make_uint4(d[0], d[1], d[2], d[3]);
        }
        barrier_arrive(&sh.derivative_full[buffer.stage]);
        buffer.advance();
        barrier_wait(&sh.o_full[at.stage], at.parity);
        products_begin();
        multiply<T, kQueries / 16, true>(result, left_operand,
                                         DownRows<kQueries>(sh.grad_o[at.stage]));
        products_commit();
        products_wait<0>();
        pin(result);
        release(&sh.o_empty[at.stage]);
      }
    }
    const int64_t row = t.first_row + t.begin;
    const int rows = min(kKeys, t.n - t.begin);
    const auto store = [&](void* to, int64_t row_stride, int64_t head_stride, float scale,
                           const ResultSums& sums) {
      store_query_rows(result, scale, sh.staging[kMakesDk],
                       static_cast<T*>(to) + row * row_stride + t.head * head_stride, row_stride,
                       rows, args.columns, sums, kOwnBarrier + kMakesDk, t.head,
                       [&] { return sh.queue.sum_row(at_tile); });
    };
    if constexpr (kMakesDk) {
      store(args.dk, args.dk_row, args.dk_head, args.dk_scale, args.dk_sums);
    } else {
      store(args.dv, args.dv_row, args.dv_head, args.dv_scale, args.dv_sums);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(3 * kWarpgroup, 1)
    wide_dkdv_kernel(const __grid_constant__ CUtensorMap q_map,
                     const __grid_constant__ CUtensorMap k_map,
                     const __grid_constant__ CUtensorMap v_map,
                     const __grid_constant__ CUtensorMap o_map, const KeyArgs args,
                     const __grid_constant__ FewSequences few) {
#if SEGUE_SM90A
  extern __shared__ uint8_t raw[];
  auto& sh = *reinterpret_cast<WideKeyShared<T>*>(tile_aligned(raw));
  if (threadIdx.x == 0) {
    sh.queue.init(1 + 2 * 4);
    barrier_init(&sh.k_full, 1);
    barrier_init(&sh.v_full, 1);
    barrier_init(&sh.k_empty, 4);
    barrier_init(&sh.v_empty, 4);
    for (int i = 0; i < 2; ++i) {
      barrier_init(&sh.derivative_full[i], kWarpgroup);
      barrier_init(&sh.derivative_empty[i], kWarpgroup);
    }
    for (int i = 0; i < kStages; ++i) {
      barrier_init(&sh.q_full[i], 1);
      barrier_init(&sh.o_full[i], 1);
      barrier_init(&sh.q_empty[i], 2 * 4);
      barrier_init(&sh.o_empty[i], 2 * 4);
    }
    barrier_init_done();
  }
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    registers_lower<kFetchRegisters>();
    if (threadIdx.x < 32) {
      fetch<T>(sh, args.mask, q_map, k_map, v_map, o_map);
    } else if (threadIdx.x < 64) {
      pick_tiles<kKeys>(sh.queue, args.work, few, Order::kKeys,
                        [&](const Tile& t) { return query_steps(args.mask, t, kKeys, kQueries); });
    }
  } else {
    registers_raise<kComputeRegisters>();
    const int warpgroup = __shfl_sync(~0u, static_cast<int>(threadIdx.x / kWarpgroup), 0);
    if (warpgroup == 1) {
      compute<T, false>(sh, args);
    } else {
      compute<T, true>(sh, args);
    }
  }
#endif
}

}  // namespace

void backward_dkdv_wide(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                        const Tensor& dk, const Tensor& dv, const CudaPlan& plan, int chunk,
                        void* spill, const AttentionSums& sums) {
  SEGUE_ASSERT(spill != nullptr, "attention: wide heads leave their score gradients");
  SEGUE_ASSERT(plan.tile_rows().keys == kKeys, "attention: tiles of another kernel");
  dispatch_element(p.q.dtype, [&](auto zero) {
    using T = decltype(zero);
    constexpr int kBytes = sizeof(WideKeyShared<T>) + 1024;
    static_assert(kBytes <= kMaxSharedBytes);
    static_assert(kFetchRegisters + 2 * kComputeRegisters <= shared_registers(3));
    const KeyArgs args = key_args(p, dk, dv, plan, chunk, spill, sums);
    const int64_t rows = p.offsets.back();
    launch_persistent(exec, reinterpret_cast<const void*>(wide_dkdv_kernel<T>), args.work.tiles,
                      3 * kWarpgroup, kBytes, tile_map(p.q, rows, kQueries),
                      tile_map(p.k, rows, kKeys), tile_map(p.v, rows, kKeys),
                      tile_map(grad_o, rows, kQueries), args, plan.few());
  });
}

}  // namespace segue::attention::hopper
