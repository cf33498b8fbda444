#pragma once

#include <cstdint>

#include "attention/cuda_check.h"
#include "attention/sm90/sm90_kernels.h"
#include "attention/sm90/sm90_sums.cuh"
#include "attention/sm90/sm90_work.cuh"

/// What the kernels of dk and dv share. Letters as in sm90_dkdv.cu.
namespace segue::attention::hopper {

struct KeyArgs {
  WorkList work;
  KernelMask mask;
  void *dk, *dv;
  int64_t dk_row, dk_head, dv_row, dv_head;
  int columns;  // of a head
  float half_alpha, dk_scale, dv_scale;
  uint4* spill;  // score gradients for the kernel that makes dq of them
  ResultSums dk_sums, dv_sums;
};

inline KeyArgs key_args(const HstuAttentionParams& p, const Tensor& dk, const Tensor& dv,
                        const CudaPlan& plan, int chunk, void* spill, const AttentionSums& sums) {
  return {plan.key_tiles(chunk, 0),
          kernel_mask(p.mask),
          dk.data,
          dv.data,
          dk.stride(0),
          dk.stride(1),
          dv.stride(0),
          dv.stride(1),
          static_cast<int>(dk.size(2)),
          static_cast<float>(p.alpha / 2),
          static_cast<float>(p.scale * p.alpha / 2),
          static_cast<float>(p.scale),
          static_cast<uint4*>(spill),
          result_sums(sums.k),
          result_sums(sums.v)};
}

/// Scores become p, packed, and twice the derivative of silu.
template <class T, int kCount, class Keep>
__device__ inline void activate(float (&s)[kCount], uint32_t (&p)[kCount / 8][4], float half_alpha,
                                const Keep& keep) {
#pragma unroll
  for (int i = 0; i < kCount; i += 2) {
    float value[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float y = half_alpha * s[i + e];
      const float th = tanh_fast(y);
      const float w = 1 + th;
      value[e] = y * w;
      s[i + e] = fmaf(value[e], 1 - th, w);
      if (!keep(i + e)) value[e] = s[i + e] = 0;
    }
    p[i / 8][i % 8 / 2] = pack<T>(value[0], value[1]);
  }
}

/// Leaves ds in the order of registers: the other kernel's warps read it the same way.
__device__ inline void spill_gradients(const KeyArgs& args, const Tile& t, int query, int key,
                                       const uint32_t (&ds)[kSpillBlock / 16][4]) {
  uint4* const to =
      args.spill + spill_block(t, query, key) * (kSpillBlockBytes / 16) + threadIdx.x % kWarpgroup;
#pragma unroll
  for (int g = 0; g < 4; ++g) {
    __stcs(to + g * kWarpgroup, make_uint4(ds[g][0], ds[g][1], ds[g][2], ds[g][3]));
  }
}

/// Heads of more than 128 columns; there must be room for what is spilled.
void backward_dkdv_wide(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                        const Tensor& dk, const Tensor& dv, const CudaPlan& plan, int chunk,
                        void* spill, const AttentionSums& sums);

}  // namespace segue::attention::hopper
