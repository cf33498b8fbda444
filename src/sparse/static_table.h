#pragma once

#include "sparse/row_table.h"
#include "tensor/buffer.h"

namespace segue::sparse {

/// All rows in device memory from the start; a slot is a row's number on its rank.
class StaticTable final : public RowTable {
 public:
  explicit StaticTable(TableSpec spec);

  bool ids_are_keys() const override { return spec().ranks == 1; }
  void find_slots(std::span<int64_t> keys, Mode mode) override;
  Resident resident() const override { return resident_; }
  /// "weight" and "state": the memory itself.
  std::vector<TableArray> snapshot() override;
  void load(const SavedArrays& saved) override;
  int64_t bytes() const override { return weight_memory_.bytes() + state_memory_.bytes(); }

 private:
  void initialize_rows();

  Buffer weight_memory_, state_memory_;
  Resident resident_;
};

}  // namespace segue::sparse
