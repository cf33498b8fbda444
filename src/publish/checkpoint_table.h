#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "publish/row_codec.h"
#include "sparse/table_snapshot.h"
#include "tensor/tensor.h"
#include "train/checkpoint/checkpoint.h"

namespace segue::publish {

/// Names of the tables of a checkpoint, ascending.
std::vector<std::string> tables_of(const train::Checkpoint& checkpoint);

/// Keys (or rows, of a static table) that may differ from those of the checkpoint whose manifest
/// has the checksum `since`, ascending; absent: this one is no increment of that one, all have to
/// be compared.
std::optional<std::vector<int64_t>> changed_keys(const train::Checkpoint& checkpoint,
                                                 const std::string& table, uint64_t since);

/// The rows that a checkpoint, which outlives it, has of one table, by id and encoded. Memory: 16
/// bytes per row, 8 where all rows of a static table were saved.
class CheckpointTable {
 public:
  /// Error(kNotFound) without such a table, Error(kCorrupt) where its arrays contradict each other.
  CheckpointTable(const train::Checkpoint& checkpoint, std::string table, RowType type);

  const RowCodec& codec() const { return codec_; }
  std::span<const int64_t> ids() const { return ids_; }  // ascending
  /// Ids of keys as changed_keys() gives them, ascending.
  std::vector<int64_t> ids_of(std::vector<int64_t> keys) const;

  /// The row of ids()[i], valid until the next call. Calls in ascending order are read ahead.
  /// Error(kNumeric) that names table and id where a number is not finite.
  Row row(size_t i);

 private:
  void read(size_t first, size_t count);
  void read_numbers(int64_t place, int64_t count, float* to);

  std::string path_, table_;
  std::unique_ptr<sparse::SavedArrays> saved_;
  DType stored_ = DType::kF32;
  bool dynamic_ = false;
  std::vector<int64_t> ids_;
  std::vector<int64_t> places_;  // of the ids in the arrays; empty: the same
  RowCodec codec_;
  size_t first_ = 0, ahead_ = 1;  // what is read ahead: from which on, how many
  std::vector<float> numbers_, scales_;
  std::vector<double> wide_;
  std::vector<std::byte> weights_;
};

}  // namespace segue::publish
