#pragma once

#include "ops/id_rows.h"

namespace segue::ops::cuda {

void gather_id_rows(const Exec& exec, std::span<const IdRows> parts, DType wire);
/// False: not in a single pass.
bool update_tables_by_sums(const Exec& exec, const RowUpdateParams& p, const Tensor& gradients,
                           const IdOrder& order, std::span<const TableUpdate> parts, DType wire,
                           const Tensor& finite);

}  // namespace segue::ops::cuda
