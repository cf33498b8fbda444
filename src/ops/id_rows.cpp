#include "ops/id_rows.h"

#include <vector>

#include "base/error.h"
#include "ops/cuda_forms.h"
#include "ops/id_rows_cuda.h"

namespace segue::ops {

void gather_id_rows(const Exec& exec, std::span<const IdRows> parts, DType wire) {
  for (const auto& [table, slots, places, first, to] : parts) {
    SEGUE_ASSERT(
        to.size(0) == places.size(0) && to.size(1) == table.size(1) && to.dtype == table.dtype,
        "gather_id_rows: shapes differ");
  }
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda()) return cuda::gather_id_rows(exec, parts, wire);
  }
  for (const auto& [table, slots, places, first, to] : parts) {
    const Arena::Mark mark(*exec.arena);
    const int64_t n = places.size(0);
    const Tensor index = exec.arena->tensor(DType::kI64, {n});
    for (int64_t i = 0; i < n; ++i) {
      const int64_t place = places.ptr<int32_t>()[i];
      index.ptr<int64_t>()[i] = place < 0 ? -1 : slots.ptr<int64_t>()[place - first];
    }
    gather_rows(exec, table, index, to);
    round_rows_to_wire(exec, wire, to);
  }
}

void update_tables_by_sums(const Exec& exec, const RowUpdateParams& p, const Tensor& gradients,
                           const Tensor& index, const IdOrder& order,
                           std::span<const TableUpdate> parts, DType wire, const Tensor& finite) {
  if (parts.empty()) return;
  SEGUE_ASSERT(gradients.size(0) == index.size(0), "a destination for each gradient");
  if constexpr (kHasCuda) {
    if (exec.device.is_cuda() &&
        cuda::update_tables_by_sums(exec, p, gradients, order, parts, wire, finite)) {
      return;
    }
  }
  int64_t rows = 0;
  for (const TableUpdate& part : parts) rows += part.ids.size(0);
  const Arena::Mark mark(*exec.arena);
  const Tensor sums = exec.arena->tensor(parts.front().table.dtype, {rows, gradients.size(1)});
  zero(sums, exec.stream);
  segment_sum(exec, gradients, index, sums, 1, order.sorted);
  std::vector<TableUpdate> updates(parts.begin(), parts.end());
  int64_t first = 0;
  for (TableUpdate& update : updates) {
    update.gradients = sums.rows(first, update.ids.size(0));
    first += update.ids.size(0);
  }
  update_tables(exec, p, updates, wire, finite);
}

}  // namespace segue::ops
