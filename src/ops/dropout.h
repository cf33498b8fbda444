#pragma once

#include <cstdint>

#include "tensor/exec.h"

namespace segue::ops {

/// Which random numbers a row of an activation owns: sample index in the global batch of the step
/// and token inside the sample, never the local row. i32 [rows] each.
struct RowIdentity {
  Tensor sample, token;
};

/// Inverted dropout at one site of the model; p = 0 means none (evaluation).
struct Dropout {
  float p = 0.f;
  uint32_t site = 0;
  RowIdentity rows;
};

}  // namespace segue::ops
