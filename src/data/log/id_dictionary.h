#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/store/store_stage.h"
#include "data/store/store_writer.h"

namespace segue::data {

/// Gives the distinct values of a column the numbers 0, 1, ... in an order that does not depend on
/// where they were seen: by value if all are integers, by their bytes otherwise.
class IdDictionary {
 public:
  /// Error(kOutOfMemory) names the column when the values need more than `memory_bytes`.
  IdDictionary(std::string column, int64_t memory_bytes);

  void add(std::string_view value);
  void add(int64_t value);
  /// After the last add(), before the first find().
  void finish();

  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  /// -1 for a value that was never added.
  int64_t find(std::string_view value) const;
  int64_t find(int64_t value) const;
  const std::string& column() const { return column_; }

  /// Writes the values by their number: segue/<name>_ids.npy (int64) or segue/<name>_ids.txt (one
  /// per line).
  base::FileRecord write(const StoreStage& stage, const std::string& name) const;

 private:
  std::string_view value(uint32_t index) const;
  size_t slot_of(std::string_view value) const;
  void grow_table();
  void check_memory() const;

  std::string column_;
  int64_t memory_bytes_;
  std::string chars_;              // all values, one behind the other
  std::vector<uint64_t> ends_;     // of each value in chars_
  std::vector<uint32_t> slots_;    // open addressing: index + 1, 0 where free
  std::vector<uint32_t> numbers_;  // by index
  bool integers_ = false;          // all values are, in their only spelling
};

}  // namespace segue::data
