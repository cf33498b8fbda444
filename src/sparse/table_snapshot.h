#pragma once

#include <cstdint>
#include <optional>
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
/// them the column ranges one after the other.
struct ArrayPart {
  std::vector<int64_t> shape;  // of the whole
  RowPartition partition;      // of its rows
  int64_t part = 0;            // of the partition; -1: nothing
  std::vector<ColumnRange> columns;

  /// All of it. Dimensions after the first count as columns.
  static ArrayPart whole(std::vector<int64_t> shape);

  int64_t rows() const { return part < 0 ? 0 : partition.count(part); }
  int64_t width() const;
  int64_t whole_columns() const;
};

/// One array that makes up a table, as far as this rank has it: contiguous memory on any device,
/// the table's own or a copy, valid until the table is used again.
struct TableArray {
  std::string name;
  Tensor value;
  std::optional<ArrayPart> part;  // absent: all of it, because one rank has everything
  bool saved_here = true;         // false where another rank saves the same part
  std::string hint;               // what may be behind it when a checkpoint has another shape
};

}  // namespace segue::sparse
