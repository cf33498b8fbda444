#pragma once

#include <cstdint>

#include "attention/cuda_plan.h"
#include "ops/kernel.cuh"

/// What the kernels of target attention share: how sequences are cut, and their arguments.
namespace segue::attention::cuda {

inline constexpr int kChunkRows = 256;
inline constexpr int kHeadsAtOnce = 4;

/// One sequence as kernels see it. A task is a chunk of rows together with one target.
struct SequenceView {
  int64_t first_row;
  int32_t n, targets, first_target, first_chunk, first_task;
  __device__ int32_t chunks() const { return (n + kChunkRows - 1) / kChunkRows; }
};

struct PlanView {
  SequenceView* sequences;
  int32_t *of_chunk, *of_task, *of_target;  // numbers of sequences
};

struct TargetArgs {
  PlanView plan;
  KernelMask mask;
  int32_t heads, dim;
  float scale;
  const float *key_query, *key_bias;  // [targets, heads, dim], [targets, heads]
  const float *dz, *dp_sum;           // backward only
  // Sums over the rows of a task: of p_j h_j and p_j, or in backward of ds_j h_j and ds_j.
  float* partials;         // [tasks, heads, dim]
  float* partial_weights;  // [tasks, heads]

  __device__ int64_t at(int64_t target, int head) const { return target * heads + head; }
};

/// A task, or a chunk with one of its targets.
struct TaskView {
  int64_t task, global_target;
  int32_t target_row;
  KernelMask::Row sees;

  __device__ TaskView(const TargetArgs& a, const SequenceView& s, int32_t target, int32_t chunk)
      : task(s.first_task + target * s.chunks() + chunk),
        global_target(s.first_target + target),
        target_row(s.n - s.targets + target),
        sees(a.mask.row(target_row, s.n, s.targets)) {}
};

}  // namespace segue::attention::cuda
