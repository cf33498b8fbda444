#include <cstdint>

#include "attention/target_attention_cuda.h"
#include "attention/target_attention_plan.cuh"
#include "attention/target_attention_tiles.cuh"

// Target attention together with the norm before it, by tensor cores and in one pass over the rows
// x, which are bf16. With xhat = (x - mean) rstd, the norm's value is h = weight xhat + bias, and
// all there is to compute from it is linear in x once mean and rstd are known:
//   h_j.q'      = rstd (x_j.(weight q') - mean sum(weight q')) + bias.q'
//   sum_j p_j h_j = weight zhat + bias sum_j p_j,  zhat = sum_j p_j xhat_j
// so h is neither stored nor even formed (nor rounded). Backward, with dh_j = ds_j q' + p_j dz
// summed over targets and heads, needs the means over columns of weight dh and of weight dh xhat.
// These are
//   ds_j sum(weight q') + p_j sum(weight dz)  and
//   ds_j (weight q').xhat_j + p_j (weight dz).xhat_j,
// scalars that scores are made of. Then
//   dx_j = rstd (weight dh_j - mean1 - xhat_j mean2).
// Gradients of the norm's weight and bias are sums over targets and heads, not over rows:
//   q' yhat + dz zhat  and  q' sum_j ds_j + dz sum_j p_j,  yhat = sum_j ds_j xhat_j.
//
// A block takes a chunk of rows in tiles of 32, a warp 64 columns of them: it fetches these ahead,
// and nobody else reads them. Per tile:
//   1. each warp multiplies its columns with those of q' (and dz); parts of scores of all warps
//      meet in shared memory, in forward with parts of mean and rstd;
//   2. all threads add the parts, and make p (and ds) of them;
//   3. each warp adds p^T x (or ds^T x) at its columns, and writes dx there.

namespace segue::attention::cuda {
namespace {

struct NormedArgs {
  TargetArgs target;
  NormArgs norm;
  float* xhat_sums;      // zhat [targets, heads, dim]; backward reads it
  const float* p_sum;    // backward
  float* norm_partials;  // backward: [sequences with targets, 2 dim], weight and bias
};

/// a.sums and a.weights of a sequence by the last block that works on it, from partial sums of
/// xhat.
template <bool kBackward>
__device__ void finish(const NormedArgs& all, const SequenceView& s, int32_t sequence, int blocks) {
  const TargetArgs& a = all.target;
  if (!ops::cuda::is_last_block(a.plan.blocks_done + sequence, blocks)) return;
  const int chunks = s.chunks();
  for (int32_t target = 0; target < s.targets; ++target) {
    const int64_t task = s.first_task + target * chunks, to = s.first_target + target;
    add_chunks<float>(a.partial_weights + task * a.heads, a.heads, chunks, a.weights + to * a.heads,
                      [](float& sum, float x) { sum += x; });
  }
  __syncthreads();
  const auto pair = [](const float* x) { return *reinterpret_cast<const float2*>(x); };
  const auto parameter = [&](const float* x) {
    const float2 v = pair(x);
    if (!all.norm.round_weights) return v;
    return float2{ops::cuda::rounded<bf16>(v.x), ops::cuda::rounded<bf16>(v.y)};
  };
  for (int c = 2 * static_cast<int>(threadIdx.x); c < a.dim;
       c += 2 * static_cast<int>(blockDim.x)) {
    const float2 w = parameter(all.norm.weight + c), b = parameter(all.norm.bias + c);
    float2 dw{}, db{};
    for (int32_t target = 0; target < s.targets; ++target) {
      const int64_t task = s.first_task + target * chunks;
      for (int head = 0; head < a.heads; ++head) {
        const int64_t at = a.at(s.first_target + target, head);
        const float* parts = a.partials + (task * a.heads + head) * a.dim + c;
        float2 hat{};
#pragma unroll 8
        for (int k = 0; k < chunks; ++k) {
          const float2 part =
              __ldcg(reinterpret_cast<const float2*>(parts + int64_t{k} * a.heads * a.dim));
          hat.x += part.x, hat.y += part.y;
        }
        const float total = a.weights[at];
        const int64_t i = at * a.dim + c;
        *reinterpret_cast<float2*>(a.sums + i) = {w.x * hat.x + b.x * total,
                                                  w.y * hat.y + b.y * total};
        if constexpr (kBackward) {
          const float2 q = pair(a.key_query + i), dz = pair(a.dz + i), z = pair(all.xhat_sums + i);
          const float p_sum = all.p_sum[at];
          dw.x += q.x * hat.x + dz.x * z.x, dw.y += q.y * hat.y + dz.y * z.y;
          db.x += q.x * total + dz.x * p_sum, db.y += q.y * total + dz.y * p_sum;
        } else {
          *reinterpret_cast<float2*>(all.xhat_sums + i) = hat;
        }
      }
    }
    if constexpr (kBackward) {
      float* to = all.norm_partials + int64_t{s.place} * 2 * a.dim + c;
      *reinterpret_cast<float2*>(to) = dw;
      *reinterpret_cast<float2*>(to + a.dim) = db;
    }
  }
}

/// Sum of the parts of score i that a thread adds: every kStep warps from `first` on.
template <int kKinds, int kStep>
__device__ float add_parts(const float* parts, int kind, int i, int first) {
  float sum = 0;
#pragma unroll
  for (int w = first; w < kMostWarps; w += kStep) {
    if (w < warps()) sum += parts[(w * kKinds + kind) * kScoreStride + i];
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads, 3)
    forward_kernel(const __grid_constant__ NormedArgs all, Matrix<const bf16> x) {
  extern __shared__ __align__(128) uint8_t memory[];
  const TargetArgs& a = all.target;
  const Shared<1> shared(memory);
  const int32_t sequence = a.plan.of_task[blockIdx.x];
  const SequenceView s = a.plan.sequences[sequence];
  const int32_t local = static_cast<int32_t>(blockIdx.x) - s.first_task;
  const int32_t chunk = local % s.chunks();
  const int first = chunk * kChunkRows;
  const int64_t first_row = s.first_row + first;
  const Rows<false> rows(x, all.norm, first_row, min(s.n - first, kChunkRows), shared);

  const TaskView task(a, s, local / s.chunks(), chunk);
  const bool writes_stats = local < s.chunks() && blockIdx.y == 0 && threadIdx.x % 8 == 0;
  const int first_head = static_cast<int>(blockIdx.y) * kHeadsAtOnce;
  const int heads = min(kHeadsAtOnce, a.heads - first_head);
  const int64_t at = a.at(task.global_target, first_head);
  HeadRows query[1];
  query[0].load_along(all.norm, a.key_query + at * a.dim + warp_id() * kSliceColumns, heads, a.dim,
                      shared.constants + warp_id() * kHeadsAtOnce);
  // A pair of threads makes a score; 8 have a row.
  const int odd = static_cast<int>(threadIdx.x % 2);
  const int head = static_cast<int>(threadIdx.x) / 2 % kHeadsAtOnce;
  const float bias = head < heads ? a.key_bias[at + head] : 0.f;

  float2 constants{}, totals{};
  RowSums sums;
  sums.clear();
  for (int tile = 0; tile < rows.tiles(); ++tile) {
    const uint32_t slice = rows.wait(tile);
    multiply_rows<1, true>(slice, query, shared.parts + warp_id() * kScoreStride, shared.row_parts);
    __syncthreads();
    if (tile == 0) constants = shared.constants_of(0, head);
    for (int i = static_cast<int>(threadIdx.x) / 2; i < kScores;
         i += static_cast<int>(blockDim.x) / 2) {
      const int row = tile * kRowsAtOnce + i / kHeadsAtOnce;
      const float2 stats = row_statistics(all.norm, shared.row_parts, i / kHeadsAtOnce);
      float product = add_parts<1, 2>(shared.parts, 0, i, odd);
      product += __shfl_xor_sync(~0u, product, 1);
      const ops::cuda::Silu<bf16> silu(stats.y * (product - stats.x * constants.x) + constants.y +
                                       bias);
      const bool exists = row < rows.count;
      const bool visible = exists && task.sees.sees(task.target_row, first + row);
      const float p = visible ? silu.value * a.scale : 0.f;
      const uint32_t weight = split(p * stats.y);
      if (odd == 0) shared.weights[i] = weight;
      totals.x += p;
      totals.y += joined(weight) * stats.x;
      if (writes_stats && exists) {
        all.norm.mean[first_row + row] = stats.x;
        all.norm.rstd[first_row + row] = stats.y;
      }
    }
    __syncthreads();
    sums.add(slice, shared.weights);
    rows.release(tile);
  }
  shared.put_totals(totals, 0);
  __syncthreads();
  sums.store<false>(a, task.task, first_head, heads, shared.totals_of(lane_id() % 4));
  finish<false>(all, s, sequence, s.chunks() * s.targets * static_cast<int>(gridDim.y));
}

/// d += weights q' at 16 rows and 8 columns: both halves of the weights are multiplied with the
/// high and with the low half of q'.
__device__ void add_gradients(float (&d)[4], const uint32_t (&weights)[4], int m, uint32_t x) {
  const uint32_t a[4] = {weights[2 * m], weights[2 * m + 1], weights[2 * m], weights[2 * m + 1]};
  multiply_add(d, a, __byte_perm(x, x, 0x1010), __byte_perm(x, x, 0x3232));
}

/// dx takes the place of x in a slice that is needed no more; terms: those of rows 8 i + g.
__device__ void put_gradients(uint32_t slice, int m, int n, const float (&d)[4],
                              const float2 (&terms)[4]) {
  const int g = lane_id() / 4, t = lane_id() % 4;
  const uint32_t at = (slice_at(slice, g, 0) ^ (16u * n)) + static_cast<uint32_t>(2048 * m + 4 * t);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float2 term = terms[2 * m + half];
    const uint32_t x = load_word(at + 1024 * half);
    const float low = d[2 * half] + term.x + term.y * low_half(x);
    const float high = d[2 * half + 1] + term.x + term.y * high_half(x);
    store_word(at + 1024 * half, ops::cuda::packed<bf16>(low, high));
  }
}
__device__ void write_gradients(uint32_t slice, const Matrix<bf16>& dx, int64_t first, int count) {
  const uint32_t at = slice_at(slice, lane_id() / 8, lane_id() % 8);
  bf16* to = dx.row(first + lane_id() / 8) + warp_id() * kSliceColumns + lane_id() % 8 * 8;
#pragma unroll
  for (int i = 0; i < kRowsAtOnce / 4; ++i) {
    const uint4 words = load_words(four_rows_down(at, i));
    if (4 * i + lane_id() / 8 < count) write_words(to + 4 * i * dx.stride, words);
  }
}

/// kMany: more than one target in some sequence, or more heads than go at once. Then a tile meets
/// one group of heads after the other, and their sums live in memory between tiles.
template <bool kMany>
__global__ void __launch_bounds__(kThreads, kMany ? 1 : 2)
    backward_kernel(const __grid_constant__ NormedArgs all, Matrix<const bf16> x, Matrix<bf16> dx) {
  extern __shared__ __align__(128) uint8_t memory[];
  const TargetArgs& a = all.target;
  const Shared<2> shared(memory);
  const int32_t sequence = a.plan.of_chunk[blockIdx.x];
  const SequenceView s = a.plan.sequences[sequence];
  const int32_t chunk = static_cast<int32_t>(blockIdx.x) - s.first_chunk;
  const int first = chunk * kChunkRows;
  const int64_t first_row = s.first_row + first;
  const Rows<true> rows(x, all.norm, first_row, min(s.n - first, kChunkRows), shared);
  const int head_groups = kMany ? (a.heads + kHeadsAtOnce - 1) / kHeadsAtOnce : 1;
  const int groups = s.targets * head_groups;
  if (groups == 0) {
    if (threadIdx.x < kRowsAtOnce) shared.row_terms[threadIdx.x] = {};
    __syncthreads();
  }

  // Even threads make scores and p, odd ones their gradients and ds; 8 have a row.
  const int odd = static_cast<int>(threadIdx.x % 2);
  const int head = static_cast<int>(threadIdx.x) / 2 % kHeadsAtOnce;
  HeadRows operands[2] = {};  // q', dz; zero where nobody looks
  float bias = 0;
  const auto load_group = [&](int64_t target, int first_head, int heads) {
    const int64_t at = a.at(target, first_head);
    const int64_t from = at * a.dim + warp_id() * kSliceColumns;
    float2* constants = shared.constants + warp_id() * 2 * kHeadsAtOnce;
    operands[0].load_along(all.norm, a.key_query + from, heads, a.dim, constants);
    operands[1].load_along(all.norm, a.dz + from, heads, a.dim, constants + kHeadsAtOnce);
    operands[0].load_across(all.norm, a.key_query + from, heads, a.dim);
    operands[1].load_across(all.norm, a.dz + from, heads, a.dim);
    bias = head < heads ? (odd == 1 ? a.dp_sum : a.key_bias)[at + head] : 0.f;
  };
  if (!kMany && groups > 0) load_group(s.first_target, 0, a.heads);

  float mine_sum = 0, mine_bias = 0, other_sum = 0,
        other_bias = 0;  // of weight q' and bias q', or dz
  float2 totals{};
  RowSums sums;
  sums.clear();
  for (int tile = 0; tile < rows.tiles(); ++tile) {
    const uint32_t slice = rows.wait(tile);
    const float* row_stats = shared.row_stats + tile % kStages * 2 * kRowsAtOnce;
    constexpr int kColumns = kSliceColumns / 8;
    float gradients[2][kMany ? kColumns : 1][4] = {};
    uint32_t p[4] = {}, ds[4] = {};
    for (int group = 0; group < groups; ++group) {
      const TaskView task(a, s, group / head_groups, chunk);
      const int first_head = group % head_groups * kHeadsAtOnce;
      const int heads = min(kHeadsAtOnce, a.heads - first_head);
      if constexpr (kMany) load_group(task.global_target, first_head, heads);
      multiply_rows<2, false>(slice, operands, shared.parts + warp_id() * 2 * kScoreStride);
      __syncthreads();
      if (kMany || tile == 0) {
        const float2 constants = shared.constants_of(odd, head);
        mine_sum = constants.x;
        mine_bias = constants.y + bias;
        other_sum = __shfl_xor_sync(~0u, mine_sum, 1);
        other_bias = __shfl_xor_sync(~0u, mine_bias, 1);
        if (kMany) totals = {};
      }
      for (int i = static_cast<int>(threadIdx.x) / 2; i < kScores;
           i += static_cast<int>(blockDim.x) / 2) {
        const int row = i / kHeadsAtOnce, at = tile * kRowsAtOnce + row;
        const float mean = row_stats[row], rstd = row_stats[kRowsAtOnce + row];
        const float product = add_parts<2, 1>(shared.parts, odd, i, 0);
        const float mine = rstd * (product - mean * mine_sum);
        const float other = __shfl_xor_sync(~0u, mine, 1);
        const ops::cuda::Silu<bf16> silu(odd == 1 ? other + other_bias : mine + mine_bias);
        const bool visible = at < rows.count && task.sees.sees(task.target_row, first + at);
        const float value = odd == 1 ? (mine + mine_bias) * silu.derivative : silu.value;
        const float weight = visible ? value * a.scale : 0.f;
        const uint32_t scaled = split(weight * rstd);
        shared.weights[odd * kScoreStride + i] = scaled;
        totals.x += weight;
        totals.y += joined(scaled) * mean;
        // Means over the columns of weight dh and weight dh xhat, from all heads.
        float mean1 = weight * other_sum, mean2 = weight * other;
#pragma unroll
        for (int offset = 1; offset < 2 * kHeadsAtOnce; offset *= 2) {
          mean1 += __shfl_xor_sync(~0u, mean1, offset);
          mean2 += __shfl_xor_sync(~0u, mean2, offset);
        }
        if (threadIdx.x % (2 * kHeadsAtOnce) == 0) {
          const float slope = -rstd * rstd * mean2 / static_cast<float>(a.dim);
          float2 term{-rstd * mean1 / static_cast<float>(a.dim) - slope * mean, slope};
          if (kMany && group > 0) {
            const float2 before = shared.row_terms[row];
            term.x += before.x, term.y += before.y;
          }
          shared.row_terms[row] = term;
        }
      }
      if (kMany) shared.put_totals(totals, 1);
      __syncthreads();
      sums.add(slice, shared.weights + kScoreStride);
      mma::load_4(p, shared.weights + lane_id() * kHeadsAtOnce);
      mma::load_4(ds, shared.weights + kScoreStride + lane_id() * kHeadsAtOnce);
      if constexpr (kMany) {
        const float2 of_group = shared.totals_of(lane_id() % 4);
        if (tile == 0) {
          sums.store<false>(a, task.task, first_head, heads, of_group);
        } else {
          sums.store<true>(a, task.task, first_head, heads, of_group);
        }
        sums.clear();
#pragma unroll
        for (int i = 0; i < 2 * kColumns; ++i) {
          float(&d)[4] = gradients[i / kColumns][i % kColumns];
          add_gradients(d, ds, i / kColumns, operands[0].across[i % kColumns]);
          add_gradients(d, p, i / kColumns, operands[1].across[i % kColumns]);
        }
      }
    }
    __syncwarp();
    float2 terms[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) terms[i] = shared.row_terms[8 * i + lane_id() / 4];
#pragma unroll
    for (int i = 0; i < 2 * kColumns; ++i) {
      const int m = i / kColumns, n = i % kColumns;
      if constexpr (kMany) {
        put_gradients(slice, m, n, gradients[m][n], terms);
      } else {
        float d[4] = {};
        add_gradients(d, ds, m, operands[0].across[n]);
        add_gradients(d, p, m, operands[1].across[n]);
        put_gradients(slice, m, n, d, terms);
      }
    }
    __syncwarp();
    const int done = tile * kRowsAtOnce;
    write_gradients(slice, dx, first_row + done, rows.count - done);
    rows.release(tile);
  }
  if (s.targets == 0) return;
  if (!kMany) {
    shared.put_totals(totals, 1);
    __syncthreads();
    sums.store<false>(a, TaskView(a, s, 0, chunk).task, 0, a.heads,
                      shared.totals_of(lane_id() % 4));
  }
  finish<true>(all, s, sequence, s.chunks());
}

template <int kKinds, class Kernel, class... Arguments>
void launch(const Exec& exec, Kernel kernel, dim3 grid, const NormedArgs& a,
            const Arguments&... arguments) {
  const int warps = a.target.dim / kSliceColumns;
  const size_t bytes = Shared<kKinds>::bytes(warps);
  const cudaStream_t stream = ops::cuda::stream_of(exec);
  ops::cuda::allow_shared_memory(kernel, bytes);
  kernel<<<grid, static_cast<unsigned>(warps * kWarp), bytes, stream>>>(a, arguments...);
  ops::cuda::check_launch();
}

NormedArgs arguments_of(const Exec& exec, const TargetAttentionParams& p, const TargetNorm& norm,
                        const Counts& counts, const Tensor& sums, const Tensor& weights) {
  SEGUE_ASSERT(target_attention_norms(p.h), "target attention: rows that need a norm before it");
  SEGUE_ASSERT(norm.params.groups == 1, "target attention: layer norm only");
  SEGUE_ASSERT(
      norm.xhat_sums.is_contiguous() && norm.xhat_sums.elements() == p.key_query.elements(),
      "target attention: sums of normed rows are like key_query");
  return {target_arguments(exec, p, counts, sums, weights),
          NormArgs(exec, norm.params, norm.stats, p.h.size(0), p.h.size(1)),
          ops::cuda::device_ptr<float>(norm.xhat_sums), nullptr, nullptr};
}

}  // namespace

bool target_attention_norms(const Tensor& x) {
  return norms_rows_of(x.dtype, x.size(1)) && ops::cuda::can_vectorize(x.size(1), {x});
}

void target_attention_forward(const Exec& exec, const TargetAttentionParams& p,
                              const TargetNorm& norm, const Tensor& z, const Tensor& p_sum) {
  const Arena::Mark mark(*exec.arena);
  const Counts counts(p);
  if (counts.tasks == 0) return;
  const NormedArgs a = arguments_of(exec, p, norm, counts, z, p_sum);
  const dim3 grid(static_cast<unsigned>(counts.tasks),
                  static_cast<unsigned>(ops::cuda::divide_up(a.target.heads, kHeadsAtOnce)));
  launch<1>(exec, forward_kernel, grid, a, ops::cuda::input_of<bf16>(p.h));
}

void target_attention_backward(const Exec& exec, const TargetAttentionParams& p,
                               const TargetNorm& norm, const Tensor& p_sum, const Tensor& dz,
                               const Tensor& dp_sum, const Tensor& dx, const Tensor& dkey_query,
                               const Tensor& dkey_bias, const ops::NormGradients& gradients) {
  const Arena::Mark mark(*exec.arena);
  const Counts counts(p);
  if (counts.tasks == 0) return zero(dx, exec.stream);
  SEGUE_ASSERT(target_attention_norms(dx), "target attention: dx is not like x");
  NormedArgs a = arguments_of(exec, p, norm, counts, dkey_query, dkey_bias);
  a.target.dz = dense_floats(dz);
  a.target.dp_sum = dense_floats(dp_sum);
  a.p_sum = dense_floats(p_sum);
  const int64_t dim = p.h.size(1);
  ops::cuda::PartialSums partials(exec, counts.with_targets, 2 * dim);
  a.norm_partials = partials.data();
  const bool one_group = counts.most_targets <= 1 && a.target.heads <= kHeadsAtOnce;
  launch<2>(exec, one_group ? backward_kernel<false> : backward_kernel<true>,
            static_cast<unsigned>(counts.chunks), a, ops::cuda::input_of<bf16>(p.h),
            ops::cuda::matrix_of<bf16>(dx));
  ops::cuda::fold_norm_gradients(a.norm, partials, gradients.weight, gradients.bias);
}

}  // namespace segue::attention::cuda
