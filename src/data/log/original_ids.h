#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "data/log/id_dictionary.h"
#include "data/log/table_reader.h"
#include "data/store/id_maps.h"

namespace segue::data {

/// Ids of the users or items of a store as its log has them, and their numbers. Where they stayed
/// as they are, both are the same. Holds all ids of a map in memory.
class OriginalIds {
 public:
  /// `column` is "user" or "item". Error(kCorrupt) where its map is not as it was written.
  OriginalIds(const IdMaps& maps, const std::string& column);

  /// A column of a file that has such ids.
  ColumnRequest request(const std::string& column) const;
  /// The number of an id; Error(kOutOfRange) names `where` and the id if the store does not have
  /// it, and so for one that is no integer where all are.
  int64_t number(const RawColumn& column, size_t row, const std::string& where) const;
  int64_t number(std::string_view id, const std::string& where) const;
  /// Error(kUnsupported) names an id that is no UTF-8, as texts in `file` are.
  void require_utf8(const std::string& file) const;
  /// The id of a number, for messages.
  std::string text(int64_t number) const;
  /// The ids of numbers, as a column of the same type as the log's.
  TableColumn ids_of(std::string name, std::span<const int64_t> numbers) const;

 private:
  [[noreturn]] void fail_unknown(std::string_view id, const std::string& where) const;
  int64_t require(int64_t number, std::string_view id, const std::string& where) const;

  std::string store_, column_, file_;
  std::unique_ptr<IdDictionary> dictionary_;  // null: ids are their own numbers
};

}  // namespace segue::data
