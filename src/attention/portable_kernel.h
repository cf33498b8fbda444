#pragma once

#include "attention/hstu_attention.h"

/// Kernels for every GPU since sm_80: bf16 or f16, heads of 32, 64, 128 or 256 columns for both
/// queries and values, rows aligned to 16 bytes. Deterministic, no scratch, not tuned.
namespace segue::attention::portable {

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o);
void backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv);

}  // namespace segue::attention::portable
