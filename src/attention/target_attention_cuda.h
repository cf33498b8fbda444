#pragma once

#include "attention/hstu_attention.h"

/// CUDA forms of target_attention_forward and _backward: h and dh in f32 or bf16, all else f32.
namespace segue::attention::cuda {

/// Sums over the rows of a sequence are made in chunks of so many.
inline constexpr int kChunkRows = 256;
/// Columns of one warp of the tensor-core kernels, and how many warps a row may take.
inline constexpr int kSliceColumns = 64, kMostSlices = 8;

/// What the kernels that norm rows can do (target_attention_mma.cu).
inline bool norms_rows_of(DType dtype, int64_t columns) {
  return dtype == DType::kBf16 && columns > 0 && columns % kSliceColumns == 0 &&
         columns <= kMostSlices * kSliceColumns;
}

Tensor target_attention_plan(const Exec& exec, const TargetAttentionParams& p);
void target_attention_forward(const Exec& exec, const TargetAttentionParams& p, const Tensor& z,
                              const Tensor& p_sum);
void target_attention_backward(const Exec& exec, const TargetAttentionParams& p, const Tensor& dz,
                               const Tensor& dp_sum, const Tensor& dh, const Tensor& dkey_query,
                               const Tensor& dkey_bias);

/// With the norm before it, of bf16 rows (target_attention_mma.cu).
bool target_attention_norms(const Tensor& x);
void target_attention_forward(const Exec& exec, const TargetAttentionParams& p,
                              const TargetNorm& norm, const Tensor& z, const Tensor& p_sum);
void target_attention_backward(const Exec& exec, const TargetAttentionParams& p,
                               const TargetNorm& norm, const Tensor& p_sum, const Tensor& dz,
                               const Tensor& dp_sum, const Tensor& dx, const Tensor& dkey_query,
                               const Tensor& dkey_bias, const ops::NormGradients& gradients);

}  // namespace segue::attention::cuda
