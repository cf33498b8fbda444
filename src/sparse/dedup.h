#pragma once

#include <cstdint>
#include <span>

#include "tensor/host_array.h"

namespace segue::sparse {

/// Distinct values in ascending order, and for every input the place of its value (-1 stays -1 when
/// `skip_negative`).
struct Distinct {
  HostArray<int64_t> values;   // [distinct]
  HostArray<int32_t> inverse;  // [inputs]
};
Distinct distinct(std::span<const int64_t> ids, bool skip_negative = false);

/// Distinct tuples of k index columns of equal length n, in lexicographic order.
struct DistinctTuples {
  HostArray<int32_t> members;  // [k, distinct] column-major: members of column c start at c * count
  HostArray<int32_t> inverse;  // [n]
  int64_t count = 0;
  std::span<const int32_t> column(int64_t c) const {
    return members.span().subspan(static_cast<size_t>(c * count), static_cast<size_t>(count));
  }
};
DistinctTuples distinct_tuples(std::span<const std::span<const int32_t>> columns);

}  // namespace segue::sparse
