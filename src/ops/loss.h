#pragma once

#include "tensor/exec.h"

namespace segue::ops {

enum class TaskKind { kBinary, kRegression };

/// Loss of one task over a strided column of logits [n] and contiguous labels, weights [n] (absent:
/// all 1):
///   loss_sum += sum_i weight_i * loss(logit_i, label_i) * factor
/// loss = binary cross entropy with logits, or squared error. `factor` carries the task weight and
/// the whole batch's denominator. dlogits (same strides as logits) is overwritten; predictions [n]
/// receive sigmoid(logit) or the logit; both may be absent (evaluation). loss_sum is f64 [1] on
/// exec's device; terms are summed in double, in pieces that n alone decides, before they are
/// added. One type for all other tensors.
void loss_forward_backward(const Exec& exec, TaskKind kind, const Tensor& logits,
                           const Tensor& labels, const Tensor& weights, double factor,
                           const Tensor& dlogits, const Tensor& predictions,
                           const Tensor& loss_sum);

}  // namespace segue::ops
