#pragma once

#include <cstdint>
#include <span>

#include "tensor/host_array.h"

namespace segue::sparse {

/// Memory that the functions below work in. Kept from call to call, so that a step does not take
/// and touch new pages; one call at a time.
struct DedupScratch {
  HostArray<uint64_t> records, other;  // of a sort; or a bit per possible id, then counts
  HostArray<int64_t> counts;
  HostArray<int64_t> keys;     // of tuples
  HostArray<int32_t> example;  // of tuples: where each occurs
};

/// Distinct values in ascending order, and for every input the place of its value (-1 stays -1 when
/// `skip_negative`).
struct Distinct {
  HostArray<int64_t> values;   // [distinct]
  HostArray<int32_t> inverse;  // [inputs]
};
void distinct(std::span<const int64_t> ids, bool skip_negative, DedupScratch& scratch,
              Distinct& out);
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
void distinct_tuples(std::span<const std::span<const int32_t>> columns, DedupScratch& scratch,
                     DistinctTuples& out);
DistinctTuples distinct_tuples(std::span<const std::span<const int32_t>> columns);

}  // namespace segue::sparse
