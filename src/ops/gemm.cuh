#pragma once

#include "ops/gemm.h"
#include "ops/kernel.cuh"

namespace segue::ops::cuda {

/// `count` products of one shape whose operands lie at fixed distances, in elements; what a plain
/// product leaves at 1 and 0.
struct Batch {
  int64_t count = 1;
  int64_t a = 0, b = 0, c = 0, bias = 0;
};

/// gemm over a batch: a, b, c and bias are the matrices of its first product. Operands must have
/// the type of the product already (`product_operand`); accumulate and residual as in GemmExtra.
void gemm_batch(const Exec& exec, Trans trans_a, const Tensor& a, Trans trans_b, const Tensor& b,
                const Tensor& c, const GemmExtra& extra, const Batch& batch);

/// `t` in the type `dtype`: itself, its place in exec.rounded_parameters, or a converted copy in
/// the arena.
Tensor in_type(const Exec& exec, const Tensor& t, DType dtype);

/// `t` in the type that products of this mode multiply (bf16 or f32).
Tensor product_operand(const Exec& exec, const Tensor& t);

}  // namespace segue::ops::cuda
