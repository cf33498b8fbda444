#pragma once

#include <cstdint>

#include "tensor/exec.h"

namespace segue::ops {

/// Columns of the dot interaction of `count` vectors of width `dim`.
constexpr int64_t dot_interaction_columns(int64_t count, int64_t dim) {
  return dim + count * (count - 1) / 2;
}

/// Place of the product of vectors i and j among the products.
SEGUE_HOST_DEVICE constexpr int64_t dot_pair(int64_t i, int64_t j) {
  return i > j ? i * (i - 1) / 2 + j : j * (j - 1) / 2 + i;
}

/// Every row of x [n, count * dim] is `count` vectors of width dim side by side. Its row of y
/// [n, dot_interaction_columns] is the first vector as it is, then the products x_i . x_j of all
/// pairs j < i in the order (1, 0), (2, 0), (2, 1), (3, 0), ... Products are summed in float and
/// rounded once in mode kBf16. Rows may be strided; one type for all. count >= 1.
void dot_interaction_forward(const Exec& exec, const Tensor& x, int64_t count, const Tensor& y);
/// dx_i = sum over j of d(i, j) x_j, j ascending, and dx_0 += the gradient of the copy;
/// overwritten, rounded once.
void dot_interaction_backward(const Exec& exec, const Tensor& dy, const Tensor& x, int64_t count,
                              const Tensor& dx);

}  // namespace segue::ops
