#pragma once

#include <vector>

#include "sparse/row_table.h"
#include "tensor/buffer.h"

namespace segue::sparse {

/// All rows in device memory from the start; a slot is a row's number on its rank.
class StaticTable final : public RowTable {
 public:
  explicit StaticTable(TableSpec spec);

  bool ids_are_keys() const override { return spec().ranks == 1; }
  bool slots_are_keys() const override { return !tracks_changes(); }
  void find_slots(std::span<int64_t> keys, Mode mode) override;
  Resident resident() const override { return resident_; }
  void release(std::span<const int64_t> slots, Mode mode, const Stream* last_use) override;
  /// "weight" and "state": the memory itself.
  std::vector<TableArray> snapshot(Extent extent) override;
  void load(const SavedArrays& saved) override;
  int64_t bytes() const override { return resident_.weights.bytes() + resident_.state.bytes(); }

 private:
  void initialize_rows();

  Buffer weight_memory_, state_memory_;  // nothing where the spec has memory
  Resident resident_;
  std::vector<int64_t> saved_rows_, saved_order_;  // what snapshot() shows of changes
};

}  // namespace segue::sparse
