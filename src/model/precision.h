#pragma once

// Where float and bf16 meet. On the CPU all activations are float and mode kBf16 rounds them; on a
// GPU they have types of their own, and every change of type is one of these calls.

#include "ops/rows.h"
#include "tensor/exec.h"

namespace segue::model {

/// The head and the item side (unless model.head_precision says otherwise), losses and the
/// collapsed last layer run in float even when the rest is bf16.
inline Exec wide_exec(const Exec& exec) {
  return exec.rounds_to_bf16() ? exec.with(Precision::kF32) : exec;
}

/// x in the activation type of `exec`: x itself, or a copy in the arena.
inline Tensor as_activation(const Exec& exec, const Tensor& x) {
  if (x.dtype == exec.dtype()) return x;
  const Tensor y = x.rank == 1   ? exec.activation({x.size(0)})
                   : x.rank == 2 ? exec.activation({x.size(0), x.size(1)})
                                 : exec.activation({x.size(0), x.size(1), x.size(2)});
  ops::convert(exec, x, y);
  return y;
}

/// The result of a float computation as an activation: rounded in place, or converted.
inline Tensor rounded_activation(const Exec& exec, const Tensor& x) {
  if (x.dtype != exec.dtype()) return as_activation(exec, x);
  if (exec.rounds_to_bf16()) ops::round_rows_to_bf16(exec, x);
  return x;
}

}  // namespace segue::model
