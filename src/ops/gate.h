#pragma once

#include "ops/dropout.h"
#include "ops/norm.h"
#include "tensor/exec.h"

namespace segue::ops {

/// What stands between attention and the output projection of an STU layer (w = heads * v_dim):
///   u = silu(U),  g = norm(a)
///   concat: y = dropout([u | a | u * g])   [rows, 3w]   dropout columns are those of y
///   gated:  y = dropout(u * g)             [rows, w]
/// Mode kBf16 rounds u before both uses and y once after dropout; g stays float.
struct GateParams {
  Tensor u;         // [rows, w] raw U, usually a view of packed uvqk
  Tensor a;         // [rows, w] attention output
  NormParams norm;  // over the w columns of a
  bool concat = true;
  Dropout dropout;
  Tensor keep;  // bytes [rows, gate_keep_bytes], written by forward; absent: backward draws again
};

/// Forward may leave what dropout decided for backward, a bit for each column of y: on a GPU
/// reading them is cheaper than drawing again. Their order is the kernels' affair; rows must be
/// aligned to 16 bytes. 0: of no use for this device, width or dropout. `p` needs no tensors but a.
int64_t gate_keep_bytes(const Exec& exec, const GateParams& p);

void gate_forward(const Exec& exec, const GateParams& p, const Tensor& y, const NormStats& stats);

/// What parameters get: += , of those that are wanted.
struct GateGradients {
  Tensor weight, bias;  // of the norm
  Tensor u_bias;        // [w]: the sums of du's columns as they are stored, like column_sum
};

/// Overwrites du and da (both [rows, w], strided views allowed).
void gate_backward(const Exec& exec, const GateParams& p, const NormStats& stats, const Tensor& dy,
                   const Tensor& du, const Tensor& da, const GateGradients& gradients);

/// y = silu(x), dx = dy * silu'(x); x, y, dy, dx [rows, columns], strided; dx may alias dy. `sums`,
/// if it is there, gets what column_sum(exec, dx, sums) would add, with its bits.
void silu_forward(const Exec& exec, const Tensor& x, const Tensor& y);
void silu_backward(const Exec& exec, const Tensor& dy, const Tensor& x, const Tensor& dx,
                   const Tensor& sums = {});

}  // namespace segue::ops
