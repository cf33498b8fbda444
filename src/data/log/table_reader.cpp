#include "data/log/table_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include <fmt/format.h>

#include "base/config.h"
#include "base/error.h"
#include "base/file_io.h"

namespace segue::data {
namespace {

constexpr std::string_view kParquetMagic = "PAR1";
constexpr size_t kFirstValues = 1001;

struct ValueCounts {
  size_t texts = 0, values = 0;
};

/// Of the first values of a column of a CSV file.
ValueCounts count_texts(const std::string& path, const std::string& column,
                        const TableOptions& options, size_t wanted) {
  const auto reader =
      open_csv(path, {{column, ColumnRole::kText}}, options.csv, wanted, options.mark_bad_rows);
  RawBlock block;
  size_t texts = 0, values = 0;
  while (values < wanted && reader->read(block)) {
    for (size_t row = 0, bad = 0; row < block.rows && values < wanted; ++row) {
      if (is_listed(block.bad, row, bad)) continue;
      if (!block.columns[0].is_valid(row)) continue;  // reported by whoever reads the rows
      int64_t ignored = 0;
      // Numbers would lose the zeros of "007".
      texts += parse_whole_integer(block.columns[0].text(row), ignored) ? 0 : 1;
      ++values;
    }
  }
  return {texts, values};
}

}  // namespace

bool is_parquet(const std::string& path) {
  const base::InputFile file(path);
  char magic[4] = {};
  const std::string_view head(magic, file.read_at(0, magic, sizeof(magic)));
  if (head.empty()) fail_empty(path);
  if (head != kParquetMagic && path.ends_with(".parquet")) {
    fail(ErrorCode::kCorrupt, fmt::format("{}: is not a Parquet file", path));
  }
  return head == kParquetMagic;
}

const ParquetSupport& require_parquet(const std::string& path, const ParquetSupport* parquet) {
  if (parquet == nullptr) {
    fail(ErrorCode::kUnsupported,
         fmt::format("{}: built without Parquet support; run scripts/fetch_wheels.sh and rebuild, "
                     "or bring CSV",
                     path));
  }
  return *parquet;
}

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + '"';
}

void RawColumn::clear() {
  integers.clear();
  numbers.clear();
  texts.clear();
  codes.clear();
  valid.clear();
}

std::unique_ptr<TableReader> open_table(const std::string& path,
                                        const std::vector<ColumnRequest>& columns,
                                        const TableOptions& options) {
  if (is_parquet(path)) {
    return require_parquet(path, options.parquet)
        .open(path, columns, options.block_rows, options.mark_bad_rows);
  }
  return open_csv(path, columns, options.csv, options.block_rows, options.mark_bad_rows);
}

bool has_column(const std::string& path, const std::string& name, const TableOptions& options) {
  if (is_parquet(path)) {
    const std::vector<ParquetColumn> columns = require_parquet(path, options.parquet).columns(path);
    return std::ranges::find(columns, name, &ParquetColumn::name) != columns.end();
  }
  try {
    open_csv(path, {{name, ColumnRole::kText}}, options.csv, options.block_rows);
    return true;
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kConfig) throw;
    return false;
  }
}

bool column_is_text(std::span<const std::string> paths, const std::string& column,
                    const TableOptions& options) {
  // Where some rows may be wrong the first is no better than another: most of the first ones say.
  const size_t wanted = options.mark_bad_rows ? kFirstValues : 1;
  ValueCounts first;
  for (const std::string& path : paths) {
    if (is_parquet(path)) {
      if (first.values > 0) continue;
      return require_parquet(path, options.parquet).is_text(path, column);
    }
    const ValueCounts more = count_texts(path, column, options, wanted - first.values);
    first.texts += more.texts;
    first.values += more.values;
    if (first.values == wanted) break;
  }
  return first.texts * 2 > first.values;
}

bool is_listed(const std::vector<BadRow>& bad, size_t row, size_t& next) {
  while (next < bad.size() && bad[next].row < row) ++next;
  return next < bad.size() && bad[next].row == row;
}

size_t find_column(const std::string& path, const std::vector<std::string>& names,
                   const std::string& name) {
  const auto found = std::find(names.begin(), names.end(), name);
  if (found != names.end()) return static_cast<size_t>(found - names.begin());
  const std::string nearest = base::nearest_name(name, names);
  fail(ErrorCode::kConfig,
       fmt::format("{}: has no column \"{}\"{}; it has: {}", path, name,
                   nearest.empty() ? "" : fmt::format(" (did you mean \"{}\"?)", nearest),
                   fmt::join(names, ", ")));
}

bool parse_canonical_integer(std::string_view text, int64_t& value) {
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) return false;
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  return !(digits.starts_with('0') && (digits.size() > 1 || digits.size() != text.size()));
}

bool parse_whole_integer(std::string_view text, int64_t& value) {
  const size_t point = text.find('.');
  if (point == std::string_view::npos) return parse_canonical_integer(text, value);
  return text.find_first_not_of('0', point + 1) == std::string_view::npos &&
         parse_canonical_integer(text.substr(0, point), value);
}

bool is_rounded_number(std::string_view text) {
  constexpr double kFirstGap = 9007199254740992.0;  // 2^53: the next integer is no double
  // Without either it may be a name: 12e34567.
  if (std::ranges::none_of(text, [](char c) { return c == '.' || c == '+'; })) return false;
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end && std::isfinite(value) &&
         std::abs(value) >= kFirstGap;
}

bool parse_bool(std::string_view text, bool& value) {
  value = text == "true" || text == "True" || text == "TRUE";
  return value || text == "false" || text == "False" || text == "FALSE";
}

void fail_empty(const std::string& path) {
  fail(
      ErrorCode::kCorrupt,
      fmt::format("{}: is empty; a header line and rows are wanted: was it written to its end, and "
                  "is it the file that was meant?",
                  path));
}

void check_csv_text(const std::string& path, std::string_view head) {
  const auto refuse = [&](const char* why) {
    fail(ErrorCode::kUnsupported, fmt::format("{}: {}", path, why));
  };
  if (head.starts_with("\xff\xfe") || head.starts_with("\xfe\xff")) {
    refuse("is UTF-16; `iconv -f UTF-16 -t UTF-8 IN > OUT` makes it UTF-8");
  }
  if (head.find('\r') != std::string_view::npos && head.find('\n') == std::string_view::npos) {
    refuse("its lines end in carriage returns alone; `tr '\\r' '\\n' < IN > OUT` mends it");
  }
  const auto skip_blanks = [&] {
    head.remove_prefix(std::min(head.find_first_not_of(" \t\r\n"), head.size()));
  };
  skip_blanks();
  const bool list = head.starts_with("[");
  if (list) {
    head.remove_prefix(1);
    skip_blanks();
  }
  // The first line of a list may be its bracket alone.
  if (!head.starts_with("{") && !(list && head.empty())) return;
  fail(ErrorCode::kUnsupported,
       fmt::format("{}: is JSON; bring Parquet or CSV, which pandas makes of it: python3 -c "
                   "\"import pandas; pandas.read_json('IN'{}, dtype=False).to_csv('OUT.csv', "
                   "index=False)\"",
                   path, list ? "" : ", lines=True"));
}

void fail_row(const std::string& path, int64_t row, RowFault fault, const std::string& what) {
  throw RowError(std::move(fault), fmt::format("{}: row {}: {}", path, row + 1, what));
}

void fail_rounded(const std::string& path, int64_t row, const std::string& column,
                  std::string_view id) {
  fail_row(
      path, row, {column, "is a rounded number"},
      fmt::format("column \"{}\" has the id {} as a floating-point number, which may stand for "
                  "several ids that differ in their last digits; write the column as integers "
                  "or text where the log is made",
                  column, id.substr(0, 80)));
}

}  // namespace segue::data
