#include <algorithm>
#include <cstdint>
#include <numeric>

#include <cub/block/block_scan.cuh>

#include "attention/target_attention_cuda.h"
#include "attention/target_attention_plan.cuh"

// Sequences are cut into chunks of rows, by their lengths alone. Sums over rows (z and p_sum, or
// their counterparts in backward) are made per chunk and target, then added in order of chunks:
// the same bits on every run. The gradient of a row is finished by the warp that owns the row.

namespace segue::attention::cuda {
namespace {

using ops::cuda::check_launch;
using ops::cuda::device_ptr;
using ops::cuda::kThreads;
using ops::cuda::kWarp;
using ops::cuda::kWarpsPerBlock;
using ops::cuda::Matrix;
using ops::cuda::warp_sum;

constexpr int kPlanThreads = 1024;

/// Prefix sums over the sequences, by one block; every chunk and task learns its sequence.
__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const int64_t* offsets, const int64_t* num_targets, int32_t count, PlanView plan) {
  using Scan = cub::BlockScan<int32_t, kPlanThreads>;
  __shared__ typename Scan::TempStorage storage;
  int32_t chunks_before = 0, tasks_before = 0, targets_before = 0, places_before = 0;
  for (int32_t base = 0; base < count; base += kPlanThreads) {
    const int32_t b = base + static_cast<int32_t>(threadIdx.x);
    SequenceView s{};
    if (b < count) {
      s.first_row = offsets[b];
      s.n = static_cast<int32_t>(offsets[b + 1] - offsets[b]);
      s.targets = static_cast<int32_t>(num_targets[b]);
    }
    const int32_t chunks = s.chunks(), tasks = chunks * s.targets;
    const auto scan = [&](int32_t value, int32_t& before) {
      int32_t sum = 0, total = 0;
      Scan(storage).ExclusiveSum(value, sum, total);
      __syncthreads();
      const int32_t result = before + sum;
      before += total;
      return result;
    };
    s.first_chunk = scan(chunks, chunks_before);
    s.first_task = scan(tasks, tasks_before);
    s.first_target = scan(s.targets, targets_before);
    s.place = scan(s.targets > 0 ? 1 : 0, places_before);
    if (b >= count) continue;
    plan.sequences[b] = s;
    for (int32_t i = 0; i < chunks; ++i) plan.of_chunk[s.first_chunk + i] = b;
    for (int32_t i = 0; i < tasks; ++i) plan.of_task[s.first_task + i] = b;
    plan.blocks_done[b] = 0;
  }
}

template <class L>
__device__ float dot(const L& a, const L& b, int columns) {
  float sum = 0;
  L::for_each(columns, [&](int i, int) {
    for (int j = 0; j < L::kW; ++j) sum += a.v[i][j] * b.v[i][j];
  });
  return warp_sum(sum);
}
template <class L>
__device__ void add_scaled(L& to, float factor, const L& x, int columns) {
  L::for_each(columns, [&](int i, int) {
    for (int j = 0; j < L::kW; ++j) to.v[i][j] += factor * x.v[i][j];
  });
}

/// Sums over the rows of one task, for up to four heads: of p_j h_j and p_j, or in backward of
/// ds_j h_j and ds_j.
template <class T, class L, bool kBackward>
__global__ void __launch_bounds__(kThreads) sums_kernel(TargetArgs a, Matrix<const T> h) {
  extern __shared__ float shared[];  // [warps][dim]
  __shared__ float shared_weights[kWarpsPerBlock];
  constexpr int kRows = 2;  // in flight per warp
  const int32_t sequence = a.plan.of_task[blockIdx.x];
  const SequenceView s = a.plan.sequences[sequence];
  const int32_t local = static_cast<int32_t>(blockIdx.x) - s.first_task;
  const int32_t chunk = local % s.chunks();
  const TaskView task(a, s, local / s.chunks(), chunk);
  const int first_head = static_cast<int>(blockIdx.y) * kHeadsAtOnce;
  const int heads = min(kHeadsAtOnce, a.heads - first_head);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int32_t end = min(s.n, (chunk + 1) * kChunkRows);

  L sums[kHeadsAtOnce] = {};
  float weights[kHeadsAtOnce] = {};
  for (int32_t first = chunk * kChunkRows + warp * kRows; first < end;
       first += kWarpsPerBlock * kRows) {
    L rows[kRows] = {};
    bool visible[kRows];
    for (int r = 0; r < kRows; ++r) {
      visible[r] = first + r < end && task.sees.sees(task.target_row, first + r);
      if (visible[r]) rows[r].load_row(h.row(s.first_row + first + r), a.dim);
    }
#pragma unroll
    for (int g = 0; g < kHeadsAtOnce; ++g) {
      if (g >= heads) break;
      const int64_t at = a.at(task.global_target, first_head + g);
      L query{}, gradient{};
      query.load_row(a.key_query + at * a.dim, a.dim);
      if constexpr (kBackward) gradient.load_row(a.dz + at * a.dim, a.dim);
      for (int r = 0; r < kRows; ++r) {
        if (!visible[r]) continue;
        const ops::cuda::Silu<float> silu(dot(rows[r], query, a.dim) + a.key_bias[at]);
        float weight = silu.value * a.scale;
        if constexpr (kBackward) {
          weight = (dot(rows[r], gradient, a.dim) + a.dp_sum[at]) * silu.derivative * a.scale;
        }
        weights[g] += weight;
        add_scaled(sums[g], weight, rows[r], a.dim);
      }
    }
  }
#pragma unroll
  for (int g = 0; g < kHeadsAtOnce; ++g) {
    if (g >= heads) break;
    sums[g].store_row(shared + warp * a.dim, a.dim);
    if (threadIdx.x % kWarp == 0) shared_weights[warp] = weights[g];
    __syncthreads();
    const int64_t at = static_cast<int64_t>(blockIdx.x) * a.heads + first_head + g;
    for (int c = static_cast<int>(threadIdx.x); c < a.dim; c += kThreads) {
      float sum = 0;
      for (int w = 0; w < kWarpsPerBlock; ++w) sum += shared[w * a.dim + c];
      a.partials[at * a.dim + c] = sum;
    }
    if (threadIdx.x == 0) {
      float sum = 0;
      for (const float weight : shared_weights) sum += weight;
      a.partial_weights[at] = sum;
    }
    __syncthreads();
  }
  finish_block(a, s, sequence, s.chunks() * s.targets * static_cast<int>(gridDim.y));
}

/// dh of the rows of one chunk: the sum over targets and heads of ds_j q' + p_j dz.
template <class T, class L>
__global__ void __launch_bounds__(kThreads)
    row_gradients_kernel(TargetArgs a, Matrix<const T> h, Matrix<T> dh) {
  constexpr int kRows = 2;
  const SequenceView s = a.plan.sequences[a.plan.of_chunk[blockIdx.x]];
  const int32_t chunk = static_cast<int32_t>(blockIdx.x) - s.first_chunk;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int32_t end = min(s.n, (chunk + 1) * kChunkRows);
  for (int32_t first = chunk * kChunkRows + warp * kRows; first < end;
       first += kWarpsPerBlock * kRows) {
    L rows[kRows] = {}, gradients[kRows] = {};
    for (int r = 0; r < kRows; ++r) {
      if (first + r < end) rows[r].load_row(h.row(s.first_row + first + r), a.dim);
    }
    for (int32_t target = 0; target < s.targets; ++target) {
      const TaskView task(a, s, target, chunk);
      for (int g = 0; g < a.heads; ++g) {
        const int64_t at = a.at(task.global_target, g);
        L query{}, dz{};
        query.load_row(a.key_query + at * a.dim, a.dim);
        dz.load_row(a.dz + at * a.dim, a.dim);
        for (int r = 0; r < kRows; ++r) {
          if (first + r >= end || !task.sees.sees(task.target_row, first + r)) continue;
          const ops::cuda::Silu<float> silu(dot(rows[r], query, a.dim) + a.key_bias[at]);
          const float ds = (dot(rows[r], dz, a.dim) + a.dp_sum[at]) * silu.derivative * a.scale;
          add_scaled(gradients[r], ds, query, a.dim);
          add_scaled(gradients[r], silu.value * a.scale, dz, a.dim);
        }
      }
    }
    for (int r = 0; r < kRows; ++r) {
      if (first + r < end) gradients[r].store_row(dh.row(s.first_row + first + r), a.dim);
    }
  }
}

template <class T, class L, bool kBackward>
void launch_sums(const Exec& exec, const TargetArgs& a, int64_t tasks, const Tensor& h) {
  const auto shared = static_cast<size_t>(kWarpsPerBlock * a.dim) * sizeof(float);
  const auto kernel = sums_kernel<T, L, kBackward>;
  ops::cuda::allow_shared_memory(kernel, shared);
  const dim3 grid(static_cast<unsigned>(tasks),
                  static_cast<unsigned>(ops::cuda::divide_up(a.heads, kHeadsAtOnce)));
  kernel<<<grid, kThreads, shared, ops::cuda::stream_of(exec)>>>(a, ops::cuda::input_of<T>(h));
  check_launch();
}

/// Calls f(value of the type of h, Lanes for its rows). Rows that are not multiples of 8, not
/// aligned or wide take a slower path.
template <class F>
void dispatch(const TargetAttentionParams& p, const Tensor& dh, F&& f) {
  using ops::cuda::Lanes;
  constexpr int64_t kMost = 2048;
  const int64_t columns = p.h.size(1);
  if (columns > kMost) {
    fail(ErrorCode::kUnsupported, "attention of targets alone takes rows of up to " +
                                      std::to_string(kMost) + " columns on a GPU, not " +
                                      std::to_string(columns) +
                                      "; set model.identities.last_layer_targets = false");
  }
  const bool vectorize = ops::cuda::can_vectorize(columns, {p.h, p.key_query, dh});
  ops::cuda::dispatch_type(p.h.dtype, [&](auto zero_value) {
    if (vectorize && columns <= 256) return f(zero_value, Lanes<8, 1>{});
    if (vectorize && columns <= 512) return f(zero_value, Lanes<8, 2>{});
    if (vectorize && columns <= 1024) return f(zero_value, Lanes<8, 4>{});
    f(zero_value, Lanes<1, 64>{});
  });
}

}  // namespace

Counts::Counts(const TargetAttentionParams& p) {
  sequences = static_cast<int64_t>(p.num_targets.size());
  for (size_t b = 0; b < p.num_targets.size(); ++b) {
    const int64_t n = p.offsets[b + 1] - p.offsets[b];
    SEGUE_ASSERT(p.num_targets[b] >= 0 && p.num_targets[b] <= n,
                 "target attention: more targets than rows");
    const int64_t pieces = ops::cuda::divide_up(n, kChunkRows);
    chunks += pieces;
    tasks += pieces * p.num_targets[b];
    targets += p.num_targets[b];
    most_targets = std::max(most_targets, p.num_targets[b]);
    with_targets += p.num_targets[b] > 0 ? 1 : 0;
  }
}

int64_t Counts::plan_bytes() const {
  return sequences * static_cast<int64_t>(sizeof(SequenceView)) +
         (chunks + tasks + sequences) * size_of(DType::kI32);
}

PlanView Counts::view(const Tensor& plan) const {
  SEGUE_ASSERT(plan.bytes() == plan_bytes(), "target attention: the plan of other sequences");
  PlanView v{};
  v.sequences = static_cast<SequenceView*>(plan.data);
  v.of_chunk = reinterpret_cast<int32_t*>(v.sequences + sequences);
  v.of_task = v.of_chunk + chunks;
  v.blocks_done = v.of_task + tasks;
  return v;
}

float* dense_floats(const Tensor& t) {
  SEGUE_ASSERT(t.is_contiguous(), "target attention: tensors by target are dense");
  return device_ptr<float>(t);
}

TargetArgs target_arguments(const Exec& exec, const TargetAttentionParams& p, const Counts& counts,
                            const Tensor& sums, const Tensor& weights) {
  SEGUE_ASSERT(counts.targets == p.key_query.size(0),
               "target attention: key_query has another number of targets");
  SEGUE_ASSERT(p.mask.target_group == 1, "target attention: targets must not see each other");
  SEGUE_ASSERT(p.h.rank == 2 && p.h.size(0) >= p.offsets.back(),
               "target attention: h ends too early");
  TargetArgs a{};
  a.plan = counts.view(p.plan ? p.plan : cuda::target_attention_plan(exec, p));
  a.mask = kernel_mask(p.mask);
  a.heads = static_cast<int32_t>(p.key_query.size(1));
  a.dim = static_cast<int32_t>(p.h.size(1));
  a.scale = static_cast<float>(p.scale);
  a.key_query = dense_floats(p.key_query);
  a.key_bias = dense_floats(p.key_bias);
  a.partials = device_ptr<float>(exec.arena->tensor(DType::kF32, {counts.tasks, a.heads, a.dim}));
  a.partial_weights = device_ptr<float>(exec.arena->tensor(DType::kF32, {counts.tasks, a.heads}));
  a.sums = dense_floats(sums);
  a.weights = dense_floats(weights);
  return a;
}

Tensor target_attention_plan(const Exec& exec, const TargetAttentionParams& p) {
  const Counts counts(p);
  if (counts.tasks == 0) return {};
  const Tensor plan = exec.arena->tensor(DType::kU8, {counts.plan_bytes()});
  const Arena::Mark mark(*exec.arena);
  const auto on_device = [&](const Tensor& there, std::span<const int64_t> here) {
    if (there) return device_ptr<int64_t>(there);
    const Tensor copied = exec.arena->tensor(DType::kI64, {static_cast<int64_t>(here.size())});
    copy(copied, host_view(here), exec.stream);
    return device_ptr<int64_t>(copied);
  };
  plan_kernel<<<1, kPlanThreads, 0, ops::cuda::stream_of(exec)>>>(
      on_device(p.device_offsets, p.offsets), on_device(p.device_num_targets, p.num_targets),
      static_cast<int32_t>(counts.sequences), counts.view(plan));
  check_launch();
  return plan;
}

void target_attention_forward(const Exec& exec, const TargetAttentionParams& p, const Tensor& z,
                              const Tensor& p_sum) {
  const Arena::Mark mark(*exec.arena);
  const Counts counts(p);
  if (counts.tasks == 0) return;
  const TargetArgs a = target_arguments(exec, p, counts, z, p_sum);
  dispatch(p, {}, [&](auto zero_value, auto lanes) {
    launch_sums<decltype(zero_value), decltype(lanes), false>(exec, a, counts.tasks, p.h);
  });
}

void target_attention_backward(const Exec& exec, const TargetAttentionParams& p, const Tensor& dz,
                               const Tensor& dp_sum, const Tensor& dh, const Tensor& dkey_query,
                               const Tensor& dkey_bias) {
  const Arena::Mark mark(*exec.arena);
  const Counts counts(p);
  if (counts.tasks == 0) return zero(dh, exec.stream);
  TargetArgs a = target_arguments(exec, p, counts, dkey_query, dkey_bias);
  a.dz = dense_floats(dz);
  a.dp_sum = dense_floats(dp_sum);
  dispatch(p, dh, [&](auto zero_value, auto lanes) {
    using T = decltype(zero_value);
    using L = decltype(lanes);
    launch_sums<T, L, true>(exec, a, counts.tasks, p.h);
    row_gradients_kernel<T, L>
        <<<static_cast<unsigned>(counts.chunks), kThreads, 0, ops::cuda::stream_of(exec)>>>(
            a, ops::cuda::input_of<T>(p.h), ops::cuda::matrix_of<T>(dh));
    check_launch();
  });
}

}  // namespace segue::attention::cuda
