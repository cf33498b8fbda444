#pragma once

#include "attention/hstu_attention.h"

/// The bodies behind hstu_attention_forward and _backward, which check their arguments first.
namespace segue::attention {

namespace cpu {
void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o);
void backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv);
}  // namespace cpu

/// choose() picks the kernels for the device, its architecture and the shape. backward says whether
/// they added to dbias, which is more than most can do.
namespace cuda {
Kernel choose(const Exec& exec, const HstuAttentionParams& p);
void forward(const Exec& exec, const HstuAttentionParams& p, const Tensor& o);
bool backward(const Exec& exec, const HstuAttentionParams& p, const Tensor& grad_o,
              const Tensor& dq, const Tensor& dk, const Tensor& dv, const Tensor& dbias);
}  // namespace cuda

}  // namespace segue::attention
