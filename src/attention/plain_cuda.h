#pragma once

#include "attention/hstu_attention.h"

/// HSTU attention for every type, head width up to 256 and GPU, without tensor cores: what shapes
/// without a kernel of their own run on, and what float results on a GPU come from. Slow.
namespace segue::attention::cuda::plain {

void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o);
void backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv);

}  // namespace segue::attention::cuda::plain
