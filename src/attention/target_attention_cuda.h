#pragma once

#include "attention/hstu_attention.h"

/// CUDA forms of target_attention_forward and _backward: h and dh in f32 or bf16, all else f32.
namespace segue::attention::cuda {

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
