#pragma once

#include "ops/cuda_forms.h"
#include "ops/kernel.cuh"

namespace segue::ops::cuda {

/// Where blocks leave sums over their rows, float [rows, columns], until they are folded: in the
/// arena (the caller's Mark), or where folds wait.
class PartialSums {
 public:
  PartialSums(const Exec& exec, int64_t rows, int64_t columns);
  float* data() const { return device_ptr<float>(memory_); }

  /// to[j] += the sum of column first + j, for n columns; see DeferredSums::Fold for `part`. An
  /// absent `to` is nobody's.
  void fold(const Tensor& to, int64_t first, int64_t n, int64_t part = 1);

 private:
  const Exec& exec_;
  Tensor memory_;
  bool deferred_ = false;
};

}  // namespace segue::ops::cuda
