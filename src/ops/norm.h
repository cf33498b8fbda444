#pragma once

#include "tensor/exec.h"

namespace segue::ops {

/// Layer norm over the last dimension, or group norm: `groups` equal parts of the columns, each
/// with its own statistics and ONE weight and bias per group.
///   y = (x - mean) * rstd * weight + bias,  biased variance, two passes, statistics in float (or
///   double).
struct NormParams {
  Tensor weight;  // [columns] with one group, or [groups]
  Tensor bias;
  double eps = 1e-5;
  int64_t groups = 1;
  bool round_weights =
      false;  // mode kBf16: weight and bias are used as bf16 (STU layers), else as float
};

struct NormStats {
  Tensor mean, rstd;  // [rows * groups]
};
NormStats make_norm_stats(const Exec& exec, int64_t rows, int64_t groups = 1);

/// y = norm(x), or norm(x), rounded, + addend.
void norm_forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
                  const NormStats& stats, const Tensor& addend = {});

/// norm_forward of what another op makes, for that op to do while the rows are at hand.
struct FollowingNorm {
  NormParams params;
  Tensor y;  // absent: none
  NormStats stats;
};

/// Gradients of parameters, each [columns] (or [groups]), += ; absent where nobody wants them.
/// `input_bias` is that of a bias which was added to x just before: the column sums of dx.
struct NormGradients {
  Tensor weight, bias, input_bias;
};
/// dx = (norm backward of dy) + residual (if present). `dx` may be the same memory as `dy` or
/// `residual`.
void norm_backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
                   const NormStats& stats, const Tensor& residual, const Tensor& dx,
                   const NormGradients& gradients);

/// y = x * sigmoid(layer_norm(x)): the gate is made of the normalised input and multiplies the raw
/// one. Layer norm only (groups = 1).
void swish_norm_forward(const Exec& exec, const NormParams& p, const Tensor& x, const Tensor& y,
                        const NormStats& stats);
void swish_norm_backward(const Exec& exec, const NormParams& p, const Tensor& dy, const Tensor& x,
                         const NormStats& stats, const Tensor& dx, const NormGradients& gradients);

/// y = x / max(|x|, eps) per row; backward overwrites dx.
void l2_normalize_forward(const Exec& exec, const Tensor& x, double eps, const Tensor& y);
void l2_normalize_backward(const Exec& exec, const Tensor& dy, const Tensor& x, double eps,
                           const Tensor& dx);

}  // namespace segue::ops
