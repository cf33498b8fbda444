#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/log/skipped_rows.h"

namespace segue::data {

/// What became of the rows of a log: STORE/segue/rows.json.
struct RowCounts {
  int64_t rows = 0;     // read
  int64_t skipped = 0;  // could not be used
  std::vector<SkippedRows::Reason> reasons;
  /// Events equal to another in everything that a store keeps (times in seconds); all but one of
  /// such are counted.
  int64_t duplicates = 0;
  bool dropped = false;  // duplicates are not in the store

  RowCounts& operator+=(const RowCounts& other);  // without reasons

  std::string to_json() const;
  /// Of a store or a segment; nothing but zeros where it has no such file, as before version 0.2.
  static RowCounts read(const std::string& store);
};

inline constexpr const char* kRowsFile = "segue/rows.json";

}  // namespace segue::data
