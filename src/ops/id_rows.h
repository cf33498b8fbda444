#pragma once

#include <span>

#include "ops/optimizer.h"
#include "ops/rows.h"

namespace segue::ops {

/// A row for each id of a table whose distinct rows are elsewhere named by slots:
/// to[i] = table[slots[places[i] - first]] for i32 `places` [n] and i64 `slots`; place or slot -1
/// gives a zero row.
struct IdRows {
  Tensor table, slots, places;
  int64_t first = 0;
  Tensor to;
};
/// Of several tables, all of one width and type: on a GPU one launch. Values pass through `wire` as
/// in gather_tables.
void gather_id_rows(const Exec& exec, std::span<const IdRows> parts, DType wire = DType::kF32);

/// The ids of a batch by their rows.
struct IdOrder {
  SortedIndex sorted;
  Tensor starts;  // i32, at least [rows + 1]: where in `sorted` each row begins
};

/// segment_sum, then update_tables with the sums, which need not be stored: index[i] says which row
/// gradient i [n, dim] goes to (i32; -1: none), counted through the ids of all parts. Parts have no
/// gradients and no mean squares. On a GPU a single pass where the order is known and the optimizer
/// looks at each element by itself.
void update_tables_by_sums(const Exec& exec, const RowUpdateParams& p, const Tensor& gradients,
                           const Tensor& index, const IdOrder& order,
                           std::span<const TableUpdate> parts, DType wire,
                           const Tensor& finite = {});

}  // namespace segue::ops
