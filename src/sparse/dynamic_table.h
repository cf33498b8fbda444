#pragma once

#include <span>
#include <vector>

#include "sparse/key_table.h"
#include "sparse/mixed_order.h"
#include "tensor/event.h"
#include "tensor/growing_buffer.h"

namespace segue::sparse {

/// All rows, and the index, in device memory that grows; the rows of a small table have all of
/// their memory from the start (TableSpec::weights).
class DynamicTable final : public KeyTable {
 public:
  explicit DynamicTable(TableSpec spec);

  void resolve(const Exec& exec, std::span<const LateBatch> batches) override;
  Resident resident() const override;
  void release(std::span<const int64_t> slots, Mode mode, const Stream* last_use) override;
  std::vector<TableArray> snapshot(Extent extent) override;
  Frozen freeze(Extent extent, const Stream& stream) override;
  int64_t bytes() const override;

 private:
  /// Of resolve(): at most MixedOrder::kMostLists batches that have keys.
  void find_rows(const Exec& exec, std::span<const LateBatch> batches);
  void find_or_add_rows(const Exec& exec, std::span<const LateBatch> batches);
  /// Room for rows 0 ... rows - 1.
  void make_room(int64_t rows);
  void load_rows(const SavedArrays& saved, std::span<const int64_t> places,
                 std::span<const int64_t> keys) override;

  GrowingBuffer weight_memory_, state_memory_;  // nothing where the spec has memory
  MixedOrder order_;                            // of resolve(), where this table is the first
  Event updated_;                               // behind the last use that was released
};

}  // namespace segue::sparse
