#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/store/id_maps.h"
#include "data/store/store_stage.h"
#include "data/store/store_writer.h"

namespace segue::data {

/// Gives the distinct values of a column the numbers 0, 1, ... in an order that does not depend on
/// where they were seen: by value if all are integers, by their bytes otherwise. Values that have
/// numbers already keep them, the others get those behind.
class IdDictionary {
 public:
  /// Error(kOutOfMemory) names the column when the values need more than `memory_bytes`.
  IdDictionary(std::string column, int64_t memory_bytes);

  /// Before the first add(): takes over the numbers that `maps` has for `name`.
  void keep(const IdMaps& maps, const std::string& name);
  void add(std::string_view value);
  void add(int64_t value);
  /// A text of a file that does not say what its columns are: 12.0 is the integer 12, unless it was
  /// kept as it is written.
  void add_untyped(std::string_view value);
  /// After the last add(), before the first find().
  void finish();

  int64_t size() const { return static_cast<int64_t>(ends_.size()); }
  int64_t kept() const { return static_cast<int64_t>(kept_); }  // of them by keep()
  bool has_new() const { return size() > kept(); }
  bool integers() const { return integers_; }  // all values are, in their only spelling
  /// -1 for a value that was never added.
  int64_t find(std::string_view value) const;
  int64_t find(int64_t value) const;
  int64_t find_untyped(std::string_view value) const;
  /// The value of a number.
  std::string_view text(int64_t number) const { return value(order_[static_cast<size_t>(number)]); }
  const std::string& column() const { return column_; }

  /// Of all values.
  IdRecord record(const std::string& name) const;
  /// Writes the values from number `first` on: segue/<name>_ids.npy (int64) or segue/<name>_ids.txt
  /// (one per line).
  base::FileRecord write(const StoreStage& stage, const std::string& name, int64_t first = 0) const;
  /// Gives a store the map, and a segment the part of it that those before do not have.
  void save(const std::string& name, StoreWriter& store) const;

 private:
  std::string_view value(uint32_t index) const;
  bool all_integers(size_t first) const;  // by number
  size_t slot_of(std::string_view value) const;
  void grow_table();
  void check_memory() const;

  std::string column_;
  int64_t memory_bytes_;
  std::string chars_;              // all values, one behind the other
  std::vector<uint64_t> ends_;     // of each value in chars_
  std::vector<uint32_t> slots_;    // open addressing: index + 1, 0 where free
  std::vector<uint32_t> numbers_;  // by index
  std::vector<uint32_t> order_;    // indices by number
  size_t kept_ = 0;
  bool integers_ = false;
};

/// The dictionary of a column that is `numbered`, with the numbers that `known` (may be null) has
/// for `name`; null: its values stay as they are. Error(kConfig) where `known` says otherwise.
std::unique_ptr<IdDictionary> make_dictionary(bool numbered, const std::string& name,
                                              const std::string& column, int64_t memory_bytes,
                                              const IdMaps* known);

}  // namespace segue::data
