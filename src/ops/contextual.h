#pragma once

#include <cstdint>
#include <span>

#include "tensor/exec.h"

namespace segue::ops {

/// One linear map per contextual slot: y[b, s] = e[s, b] w[s] + bias[s].
///   e [slots, samples, in], w [slots, in, out], bias [slots, out], y [samples, slots, out]
void contextual_linear_forward(const Exec& exec, const Tensor& e, const Tensor& weight,
                               const Tensor& bias, const Tensor& y);
/// de overwritten; dweight, dbias += . Any may be absent.
void contextual_linear_backward(const Exec& exec, const Tensor& dy, const Tensor& e,
                                const Tensor& weight, const Tensor& de, const Tensor& dweight,
                                const Tensor& dbias);

/// Row c of y is the concatenation over bits k of (bit k of code ? table[k] : 0); the code with
/// value 2^bits is the learned target row, higher ones are Error(kOutOfRange). Mode kBf16 rounds y.
///   table [bits, dim], target [1, bits * dim], code i32 [n], y [n, bits * dim]
void action_encode_forward(const Exec& exec, const Tensor& table, const Tensor& target,
                           const Tensor& code, const Tensor& y);
/// dtable, dtarget += .
void action_encode_backward(const Exec& exec, const Tensor& dy, const Tensor& code,
                            const Tensor& dtable, const Tensor& dtarget);

/// Cyclic features of a time in seconds, two per period: cos and sin of
///   (floor(t / unit) mod count) / count * 2 * pi
/// where mod lies in [0, count) for times before 0, too.
/// Arithmetic in float, as the reference, whatever the type of `out`; `pi` is 3.14 there. Rounded
/// in mode kBf16. timestamps i64 [n]; out [n, 2 * periods], rows may be strided.
struct CyclicParams {
  std::span<const double> unit_seconds;
  std::span<const double> units_per_period;
  double pi = 3.14159265358979323846;
};
void cyclic_time_features(const Exec& exec, const CyclicParams& p, const Tensor& timestamps,
                          const Tensor& out);

}  // namespace segue::ops
