#pragma once

#include <cmath>
#include <cstdint>

#include "base/bf16.h"
#include "base/error.h"

namespace segue::ops {

/// The scalars of one Adam update, computed in double and used in the type of the tensor.
template <class T>
struct AdamStep {
  T beta1, beta2, one_minus_beta1, one_minus_beta2, step_size, root_correction, eps;

  AdamStep(double lr, double b1, double b2, double epsilon, int64_t t)
      : beta1(static_cast<T>(b1)),
        beta2(static_cast<T>(b2)),
        one_minus_beta1(static_cast<T>(1 - b1)),
        one_minus_beta2(static_cast<T>(1 - b2)),
        step_size(static_cast<T>(lr / (1 - std::pow(b1, static_cast<double>(t))))),
        root_correction(static_cast<T>(std::sqrt(1 - std::pow(b2, static_cast<double>(t))))),
        eps(static_cast<T>(epsilon)) {
    SEGUE_ASSERT(t >= 1, "Adam counts its updates from 1");
  }

  SEGUE_HOST_DEVICE void apply(T gradient, T& m, T& v, T& parameter) const {
    m = beta1 * m + one_minus_beta1 * gradient;
    v = beta2 * v + one_minus_beta2 * gradient * gradient;
    parameter -= step_size * m / (std::sqrt(v) / root_correction + eps);
  }
};

}  // namespace segue::ops
