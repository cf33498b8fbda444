#pragma once

#include <span>

#include "ops/dropout.cuh"
#include "ops/rows.h"

namespace segue::ops::cuda {

/// A table that receives sums. Absent rows: its destinations exist, but nobody wants their sums.
struct SumTarget {
  Tensor rows;  // float or bf16
  int64_t count = 0;
  double scale = 1;
};

/// One way to sum the rows of a matrix: index[i] says where row i goes (-1: nowhere), counted
/// through the targets one after the other.
struct SumOrder {
  Tensor index;
  SumTarget first, second;
  SortedIndex sorted = {};  // of use where it is the only order
};

/// A sum by so few destinations that it is fused with the first order, without a pass over the
/// rows of its own: see can_fuse.
struct FusedSum {
  Tensor index;  // i32
  Tensor rows;   // absent: none
  double scale = 1;
};
bool can_fuse(const Tensor& from, const Tensor& rows);

/// What dropout did to the rows that are summed: its factor, and bits for each row. Default: none.
struct DroppedRows {
  DropoutArgs dropout;
  KeepBits keep;
};

/// For every order, targets[index[i]] += scale * (sum of rows i of `from`). Rows are sorted by
/// destination (stable), all orders in one sort, and each element of a target is added to once:
/// sums are float, in an order that depends on the indices alone. A dropped-out row is rounded to
/// the type of `from` first.
void sum_rows(const Exec& exec, const Tensor& from, const DroppedRows& dropped,
              std::span<const SumOrder> orders, const FusedSum& fused = {});

}  // namespace segue::ops::cuda
