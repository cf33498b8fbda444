#pragma once

#include <cstdint>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>

/// The tensor-core instructions that every GPU since sm_80 has, for a warp: products of 16 x 16 and
/// 16 x 8 elements of 16 bits, and the loads and copies that bring their operands. Lane l holds, of
/// an 8 x 8 matrix, row l / 4 and columns 2 (l % 4), 2 (l % 4) + 1; transposed, column l / 4 and
/// these two rows.
namespace segue::attention::mma {

template <class T>
inline constexpr bool kIsHalf = std::is_same_v<T, __half>;

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Four 8 x 8 matrices from shared memory: lanes 8 i .. 8 i + 7 say where the rows of matrix i are.
__device__ inline void load_4(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ inline void load_4(uint32_t (&r)[4], const void* p) { load_4(r, shared_address(p)); }
__device__ inline void load_4_transposed(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at)
               : "memory");
}
__device__ inline void load_4_transposed(uint32_t (&r)[4], const void* p) {
  load_4_transposed(r, shared_address(p));
}

#define SEGUE_MMA(TYPE)                                                     \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." TYPE "." TYPE       \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};" \
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
/// d [16 x 8] += a [16 x 16] b [16 x 8]. a: its four quarters, the lower left one second; b: its
/// halves, transposed; d: row l / 4, then row l / 4 + 8.
template <class T>
__device__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kIsHalf<T>) {
    SEGUE_MMA("f16");
  } else {
    SEGUE_MMA("bf16");
  }
}
#undef SEGUE_MMA

template <class T>
__device__ uint32_t pack(float low, float high) {
  uint32_t r;
  if constexpr (kIsHalf<T>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  }
  return r;
}

/// 16 bytes to shared memory in the background, or 16 zero bytes.
__device__ inline void copy_16(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 16 : 0)
               : "memory");
}
/// The same with 4 bytes.
__device__ inline void copy_4(uint32_t to, const void* from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from),
               "r"(exists ? 4 : 0)
               : "memory");
}
/// Copies since the last commit are one group.
__device__ inline void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most kPending groups of this thread are under way.
template <int kPending>
__device__ inline void copies_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace segue::attention::mma
