#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "sparse/table_snapshot.h"

namespace segue::train {

using sparse::ArrayPart;
using sparse::ColumnRange;

/// Whether an array of this shape can be stored: sizes not negative, and its bytes, those of its
/// rows and any sums of them fit 64 bits, also where another size is 0.
bool is_storable(std::span<const int64_t> shape);

/// What is missing, twice or outside when `parts` are to make up one array; empty: nothing.
std::string cover_problem(std::span<const ArrayPart> parts);

/// A saved part and its bytes: runs of whole slots, in order, mapped from files.
struct StoredPart {
  struct Run {
    int64_t first_slot = 0;
    std::span<const std::byte> bytes;
  };
  ArrayPart part;
  std::vector<Run> runs;
};

/// Copies rows out of stored parts that make up a whole into memory laid out as another part.
class PartReader {
 public:
  /// Both outlive the reader.
  PartReader(std::span<const StoredPart> from, const ArrayPart& to, int64_t element_bytes);

  /// The stored part whose bytes are those of the target as they lie, if there is one: equal
  /// partitions and columns, the common case.
  const StoredPart* same() const { return same_; }

  /// Fills `out` with the slots [first, first + count) of the target; all threads.
  void read(int64_t first, int64_t count, std::byte* out) const;

 private:
  struct Move {  // bytes within a row
    int64_t from = 0, to = 0, bytes = 0;
  };
  struct Source {
    const StoredPart* stored = nullptr;
    int64_t row_bytes = 0;
    std::vector<Move> moves;
  };
  void copy_row(int64_t slot, std::byte* out) const;

  const ArrayPart& to_;
  int64_t row_bytes_ = 0;
  sparse::RowPartition partition_;            // of what is stored
  std::vector<std::vector<Source>> sources_;  // [part of the stored partition]
  const StoredPart* same_ = nullptr;
};

/// Copies rows of the whole, in its order, out of the stored parts that make it up.
class WholeReader {
 public:
  /// `from` outlives the reader; `shape` is that of the whole.
  WholeReader(std::span<const StoredPart> from, const std::vector<int64_t>& shape,
              int64_t element_bytes);

  int64_t rows() const { return whole_.rows(); }
  int64_t row_bytes() const { return row_bytes_; }
  void read(int64_t first, int64_t count, std::byte* out) const;

 private:
  ArrayPart whole_;
  std::span<const StoredPart> from_;
  int64_t element_bytes_ = 0, row_bytes_ = 0;
  std::vector<StoredPart::Run> runs_;  // stacked ones: by row of the whole
};

}  // namespace segue::train
