#pragma once

#include "tensor/exec.h"

/// Target attention of bf16 rows by tensor cores (target_attention_mma.cu).
namespace segue::attention::cuda {

struct TargetArgs;

/// Whether these rows are fit for it; others take the general kernels. `dh` may be absent.
bool mma_takes(const Tensor& h, const Tensor& dh);

/// a.sums and a.weights; backward makes dh as well.
void mma_forward(const Exec& exec, const TargetArgs& a, int64_t tasks, const Tensor& h);
void mma_backward(const Exec& exec, const TargetArgs& a, int64_t chunks, bool one_target,
                  const Tensor& h, const Tensor& dh);

}  // namespace segue::attention::cuda
