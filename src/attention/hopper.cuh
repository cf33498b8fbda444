#pragma once

#include <cstdint>

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "attention/mma.cuh"
#include "tensor/tensor.h"

/// The Hopper instructions our kernels use, one thin function each: barriers in shared memory, bulk
/// tensor copies, warpgroup matrix products, and matrix moves between registers and shared memory.
/// Every tile in shared memory is made of panels of 64 columns (128 bytes), swizzled in 128 bytes
/// and aligned to 1,024.
namespace segue::attention::hopper {

/// Kernels have a body for sm_90a only; other targets get an empty one, which is never launched.
/// (What the body calls is compiled nowhere else, for nothing else calls it.)
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define SEGUE_SM90A 1
#else
#define SEGUE_SM90A 0
#endif

inline constexpr int kPanelColumns = 64;
inline constexpr int kPanelRowBytes = 128;

using mma::kIsHalf;
using mma::pack;
using mma::shared_address;

/// Where tiles can begin in the shared memory of a block, which is 1,023 bytes larger for it. (An
/// offset from `raw`: of an address rounded as a number the compiler no longer knows the kind.)
__device__ inline uint8_t* tile_aligned(uint8_t* raw) {
  return raw + (-shared_address(raw) & 1023u);
}

/// By a whole warp: lane 0 loads, and the compiler knows the result to be the same in all lanes.
/// The lane that reads is then the one that arrives at the barrier behind which the word changes.
__device__ inline uint32_t load_uniform(const uint32_t* p) {
  uint32_t x = 0;
  asm volatile(
      "{\n"
      ".reg .pred first;\n"
      "setp.eq.u32 first, %2, 0;\n"
      "@first ld.shared.b32 %0, [%1];\n"
      "}"
      : "+r"(x)
      : "r"(shared_address(p)), "r"(threadIdx.x & 31)
      : "memory");
  return __shfl_sync(~0u, x, 0);
}

// ---- barriers in shared memory ----

__device__ inline void barrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals));
}
/// After the last barrier_init, before other threads or the copy engine see the barriers.
__device__ inline void barrier_init_done() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_expect(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
/// The same without arriving.
__device__ inline void barrier_expect_more(uint64_t* barrier, int bytes) {
  asm volatile(
      "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ inline void barrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
__device__ inline void barrier_wait(uint64_t* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Position in a ring of kStages buffers. A consumer waits for `parity`, a producer for the
/// opposite one, so that its first round passes.
template <int kStages>
struct RingPosition {
  int stage = 0;
  int parity = 0;

  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

/// Named barriers among some warps of the block; ids 1 to 15.
__device__ inline void named_sync(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void named_arrive(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// Between ordinary stores to shared memory and a copy or matrix product that uses it, and between
/// ordinary loads from it and a copy that overwrites it.
__device__ inline void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

template <int kRegisters>
__device__ inline void registers_raise() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void registers_lower() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- bulk tensor copies ----

__device__ inline void prefetch_map(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
/// kRows rows of a head, from `row` on, panel by panel. Rows past the end and columns that a head
/// does not have arrive as zeros.
template <int kRows, class T, size_t kCount>
__device__ inline void load_tile(T (&to)[kCount], const CUtensorMap* map, uint64_t* barrier,
                                 int row, int head) {
  constexpr int kPanels = static_cast<int>(kCount) / (kRows * kPanelColumns);
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], "
        "[%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(to) + panel * kRows * kPanelRowBytes),
        "l"(map), "r"(shared_address(barrier)), "r"(panel * kPanelColumns), "r"(row), "r"(head)
        : "memory");
  }
}

/// The way back, by a whole warp: kPanels panels from shared memory to kRows rows of a head, in the
/// background. The writers have called fence_async_proxy and met.
template <int kRows, int kPanels>
__device__ inline void store_tile(const CUtensorMap* map, uint32_t from, int row, int head) {
#pragma unroll
  for (int panel = 0; panel < kPanels; ++panel) {
    asm volatile(
        "{\n"
        ".reg .pred one;\n"
        "elect.sync _|one, 0xffffffff;\n"
        "@one cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4}], "
        "[%1];\n"
        "@one cp.async.bulk.commit_group;\n"
        "}" ::"l"(map),
        "r"(from + panel * kRows * kPanelRowBytes), "r"(panel * kPanelColumns), "r"(row), "r"(head)
        : "memory");
  }
}
/// Until what this warp stored so has left shared memory; until all of it is where it belongs.
__device__ inline void stores_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  __syncwarp();
}
__device__ inline void stores_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

/// Contiguous bytes that nobody reads again: they need not stay in the cache.
__device__ inline void load_once(void* to, const void* from, int bytes, uint64_t* barrier) {
  asm volatile(
      "{\n"
      ".reg .b64 policy;\n"
      "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], policy;\n"
      "}" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// ---- warpgroup matrix products ----

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Until at most kPending committed groups are unfinished.
template <int kPending>
__device__ inline void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving uses of accumulators across a wait.
template <int kCount>
__device__ inline void pin(float (&x)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// Makes x be computed here. The assembler likes to move arithmetic behind the next wait for a
/// product, as if waiting cost nothing; so something it cannot move reads every element. (All bits
/// of all elements set is no result we could have, and a nap of no length does no harm.)
template <int kCount>
__device__ inline void settle(const float (&x)[kCount]) {
  uint32_t all = ~0u;
#pragma unroll
  for (int i = 0; i < kCount; ++i) all &= __float_as_uint(x[i]);
  asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, %0, 0xffffffff;\n@p nanosleep.u32 0;\n}" ::"r"(all)
               : "memory");
}

/// Descriptor of an operand: only the lower half depends on the address, and adding to it never
/// carries (an addition of 64 bits between two products would hold up the second).
__device__ inline uint64_t descriptor(uint32_t low) {
  constexpr uint32_t kSwizzle128 = 1u << 30;
  constexpr uint32_t kEightRows = 8 * kPanelRowBytes / 16;  // from one group of 8 rows to the next
  return static_cast<uint64_t>(kSwizzle128 | kEightRows) << 32 | low;
}

/// Operand in shared memory whose rows run along the summed dimension ("K-major"): slice k is
/// columns 16 k .. 16 k + 15 of a tile of kRows rows.
template <int kRows>
struct AlongRows {
  static constexpr bool kTransposed = false;
  uint32_t low;

  __device__ explicit AlongRows(const void* tile) : low(shared_address(tile) >> 4 | 1u << 16) {}
  __device__ uint64_t slice(int k) const {
    return descriptor(low +
                      static_cast<uint32_t>((k / 4) * (kRows * kPanelRowBytes / 16) + (k % 4) * 2));
  }
};

/// The summed dimension runs down the rows ("MN-major"): slice k is rows 16 k .. 16 k + 15.
template <int kRows>
struct DownRows {
  static constexpr bool kTransposed = true;
  uint32_t low;

  __device__ explicit DownRows(const void* tile)
      : low(shared_address(tile) >> 4 | uint32_t{kRows * kPanelRowBytes / 16} << 16) {}
  __device__ uint64_t slice(int k) const {
    return descriptor(low + static_cast<uint32_t>(k * 128));
  }
};

#define SEGUE_F8(d, i)                                                                  \
  "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), \
      "+f"(d[(i) + 5]), "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define SEGUE_F32(d) SEGUE_F8(d, 0), SEGUE_F8(d, 8), SEGUE_F8(d, 16), SEGUE_F8(d, 24)
#define SEGUE_F64(d) \
  SEGUE_F32(d), SEGUE_F8(d, 32), SEGUE_F8(d, 40), SEGUE_F8(d, 48), SEGUE_F8(d, 56)
#define SEGUE_F128(d)                                                               \
  SEGUE_F64(d), SEGUE_F8(d, 64), SEGUE_F8(d, 72), SEGUE_F8(d, 80), SEGUE_F8(d, 88), \
      SEGUE_F8(d, 96), SEGUE_F8(d, 104), SEGUE_F8(d, 112), SEGUE_F8(d, 120)
#define SEGUE_L32                                                                               \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31}"
#define SEGUE_L64                                                                                \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,"  \
  "%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"

#define SEGUE_L128                                                                          \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23," \
  "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,"    \
  "%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,"    \
  "%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,"    \
  "%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,"      \
  "%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,"   \
  "%123,%124,%125,%126,%127}"

#define SEGUE_WGMMA_RS(SHAPE, TYPE, LIST, OUT, A0, A1, A2, A3, B, S, T)                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " S                                         \
               ", 0;\n"                                                                      \
               "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE " " LIST ", {" A0 \
               "," A1 "," A2 "," A3 "}, " B ", p, 1, 1, " T ";\n}\n"                         \
               : OUT                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add ? 1 : 0),       \
                 "n"(kTransposed ? 1 : 0))
#define SEGUE_WGMMA_SS(SHAPE, TYPE, LIST, OUT, A, B, S, T)                                        \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " S                                              \
               ", 0;\n"                                                                           \
               "wgmma.mma_async.sync.aligned." SHAPE ".f32." TYPE "." TYPE " " LIST ", " A ", " B \
               ", p, 1, 1, 0, " T ";\n}\n"                                                        \
               : OUT                                                                              \
               : "l"(a), "l"(b), "n"(kAdd ? 1 : 0), "n"(kTransposed ? 1 : 0))

/// Calls f with a value of the element type of 16-bit tensors.
template <class F>
void dispatch_element(DType dtype, F&& f) {
  if (dtype == DType::kF16) return f(__half{});
  f(__nv_bfloat16{});
}

/// d[64 x kN] = or += a[64 x 16] b[16 x kN], a in registers.
template <class T, bool kTransposed>
__device__ inline void product(float (&d)[32], const uint32_t* a, uint64_t b, bool add) {
  if constexpr (kIsHalf<T>) {
    SEGUE_WGMMA_RS("m64n64k16", "f16", SEGUE_L32, SEGUE_F32(d), "%32", "%33", "%34", "%35", "%36",
                   "%37", "%38");
  } else {
    SEGUE_WGMMA_RS("m64n64k16", "bf16", SEGUE_L32, SEGUE_F32(d), "%32", "%33", "%34", "%35", "%36",
                   "%37", "%38");
  }
}
template <class T, bool kTransposed>
__device__ inline void product(float (&d)[64], const uint32_t* a, uint64_t b, bool add) {
  if constexpr (kIsHalf<T>) {
    SEGUE_WGMMA_RS("m64n128k16", "f16", SEGUE_L64, SEGUE_F64(d), "%64", "%65", "%66", "%67", "%68",
                   "%69", "%70");
  } else {
    SEGUE_WGMMA_RS("m64n128k16", "bf16", SEGUE_L64, SEGUE_F64(d), "%64", "%65", "%66", "%67", "%68",
                   "%69", "%70");
  }
}
template <class T, bool kTransposed>
__device__ inline void product(float (&d)[128], const uint32_t* a, uint64_t b, bool add) {
  if constexpr (kIsHalf<T>) {
    SEGUE_WGMMA_RS("m64n256k16", "f16", SEGUE_L128, SEGUE_F128(d), "%128", "%129", "%130", "%131",
                   "%132", "%133", "%134");
  } else {
    SEGUE_WGMMA_RS("m64n256k16", "bf16", SEGUE_L128, SEGUE_F128(d), "%128", "%129", "%130", "%131",
                   "%132", "%133", "%134");
  }
}
/// The same with a in shared memory, its rows along the sum.
template <class T, bool kTransposed, bool kAdd>
__device__ inline void product(float (&d)[32], uint64_t a, uint64_t b) {
  if constexpr (kIsHalf<T>) {
    SEGUE_WGMMA_SS("m64n64k16", "f16", SEGUE_L32, SEGUE_F32(d), "%32", "%33", "%34", "%35");
  } else {
    SEGUE_WGMMA_SS("m64n64k16", "bf16", SEGUE_L32, SEGUE_F32(d), "%32", "%33", "%34", "%35");
  }
}
template <class T, bool kTransposed, bool kAdd>
__device__ inline void product(float (&d)[64], uint64_t a, uint64_t b) {
  if constexpr (kIsHalf<T>) {
    SEGUE_WGMMA_SS("m64n128k16", "f16", SEGUE_L64, SEGUE_F64(d), "%64", "%65", "%66", "%67");
  } else {
    SEGUE_WGMMA_SS("m64n128k16", "bf16", SEGUE_L64, SEGUE_F64(d), "%64", "%65", "%66", "%67");
  }
}

#undef SEGUE_WGMMA_SS
#undef SEGUE_WGMMA_RS
#undef SEGUE_L128
#undef SEGUE_L64
#undef SEGUE_L32
#undef SEGUE_F128
#undef SEGUE_F64
#undef SEGUE_F32
#undef SEGUE_F8

/// d = or += a b over kSlices slices of 16; a is a register fragment [slice][4]. `add` must be the
/// same in all lanes, and the compiler must know.
template <class T, int kSlices, int kCount, class B>
__device__ inline void multiply(float (&d)[kCount], const uint32_t (&a)[kSlices][4], const B& b,
                                bool add) {
  product<T, B::kTransposed>(d, a[0], b.slice(0), add);
#pragma unroll
  for (int k = 1; k < kSlices; ++k) product<T, B::kTransposed>(d, a[k], b.slice(k), true);
}
template <class T, int kSlices, bool kAdd, int kCount, class B>
__device__ inline void multiply(float (&d)[kCount], const uint32_t (&a)[kSlices][4], const B& b) {
  multiply<T, kSlices>(d, a, b, kAdd);
}
template <class T, int kSlices, bool kAdd, int kCount, int kRowsA, class B>
__device__ inline void multiply(float (&d)[kCount], const AlongRows<kRowsA>& a, const B& b) {
  product<T, B::kTransposed, kAdd>(d, a.slice(0), b.slice(0));
#pragma unroll
  for (int k = 1; k < kSlices; ++k) product<T, B::kTransposed, true>(d, a.slice(k), b.slice(k));
}

// ---- registers and shared memory ----

/// Address of 16 bytes of a swizzled tile of kRows rows: row, and columns 8 chunk .. 8 chunk + 7.
template <int kRows>
__device__ inline uint32_t chunk_address(uint32_t tile, int row, int chunk) {
  const int panel = chunk >> 3;
  return tile + static_cast<uint32_t>(panel * kRows * kPanelRowBytes + row * kPanelRowBytes +
                                      (((chunk & 7) ^ (row & 7)) << 4));
}

/// Address of the 16 bytes 2 k chunks (k < 4) to the right of those at `address`, in panels of
/// kRows rows. Swizzling is an exclusive or, so one register does for all of them; as so many
/// addresses the compiler would keep them in memory.
template <int kRows>
__device__ inline uint32_t right_of(uint32_t address, int k) {
  return (address ^ static_cast<uint32_t>(k % 4 * 32)) +
         static_cast<uint32_t>(k / 4 * kRows * kPanelRowBytes);
}

/// Rows of this warpgroup's 64-row tile as the left operand of a product, [slice][4]. Before the
/// copy engine is told that there is room, fence_async_proxy: else its next rows can arrive before
/// these loads, which an arrival at a barrier does not wait for (once in 10^6 tiles, in fact).
template <int kSlices>
__device__ inline void load_fragment(uint32_t (&a)[kSlices][4], const void* tile) {
  const int lane = threadIdx.x & 31;
  const int row = (threadIdx.x >> 5 & 3) * 16 + (lane & 15);
  const uint32_t first = chunk_address<64>(shared_address(tile), row, lane >> 4);
#pragma unroll
  for (int k = 0; k < kSlices; ++k) mma::load_4(a[k], right_of<64>(first, k));
}

/// Transposes the 8 x 8 matrix of 2-byte elements that a warp holds in one register.
__device__ inline uint32_t transpose_8x8(uint32_t x) {
  uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// An accumulator as the left operand of the next product: the layouts agree.
template <class T, int kCount, int kSlices>
__device__ inline void to_fragment(uint32_t (&a)[kSlices][4], const float (&d)[kCount]) {
  static_assert(kSlices * 8 == kCount);
#pragma unroll
  for (int k = 0; k < kSlices; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[k][i] = pack<T>(d[8 * k + 2 * i], d[8 * k + 2 * i + 1]);
  }
}

__device__ inline float tanh_fast(float x) {
  float y;
  asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace segue::attention::hopper
