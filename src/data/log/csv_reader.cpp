#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>

#include <fmt/format.h>

#include "base/error.h"
#include "data/log/byte_source.h"
#include "data/log/iso_time.h"
#include "data/log/table_reader.h"
#include "data/log/time_format.h"

namespace segue::data {
namespace {

constexpr size_t kLongestLine = 1 << 26;
constexpr size_t kMostPasses = 16;  // over the lines of a file, for quotes that do not close
constexpr double kLargestInteger = 9.2e18;  // as a double, safely inside int64

bool is_missing(std::string_view field) {
  return field.empty() || field == "null" || field == "NULL" || field == "\\N" || field == "NA" ||
         field == "NaN" || field == "nan";
}

/// Hands out lines without their ends. A line stays valid until the next call.
class LineReader {
 public:
  /// Without a separator of one character quotes have no meaning.
  LineReader(ByteSource source, std::string_view separator)
      : source_(std::move(source)),
        quotes_(separator.size() == 1),
        separator_(separator.empty() ? '\0' : separator.front()) {
    buffer_.resize(source_.buffer_bytes);
    fill();
    if (text().starts_with("\xef\xbb\xbf")) begin_ += 3;  // byte order mark
  }

  bool next(std::string_view& line) {
    size_t searched = 0;
    bool inside = false;  // quotes
    while (true) {
      const std::string_view rest = text();
      size_t end = rest.find('\n', searched);
      if (end == std::string_view::npos && !at_end_ && !(searched > 0 && is_full())) {
        make_room();
        fill();
        continue;  // from `searched` on: the line still begins at begin_
      }
      if (rest.empty()) return false;
      // No field is that long: the quote is a mistake, and its line a row without an end.
      if (end == std::string_view::npos && !at_end_) {
        end = rest.find('\n');
        read_again(rest.size() - end);
      }
      const size_t stop = std::min(end, rest.size());
      if (quotes_ && stop >= searched) {
        inside = ends_inside(rest.substr(searched, stop - searched), inside);
        if (inside && end != std::string_view::npos) {
          searched = end + 1;  // a line end inside quotes is part of the field
          continue;
        }
      }
      line = rest.substr(0, stop);
      last_ = begin_;
      begin_ += end == std::string_view::npos ? rest.size() : end + 1;
      progress_ += begin_ - last_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      return true;
    }
  }

  /// The line that was handed out has no such fields: of a quoted one over several lines only the
  /// first line is gone, as an open quote would otherwise take good rows with it.
  void resume_behind_first_line() {
    const size_t end = std::string_view(buffer_).substr(0, begin_).find('\n', last_);
    if (end == std::string_view::npos) return;
    progress_ -= begin_ - (end + 1);
    read_again(begin_ - (end + 1));
    begin_ = end + 1;
  }

  const std::string& path() const { return source_.path; }
  int64_t bytes_read() const { return source_.consumed(); }

 private:
  std::string_view text() const { return {buffer_.data() + begin_, end_ - begin_}; }

  /// Whether a quoted field goes on behind `line`. Quotes in the middle of a plain field are just
  /// characters.
  bool ends_inside(std::string_view line, bool inside) const {
    if (line.find('"') == std::string_view::npos) return inside;
    bool field_begins = !inside;
    for (size_t i = 0; i < line.size(); ++i) {
      if (line[i] == '"' && inside) {
        const bool doubled = i + 1 < line.size() && line[i + 1] == '"';
        inside = doubled;
        i += doubled ? 1 : 0;
      } else if (line[i] == '"' && field_begins) {
        inside = true;
      }
      field_begins = !inside && line[i] == separator_;
    }
    return inside;
  }

  /// So many bytes were looked at for a quote that does not close. Where one opens in every line,
  /// that would go on for the square of the file's length.
  void read_again(size_t bytes) {
    again_ += bytes;
    if (again_ <= 2 * kLongestLine + kMostPasses * progress_) return;
    fail(
        ErrorCode::kCorrupt,
        fmt::format("{}: quotes open and do not close in line after line; are quotes within fields "
                    "doubled, and is csv_separator right?",
                    path()));
  }

  bool is_full() const { return end_ - begin_ >= kLongestLine; }

  /// Moves what is left to the front; grows for a line longer than the buffer.
  void make_room() {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    if (end_ == buffer_.size()) {
      if (is_full()) {
        fail(ErrorCode::kCorrupt,
             fmt::format("{}: a line of more than {} MiB", path(), kLongestLine >> 20));
      }
      buffer_.resize(buffer_.size() * 2);
    }
  }
  void fill() {
    const size_t n = source_.read(buffer_.data() + end_, buffer_.size() - end_);
    at_end_ = n < buffer_.size() - end_;
    end_ += n;
  }

  ByteSource source_;
  bool quotes_;
  char separator_;
  std::string buffer_;
  size_t begin_ = 0, end_ = 0;       // of what was read and not handed out
  size_t last_ = 0;                  // beginning of the line that was handed out last
  size_t progress_ = 0, again_ = 0;  // bytes that are done with; that were looked at in vain
  bool at_end_ = false;
};

class CsvReader final : public TableReader {
 public:
  /// `dates`: whether times are dates; none: the first one tells.
  CsvReader(ByteSource source, const std::vector<ColumnRequest>& requests, const CsvFormat& format,
            size_t block_rows, bool mark_bad_rows, std::optional<bool> dates = std::nullopt)
      : separator_(format.separator),
        quotes_(format.separator.size() == 1),
        lines_(std::move(source), separator_),
        requests_(requests),
        block_rows_(block_rows),
        mark_bad_rows_(mark_bad_rows),
        dates_(dates) {
    std::vector<std::string> names = format.columns;
    if (names.empty()) {
      std::string_view line;
      while (line.empty()) {
        if (!lines_.next(line)) fail_empty(lines_.path());
      }
      check_csv_text(lines_.path(), line);
      split(line);
      for (const std::string_view field : fields_) names.emplace_back(field);
    }
    num_columns_ = names.size();
    for (const ColumnRequest& r : requests) {
      places_.push_back(find_column(lines_.path(), names, r.name));
    }
  }

  bool read(RawBlock& block) override {
    block.columns.resize(requests_.size());
    for (size_t i = 0; i < requests_.size(); ++i) {
      block.columns[i].clear();
      block.columns[i].type = type_of(requests_[i].role);
      block.columns[i].untyped = true;
      block.columns[i].unit_seconds = 0;
    }
    block.rows = 0;
    block.bad.clear();
    block.first_row = row_;
    std::string_view line;
    while (block.rows < block_rows_ && lines_.next(line)) {
      if (line.empty()) continue;
      try {
        take_row(block, line);
      } catch (const RowError& error) {
        if (!mark_bad_rows_) throw;
        // A row with all its fields, one of which is no number, ends where it ends.
        if (error.fault().column.empty()) lines_.resume_behind_first_line();
        for (RawColumn& column : block.columns) blank(column, block.rows);
        block.bad.push_back({block.rows, error.fault()});
      }
      ++block.rows;
      ++row_;
    }
    return block.rows > 0;
  }
  int64_t bytes_read() const override { return lines_.bytes_read(); }

 private:
  void take_row(RawBlock& block, std::string_view line) {
    split(line);
    if (fields_.size() != num_columns_) {
      fail_row(lines_.path(), row_, {"", "has another number of fields"},
               fmt::format("has {} fields instead of {}", fields_.size(), num_columns_));
    }
    for (size_t i = 0; i < requests_.size(); ++i) {
      take(block.columns[i], i, block.rows, fields_[places_[i]]);
    }
  }

  /// Row `row`, of which something may have been taken, without a value.
  static void blank(RawColumn& column, size_t row) {
    column.valid.resize(row, 1);
    column.valid.push_back(0);
    column.integers.resize(column.type == RawColumn::Type::kInteger ? row + 1 : 0);
    column.numbers.resize(column.type == RawColumn::Type::kNumber ? row + 1 : 0);
    if (column.type != RawColumn::Type::kText) return;
    if (column.texts.size() == 0) column.texts.add("");
    column.codes.resize(row + 1);  // any text: nobody asks
  }

  static RawColumn::Type type_of(ColumnRole role) {
    switch (role) {
      case ColumnRole::kNumber:
        return RawColumn::Type::kNumber;
      case ColumnRole::kText:
      case ColumnRole::kKind:
        return RawColumn::Type::kText;
      default:
        return RawColumn::Type::kInteger;
    }
  }

  void split(std::string_view line) {
    fields_.clear();
    unquoted_.clear();
    while (true) {
      if (quotes_ && line.starts_with('"')) {
        if (!take_quoted(line)) return;
        continue;
      }
      const size_t end = line.find(separator_);
      fields_.push_back(line.substr(0, end));
      if (end == std::string_view::npos) return;
      line.remove_prefix(end + separator_.size());
    }
  }

  /// A field in quotes, "" standing for one; false if it was the last of the line.
  bool take_quoted(std::string_view& line) {
    size_t end = 1;
    bool doubled = false;
    while (true) {
      end = line.find('"', end);
      if (end == std::string_view::npos) {
        fail_row(lines_.path(), row_, {"", "has a quoted field without an end"},
                 "a quoted field without an end");
      }
      if (end + 1 >= line.size() || line[end + 1] != '"') break;
      doubled = true;
      end += 2;
    }
    std::string_view field = line.substr(1, end - 1);
    if (doubled) {
      auto text = std::make_unique<std::string>(field);
      for (size_t at = 0; (at = text->find("\"\"", at)) != std::string::npos; ++at) {
        text->erase(at, 1);
      }
      field = *text;
      unquoted_.push_back(std::move(text));
    }
    fields_.push_back(field);
    line.remove_prefix(end + 1);
    if (line.empty()) return false;
    if (!line.starts_with(separator_)) {
      fail_row(lines_.path(), row_, {"", "has text behind a quoted field"},
               "text behind a quoted field");
    }
    line.remove_prefix(separator_.size());
    return true;
  }

  void take(RawColumn& column, size_t request, size_t row, std::string_view field) {
    const bool valid = !is_missing(field);
    if (!valid || !column.valid.empty()) {
      column.valid.resize(row, 1);
      column.valid.push_back(valid ? 1 : 0);
    }
    switch (requests_[request].role) {
      case ColumnRole::kInteger:
      case ColumnRole::kWhole:
        column.integers.push_back(valid ? integer(request, field) : 0);
        break;
      case ColumnRole::kTime:
        column.integers.push_back(valid ? time(column, request, field) : 0);
        break;
      case ColumnRole::kNumber:
        column.numbers.push_back(valid ? number(request, field) : 0);
        break;
      case ColumnRole::kText:
        column.codes.push_back(static_cast<uint32_t>(column.texts.size()));
        column.texts.add(field);
        break;
      case ColumnRole::kKind:
        column.codes.push_back(column.texts.find_or_add(field));
        break;
    }
  }

  int64_t id(size_t request, std::string_view field) const {
    int64_t value = 0;
    const bool whole = parse_whole_integer(field, value);
    if (is_rounded_number(field)) {
      fail_rounded(lines_.path(), row_, requests_[request].name, field);
    }
    if (whole) return value;
    if (bool flag = false; parse_bool(field, flag)) return flag ? 1 : 0;
    const bool digits = field.find_first_not_of("0123456789") == std::string_view::npos;
    fail_field(
        request, field,
        digits && field.starts_with('0') ? "an integer without leading zeros" : "an integer");
  }

  int64_t integer(size_t request, std::string_view field) const {
    if (requests_[request].exact) return id(request, field);
    int64_t value = 0;
    const char* const end = field.data() + field.size();
    const auto [stop, error] = std::from_chars(field.data(), end, value);
    if (error == std::errc() && stop == end) return value;
    if (bool flag = false; parse_bool(field, flag)) return flag ? 1 : 0;
    const bool whole = requests_[request].role != ColumnRole::kInteger;
    double real = 0;
    const auto [real_stop, real_error] = std::from_chars(field.data(), end, real);
    const double floor = std::floor(real);
    if (real_error != std::errc() || real_stop != end || !(std::abs(floor) < kLargestInteger) ||
        (!whole && floor != real)) {
      fail_field(request, field,
                 requests_[request].role == ColumnRole::kTime
                     ? "a number, or a time such as 2026-01-31T23:59:59Z,"
                 : whole ? "a number"
                         : "an integer");
    }
    return static_cast<int64_t>(floor);
  }

  /// A number in the unit that the schema has, or a date: all of a file are of one kind.
  int64_t time(RawColumn& column, size_t request, std::string_view field) {
    int64_t seconds = 0;
    if (const std::string& format = requests_[request].time_format; !format.empty()) {
      column.unit_seconds = 1;
      if (parse_time(field, format, seconds)) return seconds;
      fail_field(request, field, fmt::format("a time as time_format = \"{}\"", format));
    }
    const bool date = parse_iso_time(field, seconds);
    if (dates_ && date != *dates_) {
      fail_field(request, field,
                 *dates_ ? "a time such as 2026-01-31T23:59:59Z, as in the rows before,"
                         : "a number, as in the rows before,");
    }
    if (!date) seconds = integer(request, field);
    dates_ = date;
    column.unit_seconds = date ? 1 : 0;
    return seconds;
  }

  double number(size_t request, std::string_view field) const {
    double value = 0;
    const char* const end = field.data() + field.size();
    const auto [stop, error] = std::from_chars(field.data(), end, value);
    if (error != std::errc() || stop != end) fail_field(request, field, "a number");
    return value;
  }

  [[noreturn]] void fail_field(size_t request, std::string_view field,
                               const std::string& wanted) const {
    const bool time = requests_[request].role == ColumnRole::kTime;
    const bool integer = requests_[request].role == ColumnRole::kInteger;
    fail_row(lines_.path(), row_,
             {requests_[request].name, time      ? "is not a time"
                                       : integer ? "is not an integer"
                                                 : "is not a number"},
             fmt::format("column \"{}\" has \"{}\" where {} is needed{}", requests_[request].name,
                         field.substr(0, 80), wanted, requests_[request].hint));
  }

  std::string separator_;
  bool quotes_;
  LineReader lines_;
  std::vector<ColumnRequest> requests_;
  size_t block_rows_;
  bool mark_bad_rows_;
  std::vector<size_t> places_;  // of the requests among the fields
  size_t num_columns_ = 0;
  int64_t row_ = 0;
  std::optional<bool> dates_;  // whether times are dates, once it is known
  std::vector<std::string_view> fields_;
  std::vector<std::unique_ptr<std::string>> unquoted_;
};

/// Whether most of a file's first times are dates. Where some rows may be wrong the first is no
/// better than another.
std::optional<bool> most_are_dates(const std::string& path,
                                   const std::vector<ColumnRequest>& columns,
                                   const CsvFormat& format) {
  constexpr size_t kFirstTimes = 1001;
  const auto time = std::ranges::find(columns, ColumnRole::kTime, &ColumnRequest::role);
  if (time == columns.end() || !time->time_format.empty()) return std::nullopt;
  CsvReader reader(open_bytes(path), {{time->name, ColumnRole::kText}}, format, kFirstTimes, true);
  RawBlock block;
  if (!reader.read(block)) return std::nullopt;
  int64_t dates = 0, others = 0;
  for (size_t row = 0, bad = 0; row < block.rows; ++row) {
    if (is_listed(block.bad, row, bad) || !block.columns[0].is_valid(row)) continue;
    int64_t ignored = 0;
    ++(parse_iso_time(block.columns[0].text(row), ignored) ? dates : others);
  }
  return dates > others;
}

}  // namespace

std::unique_ptr<TableReader> open_csv(const std::string& path,
                                      const std::vector<ColumnRequest>& columns,
                                      const CsvFormat& format, size_t block_rows,
                                      bool mark_bad_rows) {
  return std::make_unique<CsvReader>(
      open_bytes(path), columns, format, block_rows, mark_bad_rows,
      mark_bad_rows ? most_are_dates(path, columns, format) : std::nullopt);
}

std::unique_ptr<TableReader> open_csv_text(std::string_view text, const std::string& path,
                                           const std::vector<ColumnRequest>& columns,
                                           const CsvFormat& format, size_t block_rows,
                                           size_t buffer_bytes, bool mark_bad_rows) {
  return std::make_unique<CsvReader>(text_bytes(text, path, buffer_bytes), columns, format,
                                     block_rows, mark_bad_rows);
}

}  // namespace segue::data
