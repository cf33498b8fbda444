#pragma once

#include <cstdint>

#include "attention/cuda_plan.h"
#include "attention/hstu_attention.h"
#include "attention/target_attention_cuda.h"
#include "ops/kernel.cuh"

/// What the kernels of target attention share: how sequences are cut, and their arguments.
namespace segue::attention::cuda {

inline constexpr int kHeadsAtOnce = 4;

/// One sequence as kernels see it. A task is a chunk of rows together with one target.
struct SequenceView {
  int64_t first_row;
  int32_t n, targets, first_target, first_chunk, first_task;
  int32_t place;  // among the sequences that have targets
  __device__ int32_t chunks() const { return (n + kChunkRows - 1) / kChunkRows; }
};

struct PlanView {
  SequenceView* sequences;
  int32_t *of_chunk, *of_task;  // numbers of sequences
  int32_t* blocks_done;         // of each sequence, in a kernel that runs; zero between kernels
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
  float *sums, *weights;   // all tasks of a target: [targets, heads, dim], [targets, heads]

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

/// How much there is of everything, from the host's copy of the lengths.
struct Counts {
  int64_t sequences = 0, chunks = 0, tasks = 0, targets = 0;
  int64_t most_targets = 0, with_targets = 0;

  explicit Counts(const TargetAttentionParams& p);
  int64_t plan_bytes() const;
  PlanView view(const Tensor& plan) const;
};

/// A float tensor without gaps.
float* dense_floats(const Tensor& t);

/// What both directions need. Room for partial sums comes from the arena: the caller holds the
/// Mark.
TargetArgs target_arguments(const Exec& exec, const TargetAttentionParams& p, const Counts& counts,
                            const Tensor& sums, const Tensor& weights);

/// to[i] = the sum over chunks of from[chunk][i], in order.
template <class V, class Add>
__device__ void add_chunks(const float* from, int64_t each, int chunks, float* to, Add add) {
  const int64_t n = each / int64_t{sizeof(V) / sizeof(float)};
  const V* parts = reinterpret_cast<const V*>(from);
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    V sum{};
#pragma unroll 8
    for (int k = 0; k < chunks; ++k) add(sum, __ldcg(parts + k * n + i));
    reinterpret_cast<V*>(to)[i] = sum;
  }
}

/// By all threads of a block that has written its partial sums: the last of the `blocks` of a
/// sequence adds those of all, always in the same order.
__device__ inline void finish_block(const TargetArgs& a, const SequenceView& s, int32_t sequence,
                                    int blocks) {
  if (!ops::cuda::is_last_block(a.plan.blocks_done + sequence, blocks)) return;
  const int64_t each = int64_t{a.heads} * a.dim;
  const int chunks = s.chunks();
  for (int32_t target = 0; target < s.targets; ++target) {
    const int64_t task = s.first_task + target * chunks, to = s.first_target + target;
    if (each % 4 == 0) {
      add_chunks<float4>(a.partials + task * each, each, chunks, a.sums + to * each,
                         [](float4& sum, const float4& x) {
                           sum.x += x.x, sum.y += x.y, sum.z += x.z, sum.w += x.w;
                         });
    } else {
      add_chunks<float>(a.partials + task * each, each, chunks, a.sums + to * each,
                        [](float& sum, float x) { sum += x; });
    }
    add_chunks<float>(a.partial_weights + task * a.heads, a.heads, chunks, a.weights + to * a.heads,
                      [](float& sum, float x) { sum += x; });
  }
}

}  // namespace segue::attention::cuda
