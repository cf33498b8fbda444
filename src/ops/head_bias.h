#pragma once

#include <span>

#include "tensor/exec.h"

namespace segue::ops {

/// Where a bias of [heads * width] meets rows of heads one number at a time, as in the last layer
/// at target rows: K and V are never formed there, so their biases come in by what they are
/// multiplied with. x, y [rows, heads * width], weights and dot [rows, heads], all float; types of
/// x and y may differ on a GPU.

/// y = factor * x; dot = y . bias, per head.
void head_bias_dot(const Exec& exec, const Tensor& x, double factor, const Tensor& bias,
                   const Tensor& y, const Tensor& dot);

/// y = factor * (x + weights * bias), rounded once in mode kBf16.
void head_bias_add(const Exec& exec, const Tensor& x, const Tensor& weights, const Tensor& bias,
                   double factor, const Tensor& y);

/// Gradients of biases that met rows in this way, or in the usual one: to [heads * width] += the
/// sum over rows of weights * x, or of x where weights are absent. All x have the same rows. In
/// mode kBf16 weights and what they are multiplied with are float; a sum of x alone is rounded like
/// column_sum's. On a GPU one launch does all parts.
struct HeadBiasGradient {
  Tensor x, weights, to;
};
void head_bias_gradients(const Exec& exec, std::span<const HeadBiasGradient> parts);

}  // namespace segue::ops
