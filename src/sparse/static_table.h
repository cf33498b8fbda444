#pragma once

#include "sparse/table.h"
#include "tensor/buffer.h"

namespace segue::sparse {

/// Rows 0 ... rows - 1, all of them in device memory from the start. Ids outside follow the policy:
/// kError throws; kClamp takes the nearest row; kZero has no row. Keys are rows numbered part by
/// part (RowPartition), a slot is a row's number within its part: on one rank all three are equal.
class StaticTable final : public Table {
 public:
  explicit StaticTable(TableSpec spec);

  int64_t check(const Lookup& lookup) const override;
  void make_keys(std::span<const int64_t> ids, int64_t* keys) const override;
  Share share_of(int rank) const override;
  void find_slots(std::span<int64_t> keys, Mode mode) override;
  Resident resident() const override { return resident_; }
  /// "weight" and "state": the memory itself.
  std::vector<TableArray> snapshot() override;
  void load(const SavedArrays& /*saved*/) override {}
  int64_t bytes() const override { return weight_memory_.bytes() + state_memory_.bytes(); }

 private:
  LocalShard shard_of(int rank) const;
  void initialize_rows();
  TableArray describe_array(TableArray array, int64_t columns, std::vector<ColumnRange> ranges,
                            bool same_everywhere) const;
  TableArray describe_state() const;

  LocalShard shard_;
  Buffer weight_memory_, state_memory_;
  Resident resident_;
};

}  // namespace segue::sparse
