#pragma once

#include <cstdint>

#include "attention/hopper.cuh"

/// A warpgroup's 64 rows of results, from its registers to global memory.
namespace segue::attention::hopper {

/// scale * d to rows of global memory: panel by panel through this warp's 16 rows of a panel of 64
/// rows (kStagingBytes), then 16 bytes a lane. Rows from `rows` on (counted in the 64) and columns
/// from `columns` on are not written. staged(half): called by the whole warp while its rows of a
/// panel lie there.
inline constexpr int kStagingBytes = 64 * kPanelRowBytes;
template <class T, int kCount, class Staged>
__device__ inline void store_rows(const float (&d)[kCount], float scale, void* staging, T* to,
                                  int64_t stride, int rows, int columns, const Staged& staged) {
  const int lane = threadIdx.x & 31;
  const int first = (threadIdx.x >> 5 & 3) * 16;
  const uint32_t panel = shared_address(staging);
#pragma unroll
  for (int half = 0; half < kCount / 32; ++half) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      uint32_t r[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 32 * half + 8 * k + 2 * i;
        r[i] = pack<T>(scale * d[at], scale * d[at + 1]);
      }
      const uint32_t at = chunk_address<64>(panel, first + (lane & 15), 2 * k + (lane >> 4));
      asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(at),
                   "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                   : "memory");
    }
    __syncwarp();
    uint32_t r[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                   : "=r"(r[i][0]), "=r"(r[i][1]), "=r"(r[i][2]), "=r"(r[i][3])
                   : "r"(chunk_address<64>(panel, first + 4 * i + lane / 8, lane % 8))
                   : "memory");
    }
    staged(half);
    const int column = half * kPanelColumns + lane % 8 * 8;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + 4 * i + lane / 8;
      if (row < rows && column < columns) {
        asm volatile("st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to + row * stride + column),
                     "r"(r[i][0]), "r"(r[i][1]), "r"(r[i][2]), "r"(r[i][3])
                     : "memory");
      }
    }
    __syncwarp();
  }
}

/// scale * d to rows of global memory in the background: `map` stores boxes of 16 rows, which this
/// warp puts into its quarter of `staging` (as many bytes as 64 rows have). `row` is the first one
/// of the 64 in the map, which leaves out columns that a head does not have, `to` its place; where
/// a sequence ends inside the 16 rows lanes store what there is.
template <class T, int kCount>
__device__ inline void store_rows_later(const float (&d)[kCount], float scale, void* staging,
                                        const CUtensorMap* map, int row, int head, T* to,
                                        int64_t stride, int rows, int columns) {
  constexpr int kPanels = kCount / 32;
  const int lane = threadIdx.x & 31;
  const int first = __shfl_sync(~0u, static_cast<int>(threadIdx.x >> 5 & 3) * 16, 0);
  const uint32_t mine =
      shared_address(staging) + static_cast<uint32_t>(first * kPanels * kPanelRowBytes);
  const uint32_t chunk = chunk_address<16>(mine, lane & 15, lane >> 4);
  stores_wait_read();
#pragma unroll
  for (int k = 0; k < kCount / 8; ++k) {
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      r[i] = pack<T>(scale * d[8 * k + 2 * i], scale * d[8 * k + 2 * i + 1]);
    }
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(
                     right_of<16>(chunk, k)),
                 "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
                 : "memory");
  }
  const int left = __shfl_sync(~0u, rows - first, 0);
  if (left >= 16) {
    fence_async_proxy();
    __syncwarp();
    store_tile<16, kPanels>(map, mine, row + first, head);
    return;
  }
  __syncwarp();
#pragma unroll 1
  for (int i = 0; i < 4 * kPanels; ++i) {
    const int at = (32 * i + lane) / (8 * kPanels);
    const int column = (32 * i + lane) % (8 * kPanels) * 8;
    uint32_t r[4];
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(chunk_address<16>(mine, at, column / 8))
                 : "memory");
    if (at < left && column < columns) {
      asm volatile(
          "st.global.v4.b32 [%0], {%1,%2,%3,%4};" ::"l"(to + (first + at) * stride + column),
          "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3])
          : "memory");
    }
  }
  __syncwarp();
}

}  // namespace segue::attention::hopper
