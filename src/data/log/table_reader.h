#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace segue::data {

/// What a column is wanted as. A value that cannot be is Error(kCorrupt) with file and row.
enum class ColumnRole {
  kInteger,  // any integer width, true and false, floats without a fraction
  kWhole,    // any number, its fraction cut off (towards minus infinity)
  kTime,     // as kWhole; text: or a date (ISO 8601), which is seconds since 1970
  kNumber,   // any number; NaN counts as missing
  kText,
  kKind,  // text or integers, as the file has it
};

struct ColumnRequest {
  std::string name;
  ColumnRole role = ColumnRole::kInteger;
  std::string hint = {};         // what to do about a value of another kind, for messages
  std::string time_format = {};  // of a kTime: how it is written (time_format.h); empty: as above
  /// An id, of which "007" is another than "7"; as a kText it is an integer where the file says so.
  bool exact = false;
};

/// Texts in one piece of memory.
class TextList {
 public:
  void clear() {
    chars_.clear();
    ends_.clear();
  }
  void add(std::string_view text) {
    chars_.append(text);
    ends_.push_back(chars_.size());
  }
  /// For few distinct texts: the place of `text`, added if the first 64 have no such.
  uint32_t find_or_add(std::string_view text) {
    for (size_t i = 0; i < std::min<size_t>(size(), 64); ++i) {
      if ((*this)[i] == text) return static_cast<uint32_t>(i);
    }
    add(text);
    return static_cast<uint32_t>(size() - 1);
  }
  size_t size() const { return ends_.size(); }
  std::string_view operator[](size_t i) const {
    const size_t begin = i == 0 ? 0 : ends_[i - 1];
    return std::string_view(chars_).substr(begin, ends_[i] - begin);
  }

 private:
  std::string chars_;
  std::vector<size_t> ends_;
};

/// The rows of a block in one column.
struct RawColumn {
  enum class Type { kInteger, kNumber, kText };
  Type type = Type::kInteger;
  std::vector<int64_t> integers;  // kInteger
  std::vector<double> numbers;    // kNumber
  TextList texts;                 // kText: row i has texts[codes[i]]
  std::vector<uint32_t> codes;
  bool untyped = false;        // read from a file that does not say what its columns are
  std::vector<uint8_t> valid;  // 0 where a value is missing; empty: none is
  /// Seconds that 1 stands for, where the file says so itself (Parquet timestamps); 0: it does not.
  double unit_seconds = 0;

  bool is_valid(size_t row) const { return valid.empty() || valid[row] != 0; }
  std::string_view text(size_t row) const { return texts[codes[row]]; }
  void clear();
};

/// What is wrong with a row, in words that can be counted: "user", "is empty".
struct RowFault {
  std::string column;  // empty: the row as a whole
  std::string reason;
};

/// A row that breaks its schema: Error(kCorrupt) with file and row.
class RowError : public Error {
 public:
  RowError(RowFault fault, const std::string& message)
      : Error(ErrorCode::kCorrupt, message), fault_(std::move(fault)) {}
  const RowFault& fault() const { return fault_; }

 private:
  RowFault fault_;
};

/// A row of a block whose values mean nothing.
struct BadRow {
  size_t row = 0;
  RowFault fault;
};

struct RawBlock {
  std::vector<RawColumn> columns;  // in the order of the requests
  size_t rows = 0;
  std::vector<BadRow> bad;  // ascending; only with TableOptions::mark_bad_rows
  int64_t first_row = 0;    // in its file, from 0
  size_t file = 0;          // set by whoever reads several
};

/// Whether `row` is among `bad`, then at `next`. Rows rise from call to call, `next` starts at 0.
bool is_listed(const std::vector<BadRow>& bad, size_t row, size_t& next);

/// Reads some columns of a file from front to back, in bounded memory.
class TableReader {
 public:
  virtual ~TableReader() = default;
  /// Replaces `block`; false at the end.
  virtual bool read(RawBlock& block) = 0;
  virtual int64_t bytes_read() const = 0;  // about
};

struct CsvFormat {
  std::string separator = ",";       // quotes have no meaning with a longer one
  std::vector<std::string> columns;  // empty: the first line has them
};

class SessionWriter;
class StoreStage;

/// A column to write: integers, or reals or texts if there are any.
struct TableColumn {
  std::string name;
  std::vector<int64_t> integers = {};
  std::vector<float> reals = {};
  std::vector<std::string> texts = {};

  bool is_real() const { return !reals.empty(); }
  bool is_text() const { return !texts.empty(); }
  size_t size() const { return std::max({integers.size(), reals.size(), texts.size()}); }
};

/// A field of a CSV file, in quotes where it would not be read back as one.
std::string csv_field(const std::string& text);

/// A column of a Parquet file, and as what it is best read.
struct ParquetColumn {
  std::string name;
  ColumnRole role = ColumnRole::kText;
  std::string unreadable = {};  // why nothing can be made of it, and what to bring; empty: it can
};

/// What the optional Parquet library gives to the rest.
class ParquetSupport {
 public:
  virtual ~ParquetSupport() = default;
  virtual std::unique_ptr<TableReader> open(const std::string& path,
                                            const std::vector<ColumnRequest>& columns,
                                            size_t block_rows, bool mark_bad_rows) const = 0;
  virtual std::vector<ParquetColumn> columns(const std::string& path) const = 0;
  /// True if the column holds text.
  virtual bool is_text(const std::string& path, const std::string& column) const = 0;
  /// Columns of equal length; the file appears when it is complete.
  virtual void write_table(const std::string& path, std::span<const TableColumn> columns) const = 0;
  virtual std::unique_ptr<SessionWriter> write_sessions(StoreStage& stage) const = 0;
};

/// How tables are opened.
struct TableOptions {
  CsvFormat csv;
  const ParquetSupport* parquet = nullptr;  // null: built without
  size_t block_rows = 1 << 15;
  bool mark_bad_rows = false;  // rows that cannot be read go to RawBlock::bad: no RowError
};

/// The first bytes tell what a file is, whatever its name says. Error(kCorrupt) for an empty file.
bool is_parquet(const std::string& path);
/// Error(kUnsupported) in a build without.
const ParquetSupport& require_parquet(const std::string& path, const ParquetSupport* parquet);

/// A Parquet file by its first bytes, anything else as CSV. Error(kConfig) for a column that is not
/// there, Error(kUnsupported) for Parquet without support for it.
std::unique_ptr<TableReader> open_table(const std::string& path,
                                        const std::vector<ColumnRequest>& columns,
                                        const TableOptions& options);

/// True if the file has the column, whatever its type.
bool has_column(const std::string& path, const std::string& name, const TableOptions& options);

/// True if the column holds text: by its type (Parquet) or its first value (CSV), in the first of
/// the files that has one.
bool column_is_text(std::span<const std::string> paths, const std::string& column,
                    const TableOptions& options);

/// A CSV reader is a plain TableReader; open_table() chooses it.
std::unique_ptr<TableReader> open_csv(const std::string& path,
                                      const std::vector<ColumnRequest>& columns,
                                      const CsvFormat& format, size_t block_rows,
                                      bool mark_bad_rows = false);

/// The same of the text of a file, which must outlive the reader; `path` is for messages. Of it
/// `buffer_bytes` (4 or more) are copied at a time, as of a file the megabyte that fits in memory.
std::unique_ptr<TableReader> open_csv_text(std::string_view text, const std::string& path,
                                           const std::vector<ColumnRequest>& columns,
                                           const CsvFormat& format, size_t block_rows,
                                           size_t buffer_bytes, bool mark_bad_rows = false);

/// Place of `name` in `names`. Error(kConfig) that lists what `path` has instead.
size_t find_column(const std::string& path, const std::vector<std::string>& names,
                   const std::string& name);

/// The number that `text` is, in decimal without blanks and leading zeros; false if it is none.
bool parse_canonical_integer(std::string_view text, int64_t& value);

/// The same, or 12.0, as tables with missing values have integers.
bool parse_whole_integer(std::string_view text, int64_t& value);
/// Of 2^53 or more, and written as a floating-point number: 1.2e+18 may stand for several integers.
bool is_rounded_number(std::string_view text);

/// true or false, as files spell them; false if `text` is neither.
bool parse_bool(std::string_view text, bool& value);

[[noreturn]] void fail_empty(const std::string& path);
/// Error(kUnsupported) if the beginning of a file is UTF-16 or JSON, or has no line ends but
/// carriage returns, with what makes CSV of it.
void check_csv_text(const std::string& path, std::string_view head);
/// RowError.
[[noreturn]] void fail_row(const std::string& path, int64_t row, RowFault fault,
                           const std::string& what);
/// The same for an id that is a rounded number.
[[noreturn]] void fail_rounded(const std::string& path, int64_t row, const std::string& column,
                               std::string_view id);

}  // namespace segue::data
