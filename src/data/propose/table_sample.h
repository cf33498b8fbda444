#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "data/log/log_reader.h"
#include "data/log/table_reader.h"

namespace segue::data {

/// Some rows of a column: which values it has, where, and what they look like.
struct ColumnSample {
  enum class Type { kInteger, kNumber, kTime, kText };

  std::string name;
  Type type = Type::kText;
  double unit_seconds = 0;       // of times that say it themselves: dates are 1
  bool is_text_in_file = false;  // the file says what its columns are, and that this one is text
  bool numbers_as_text = false;  // such a text, although it has numbers: nothing reads them as such
  std::deque<std::string> values;                         // different ones
  std::unordered_map<std::string_view, uint32_t> places;  // of every value among them
  std::vector<uint32_t> codes;  // of every row: its value, kMissing where there is none
  std::vector<int64_t> counts;  // of every value
  double min = 0, max = 0;      // of numbers; min > max: there is none

  ColumnSample() = default;
  ColumnSample(ColumnSample&&) = default;  // places look into values: there are no copies
  ColumnSample& operator=(ColumnSample&&) = default;

  static constexpr uint32_t kMissing = std::numeric_limits<uint32_t>::max();
  int64_t present() const;  // rows with a value
  double number(size_t value) const;
  bool has(const std::string& value) const;
  bool has_numbers() const { return min <= max; }
  /// No values but 0 and 1, also as 0.0 and 1.0, or false and true.
  bool is_flag() const;
  /// Integers with zeros in front, such as 007, that are lost where it is taken as a number.
  bool is_padded() const;
};

/// The beginning of files that have the same columns.
struct TableSample {
  std::vector<LogFile> files;
  std::string pattern;   // names them below the folder
  bool parquet = false;  // else CSV
  CsvFormat csv;         // columns: where the files have no header line
  std::vector<ColumnSample> columns;
  std::vector<std::string> unreadable;  // "COLUMN: why it cannot be read"
  int64_t rows = 0;                     // in the sample
  int64_t broken_rows = 0;              // besides them, such as lines with more fields
  double all_rows = 0;                  // in the files, about

  const ColumnSample* find(const std::string& name) const;
};

struct FolderSample {
  std::string folder;
  std::vector<TableSample> tables;    // the largest first
  std::vector<std::string> left_out;  // "NAME: why"
};

/// Looks at the files of a folder, or at one file. Error(kNotFound) if there is none that can be
/// read, with what is there instead.
FolderSample sample_files(const std::string& raw, const ParquetSupport* parquet);

}  // namespace segue::data
