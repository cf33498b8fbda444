#pragma once

#include "base/error.h"
#include "tensor/tensor.h"

namespace segue::ops {

/// Slot `s` of [samples, slots, out] as a matrix [samples, out] whose rows are far apart.
inline Tensor contextual_slot(const Tensor& t, int64_t s) {
  const Tensor narrowed = t.narrow(1, s, 1);
  Tensor view = narrowed;
  view.rank = 2;
  view.sizes = {t.size(0), t.size(2), 0, 0};
  view.strides = {t.stride(0), t.stride(2), 0, 0};
  return view;
}

inline void check_contextual_shapes(const Tensor& e, const Tensor& weight, const Tensor& y) {
  SEGUE_ASSERT(e.rank == 3 && weight.rank == 3 && y.rank == 3, "contextual_linear: ranks");
  SEGUE_ASSERT(e.size(0) == weight.size(0) && y.size(1) == weight.size(0),
               "contextual_linear: number of slots");
  SEGUE_ASSERT(e.size(1) == y.size(0), "contextual_linear: number of samples");
  SEGUE_ASSERT(e.size(2) == weight.size(1) && y.size(2) == weight.size(2),
               "contextual_linear: widths");
}

}  // namespace segue::ops
