#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "sparse/shard_plan.h"
#include "tensor/tensor.h"

namespace segue::sparse {

/// Columns [begin, begin + count).
struct ColumnRange {
  int64_t begin = 0, count = 0;
  bool operator==(const ColumnRange&) const = default;
};

/// Which part of a whole matrix some memory holds: rows by the slots of a partition, and in each of
/// them the column ranges one after the other. Or, stacked: as many rows as there happen to be,
/// which lie one part after the other in the whole.
struct ArrayPart {
  std::vector<int64_t> shape;  // of the whole; stacked: of this part
  RowPartition partition;      // of its rows
  int64_t part = 0;            // of the partition; -1: nothing
  std::vector<ColumnRange> columns;
  bool stacked = false;

  /// All of it. Dimensions after the first count as columns.
  static ArrayPart whole(std::vector<int64_t> shape);
  /// `value` as what rank `rank` puts on the stack.
  static ArrayPart stack(const Tensor& value, int rank);

  int64_t rows() const {
    if (stacked) return shape.front();
    return part < 0 ? 0 : partition.count(part);
  }
  int64_t width() const;
  int64_t whole_columns() const;
};

/// What of a table is saved: all of it, or what has changed since the save before.
enum class Extent { kAll, kChanges };

/// The arrays that a checkpoint has of one table.
class SavedArrays {
 public:
  virtual ~SavedArrays() = default;
  /// Sizes of the whole; absent: there is no such array.
  virtual std::optional<std::vector<int64_t>> shape(const std::string& name) const = 0;
  /// Rows [first, first + count) of the whole, into contiguous host memory of this type.
  /// Error(kConfig) where another type was saved.
  virtual void read(const std::string& name, DType dtype, int64_t first, int64_t count,
                    void* to) const = 0;
};

/// All of an array of integers, [n] where `columns` is 1, else [n, columns]; absent: nothing.
/// Error(kCorrupt) where it has another shape.
std::vector<int64_t> saved_integers(const SavedArrays& saved, const std::string& name,
                                    int64_t columns);

/// One array that makes up a table, as far as this rank has it: contiguous memory on any device,
/// the table's own or a copy, valid until the table is used again.
struct TableArray {
  std::string name;
  Tensor value;
  std::optional<ArrayPart> part;  // absent: all of it, because one rank has everything
  bool saved_here = true;         // false where another rank saves the same part
  std::string hint;               // what may be behind it when a checkpoint has another shape
  bool any_rows = false;          // of no fixed size: Table::load() reads it
  std::string unless;             // likewise where the checkpoint has this array of the table
  /// Row i lies at order[i] in the memory of `value`, whose sizes are those of the array; absent:
  /// at i.
  std::span<const int64_t> order = {};
};

}  // namespace segue::sparse
