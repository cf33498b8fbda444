#pragma once

#include "ops/kernel.cuh"

namespace segue::ops::cuda {

/// dispatch_lanes for kernels that keep rows of up to 2048 columns in registers.
template <class F>
void dispatch_wide_lanes(int64_t columns, bool vectorize, F&& f) {
  if (vectorize && columns > 1024 && columns <= 2048) return f(Lanes<8, 8>{});
  dispatch_lanes(columns, vectorize, f);
}

}  // namespace segue::ops::cuda
