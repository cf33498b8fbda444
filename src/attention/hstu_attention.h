#pragma once

#include <cstdint>
#include <span>

#include "attention/hstu_mask.h"
#include "attention/kernel_choice.h"
#include "ops/norm.h"
#include "tensor/exec.h"
#include "tensor/jagged.h"

namespace segue::attention {

/// o_i = scale * sum_j mask_ij silu(alpha q_i.k_j) v_j, per sequence and head. No softmax.
/// Sequence b owns rows offsets[b] .. offsets[b+1]; q, k [rows, heads, qk_dim], v [rows, heads,
/// v_dim] are strided views (unit stride inside a head), usually of one packed uvqk buffer.
struct HstuAttentionParams {
  Tensor q, k, v;
  std::span<const int64_t> offsets;      // host, [sequences + 1]
  std::span<const int64_t> num_targets;  // host, [sequences]; empty: no targets
  HstuMask mask;
  double alpha = 1;  // 1 / sqrt(qk_dim)
  double scale = 1;  // 1 / configured length, or 1 / longest sequence of the whole batch
  Kernel kernel = Kernel::kAuto;  // on a GPU; one that cannot do it is an Error(kConfig)
};

/// On a GPU all tensors of a call in mode kBf16 may be f16 instead of bf16; then p, ds and results
/// are rounded to f16, and gradients beyond its range are the caller's affair.
///
/// o [rows, heads, v_dim], overwritten. Mode kBf16: the scaled score silu(...) * scale and o are
/// rounded. Rows that belong to no sequence are left alone, here and in backward.
void hstu_attention_forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o);

/// Overwrites dq, dk, dv (strided views allowed; they must not overlap the inputs). Deterministic.
/// Mode kBf16: p and ds are rounded, and each of dq, dk, dv once at the end.
/// dbias [heads * (v_dim + 2 qk_dim)] += the sums over all rows of sequences of dv | dq | dk as
/// they are stored, like ops::column_sum: what the bias of packed v, q, k gets. Absent: nobody
/// wants it; asked for, it needs heads of dq, dk and dv that lie side by side.
void hstu_attention_backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
                             const Tensor& dq, const Tensor& dk, const Tensor& dv,
                             const Tensor& dbias = {});

/// The definition of correct: plain loops in double over CPU tensors. For tests. Each tensor may be
/// float or double, so float inputs can be judged by double results.
void hstu_attention_reference(const HstuAttentionParams& p, const Tensor& o);
void hstu_attention_backward_reference(const HstuAttentionParams& p, const Tensor& grad_o,
                                       const Tensor& dq, const Tensor& dk, const Tensor& dv);

/// Whether row i sees row j, from the rule with position ids rather than through HstuMask::row. For
/// tests.
bool hstu_mask_reference(const HstuMask& mask, int64_t i, int64_t j, int64_t n, int64_t targets);

/// Scratch of hstu_attention_backward on a GPU at most, in a 16-bit type; float needs hardly any.
/// `dbias_columns`: elements of dbias, 0 without it. Most of it is room that makes backward faster:
/// with less it does the same in more passes. Known without a GPU or CUDA.
int64_t hstu_attention_backward_bytes(std::span<const int64_t> offsets, int64_t heads,
                                      const HstuMask& mask, int64_t dbias_columns);

/// The last layer needs its target rows only, and without softmax keys and values need never be
/// formed. With h the normed input rows, q' = W_k q / sqrt(d) and c = b_k.q / sqrt(d) per target
/// and head:
///   s_j = h_j.q' + c;  p_j = silu(s_j) * scale;  z = sum_j p_j h_j;  p_sum = sum_j p_j
/// over the rows j that the target sees. Attention then equals W_v^T z + p_sum b_v, for every mask
/// with target_group 1. These values have no counterpart in the plain path, so mode kBf16 rounds
/// none.
struct TargetAttentionParams {
  Tensor h;                              // [rows, dim], rows may be strided
  std::span<const int64_t> offsets;      // host, [sequences + 1]
  std::span<const int64_t> num_targets;  // host, [sequences]
  Tensor device_offsets;                 // i64, the same on a GPU; absent: uploaded on the way
  Tensor device_num_targets;
  Tensor plan;  // what target_attention_plan gave, for both directions; absent: made on the way
  HstuMask mask;
  Tensor key_query;  // q' [targets, heads, dim], contiguous like all tensors by target
  Tensor key_bias;   // c [targets, heads]
  double scale = 1;
};
/// How a GPU cuts the sequences, from the arena; needs offsets and numbers of targets only. Absent
/// where there is nothing to cut, and on the CPU.
Tensor target_attention_plan(const Exec& exec, const TargetAttentionParams& p);

void target_attention_forward(const Exec& exec, const TargetAttentionParams& p, const Tensor& z,
                              const Tensor& p_sum);

/// Given dz [targets, heads, dim] (= W_v da) and dp_sum [targets, heads] (= b_v.da), overwrites
///   dh [rows, dim] = sum over targets and heads of ds_j q' + p_j dz,
///                    ds_j = (h_j.dz + dp_sum) silu'(s_j) scale
///   dkey_query [targets, heads, dim] = sum_j ds_j h_j,   dkey_bias [targets, heads] = sum_j ds_j
void target_attention_backward(const Exec& exec, const TargetAttentionParams& p, const Tensor& dz,
                               const Tensor& dp_sum, const Tensor& dh, const Tensor& dkey_query,
                               const Tensor& dkey_bias);

/// Target attention and the layer norm before it in one pass over rows x that need no h then: only
/// where target_attention_norms says so, on a GPU with tensor cores, for bf16 rows of up to 512
/// columns, a multiple of 64. p.h is x, h = norm(x) is not rounded, and products keep 16 bits of
/// what is not bf16.
struct TargetNorm {
  ops::NormParams params;
  ops::NormStats stats;  // of rows; forward writes those of sequences that have targets
  Tensor xhat_sums;  // [targets, heads, dim], sum_j p_j (x_j - mean_j) rstd_j; forward writes them
};
bool target_attention_norms(const Exec& exec, const Tensor& x);
/// The same of rows as an arena gives them, known without a GPU or CUDA.
bool target_attention_norms(Device device, DType dtype, int64_t dim);
/// Scratch of target attention on a GPU at most, in either direction; of at most `targets` in a
/// sequence.
int64_t target_attention_bytes(std::span<const int64_t> offsets, int64_t heads, int64_t targets,
                               int64_t dim);
void target_attention_forward(const Exec& exec, const TargetAttentionParams& p,
                              const TargetNorm& norm, const Tensor& z, const Tensor& p_sum);
/// Overwrites dx [rows, dim], the gradient behind the norm, dkey_query and dkey_bias; gradients of
/// the norm's parameters += . p_sum: forward's.
void target_attention_backward(const Exec& exec, const TargetAttentionParams& p,
                               const TargetNorm& norm, const Tensor& p_sum, const Tensor& dz,
                               const Tensor& dp_sum, const Tensor& dx, const Tensor& dkey_query,
                               const Tensor& dkey_bias, const ops::NormGradients& gradients);

}  // namespace segue::attention
