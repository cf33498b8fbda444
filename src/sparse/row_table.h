#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "sparse/table.h"

namespace segue::sparse {

/// Rows 0 ... rows - 1, wherever they lie. Ids outside follow the policy: kError throws; kClamp
/// takes the nearest row; kZero has no row. Keys are rows numbered part by part (RowPartition); a
/// rank numbers the rows of its part from 0: on one rank all three are equal.
///
/// Checkpoints have such a table in one of two forms, which all kinds of it read: "weight" and
/// "state" of all rows in their order; or "row", numbers of the rows that training has touched, and
/// "weight" and "state" of those. All others have their initial values. Changes have the second
/// form.
class RowTable : public Table {
 public:
  explicit RowTable(TableSpec spec);

  int64_t check(const Lookup& lookup) const override;
  void make_keys(std::span<const int64_t> ids, int64_t* keys) const override;
  Share share_of(int rank) const override;
  void mark_saved() override;

 protected:
  const LocalShard& shard() const { return shard_; }
  int64_t columns() const { return shard_.columns.width(); }
  int64_t state_columns() const { return ops::row_state_size(spec().optimizer, columns()); }
  /// Keys of this rank become the numbers of its rows.
  void make_local(std::span<int64_t> keys) const;
  /// Of the whole table.
  int64_t row_number(int64_t local) const { return shard_.partition.row_of(shard_.part, local); }

  /// All rows of this rank in their order.
  std::vector<TableArray> dense_arrays(const Tensor& weights, const Tensor& state) const;
  /// Some of them: `rows` [n] has their numbers in the whole table, ascending. Row i lies at
  /// order[i] in the memory of the others.
  std::vector<TableArray> sparse_arrays(const Tensor& rows, const Tensor& weights,
                                        const Tensor& state, std::span<const int64_t> order) const;

  /// Whether the host must know which rows are trained.
  bool tracks_changes() const { return !changed_.empty(); }
  /// Rows of these numbers on this rank are trained.
  void note_changed(std::span<const int64_t> local);
  /// Those since mark_saved(), in the order of their numbers in the whole table.
  std::vector<int64_t> changed_rows() const;
  /// Their numbers in the whole table.
  std::vector<int64_t> row_numbers(std::span<const int64_t> local) const;

  /// Some rows out of a checkpoint: their numbers on this rank, and what it keeps of them.
  struct LoadedRows {
    std::span<const int64_t> local;
    std::byte* weights = nullptr;  // contiguous host memory
    std::byte* state = nullptr;
  };
  /// Reads what a checkpoint has of this rank's rows, some at a time. Error(kConfig) where it has
  /// another table.
  void read_rows(const SavedArrays& saved, const std::function<void(const LoadedRows&)>& use) const;

 private:
  LocalShard shard_of(int rank) const;
  /// Which columns of the whole this rank has.
  struct Columns {
    int64_t whole = 0;
    std::vector<ColumnRange> ranges;
    bool same_everywhere = false;  // all owners have the same
  };
  Columns weight_columns() const;
  Columns state_array_columns() const;
  TableArray dense_array(const char* name, const Tensor& value, const Columns& columns) const;
  TableArray sparse_array(const char* name, const Tensor& value, const Columns& columns) const;
  void check_saved(const SavedArrays& saved) const;

  LocalShard shard_;
  std::vector<uint64_t> changed_;  // a bit per row; empty until mark_saved()
};

}  // namespace segue::sparse
