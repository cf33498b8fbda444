#include "data/propose/table_sample.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/config_tree.h"
#include "base/error.h"
#include "base/file.h"
#include "data/log/byte_source.h"
#include "data/log/iso_time.h"
#include "data/store/store_manifest.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSampleRows = 100'000;  // of a table
constexpr size_t kSampledFiles = 8;       // of a table
constexpr size_t kMostFiles = 512;        // of a folder
constexpr size_t kHeadBytes = 64 << 10;
constexpr int kDeepest = 4;
constexpr double kMost = 0.99;  // a few values may be wrong

constexpr const char* kExtensions[] = {".parquet", ".pq",    ".csv",   ".tsv", ".txt",
                                       ".dat",     ".log",   ".data",  ".gz",  ".zst",
                                       ".json",    ".jsonl", ".ndjson"};
constexpr const char* kSeparators[] = {"::", "\t", ";", "|", ","};

/// Fields of a line. Quotes mean something where a field begins, as for the reader of CSV files.
std::vector<std::string> split(std::string_view line, std::string_view separator) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (separator.size() == 1 && line[i] == '"' && (quoted || fields.back().empty())) {
      const bool doubled = quoted && line.substr(i + 1).starts_with('"');
      if (doubled) {
        fields.back() += line[++i];
      } else {
        quoted = !quoted;
      }
    } else if (!quoted && line.substr(i).starts_with(separator)) {
      fields.emplace_back();
      i += separator.size() - 1;
    } else {
      fields.back() += line[i];
    }
  }
  return fields;
}

bool parse_number(std::string_view text, double& value) {
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() && std::isfinite(value);
}

/// 12.0, as tables with missing values have integers.
bool is_whole_number(std::string_view text) {
  const size_t point = text.find('.');
  int64_t ignored = 0;
  return point != std::string_view::npos && point + 1 < text.size() &&
         parse_canonical_integer(text.substr(0, point), ignored) &&
         text.find_first_not_of('0', point + 1) == std::string_view::npos;
}

struct Head {
  std::string text;    // the beginning of a file
  bool whole = false;  // it is all of it
};

Head read_head(const std::string& path) {
  const ByteSource source = open_bytes(path);
  Head head{.text = std::string(kHeadBytes, '\0')};
  std::string& text = head.text;
  text.resize(source.read(text.data(), text.size()));
  head.whole = text.size() < kHeadBytes;
  check_csv_text(path, text);
  if (text.find('\0') != std::string::npos) {
    fail(ErrorCode::kUnsupported, "is neither Parquet nor text");
  }
  if (text.starts_with("\xef\xbb\xbf")) text.erase(0, 3);  // byte order mark
  return head;
}

/// With `quotes` a line end between two of them is part of a field.
std::vector<std::string> first_lines(const Head& head, bool quotes) {
  constexpr size_t kLines = 32;
  const std::string& text = head.text;
  std::vector<std::string> lines;
  size_t begin = 0;
  while (begin < text.size() && lines.size() < kLines) {
    bool inside = false;
    size_t end = begin;
    while (end < text.size() && (inside || text[end] != '\n')) {
      inside = text[end] == '"' && quotes ? !inside : inside;
      ++end;
    }
    if (end == text.size() && (!head.whole || inside)) break;
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) lines.push_back(std::move(line));
    begin = end + 1;
  }
  return lines;
}

/// What stands between the fields of most lines, and how many there are; at least two.
size_t find_separator(const std::vector<std::string>& lines, std::string& separator) {
  size_t most = 1;
  for (const char* const candidate : kSeparators) {
    const size_t fields = lines.empty() ? 0 : split(lines.front(), candidate).size();
    const auto same = std::ranges::count_if(
        lines, [&](const std::string& line) { return split(line, candidate).size() == fields; });
    if (fields > most && same * 10 >= std::ssize(lines) * 8) {
      most = fields;
      separator = candidate;
    }
  }
  return most;
}

/// "7, 12, 1": the blank is no part of a field. Quotes mean nothing with such a separator.
bool has_blanks_behind_commas(const std::string& line) {
  for (size_t i = line.find(','); i != std::string::npos; i = line.find(',', i + 1)) {
    if (i + 1 >= line.size() || line[i + 1] != ' ') return false;
  }
  return line.find('"') == std::string::npos;
}

/// What stands between the fields, and what columns are called: by the first lines.
CsvFormat look_at_csv(const std::string& path, std::vector<std::string>& names) {
  const Head head = read_head(path);
  if (head.text.find_first_not_of("\r\n") == std::string::npos)
    fail(ErrorCode::kCorrupt, "is empty");
  std::vector<std::string> lines = first_lines(head, false);
  CsvFormat format;
  if (find_separator(lines, format.separator) < 2) {
    lines = first_lines(head, true);  // a quote may also be just a character
    if (find_separator(lines, format.separator) < 2) {
      fail(ErrorCode::kUnsupported, "has no columns that can be told apart");
    }
  }
  if (format.separator == "," && std::ranges::all_of(lines, has_blanks_behind_commas)) {
    format.separator = ", ";
  }
  names = split(lines.front(), format.separator);
  double ignored = 0;
  int64_t seconds = 0;
  const bool data = std::ranges::any_of(names, [&](const std::string& field) {
    return field.empty() || parse_number(field, ignored) || parse_iso_time(field, seconds);
  });
  if (data) {
    for (size_t i = 0; i < names.size(); ++i) names[i] = fmt::format("column{}", i + 1);
    format.columns = names;
  }
  return format;
}

/// Takes the values of a column from blocks.
class ColumnTaker {
 public:
  explicit ColumnTaker(ColumnSample& column) : column_(column) {}

  void take(const RawColumn& raw, size_t row) {
    if (!raw.is_valid(row) ||
        (raw.type == RawColumn::Type::kNumber && std::isnan(raw.numbers[row]))) {
      column_.codes.push_back(ColumnSample::kMissing);
      return;
    }
    std::string text = raw.type == RawColumn::Type::kText      ? std::string(raw.text(row))
                       : raw.type == RawColumn::Type::kInteger ? fmt::to_string(raw.integers[row])
                                                               : fmt::to_string(raw.numbers[row]);
    const auto [found, added] =
        column_.places.emplace(std::move(text), static_cast<uint32_t>(column_.values.size()));
    if (added) {
      column_.values.push_back(found->first);
      column_.counts.push_back(0);
    }
    ++column_.counts[found->second];
    column_.codes.push_back(found->second);
  }

  /// What a column of a file without types holds, by most of its values.
  void classify() {
    int64_t integers = 0, numbers = 0, dates = 0;
    column_.min = std::numeric_limits<double>::infinity();
    column_.max = -column_.min;
    for (size_t v = 0; v < column_.values.size(); ++v) {
      const std::string& text = column_.values[v];
      int64_t integer = 0;
      double number = 0;
      const char* const end = text.data() + text.size();
      const auto [stop, error] = std::from_chars(text.data(), end, integer);
      bool flag = false;
      // Integers that 64 bits do not hold are names.
      if (error == std::errc::result_out_of_range && stop == end) continue;
      if ((error == std::errc() && stop == end) || parse_bool(text, flag) ||
          is_whole_number(text)) {
        integers += column_.counts[v];
      }
      if (parse_number(text, number)) {
        numbers += column_.counts[v];
        column_.min = std::min(column_.min, number);
        column_.max = std::max(column_.max, number);
      } else if (parse_iso_time(text, integer)) {
        dates += column_.counts[v];
      }
    }
    const double enough = kMost * static_cast<double>(column_.present());
    if (column_.unit_seconds > 0) {  // the file says so
      column_.type = ColumnSample::Type::kTime;
    } else if (static_cast<double>(integers) >= enough) {
      column_.type = ColumnSample::Type::kInteger;
    } else if (static_cast<double>(numbers) >= enough) {
      column_.type = ColumnSample::Type::kNumber;
    } else if (static_cast<double>(dates) >= enough) {
      column_.type = ColumnSample::Type::kTime;
      column_.unit_seconds = 1;
    }
  }

 private:
  ColumnSample& column_;
};

struct Columns {
  std::vector<ColumnRequest> requests;
  std::vector<std::string> unreadable;
  CsvFormat csv;
};

Columns columns_of(const std::string& path, const ParquetSupport* parquet) {
  Columns columns;
  const auto add = [&](const std::string& name, ColumnRole role, std::string why_not) {
    if (why_not.empty() && !base::detail::is_utf8(name)) {
      why_not = "has a name that is not UTF-8, as those in a schema are; rename it";
    }
    if (why_not.empty()) {
      columns.requests.push_back({name, role});
    } else {
      columns.unreadable.push_back(name + ": " + why_not);
    }
  };
  if (is_parquet(path)) {
    for (const ParquetColumn& c : require_parquet(path, parquet).columns(path)) {
      add(c.name, c.role, c.unreadable.empty() ? "" : "is " + c.unreadable);
    }
    return columns;
  }
  std::vector<std::string> names;
  columns.csv = look_at_csv(path, names);
  for (size_t i = 0; i < names.size(); ++i) {
    const auto same = names.begin() + static_cast<std::ptrdiff_t>(i);
    const bool first = std::find(names.begin(), same, names[i]) == same;
    add(names[i], ColumnRole::kText, first ? "" : "is a second column of this name; rename it");
  }
  return columns;
}

/// Files that were found to have the same columns.
struct Group {
  Columns columns;
  std::vector<LogFile> files;
};

/// *.csv where these are all of the kind, else what the names have in common.
std::string pattern_for(const std::string& folder, const std::vector<LogFile>& files) {
  if (files.size() == 1) return literal_pattern(files[0].name);
  const fs::path first(files[0].name);
  std::string stem = first.filename().string();
  std::string end = stem.substr(std::min(stem.find('.'), stem.size()));
  for (const LogFile& file : files) {
    const std::string name = fs::path(file.name).filename().string();
    const auto differ = std::ranges::mismatch(stem, name).in1;
    stem.erase(differ, stem.end());
    while (!name.ends_with(end)) end.erase(0, 1);
  }
  std::string parent = first.parent_path().string();
  const bool one_folder = std::ranges::all_of(files, [&](const LogFile& file) {
    return fs::path(file.name).parent_path() == first.parent_path();
  });
  if (!one_folder) parent = "*";
  parent = parent.empty() ? "" : (one_folder ? literal_pattern(parent) : parent) + "/";
  std::vector<std::string> patterns = {parent + "*" + literal_pattern(end),
                                       parent + literal_pattern(stem) + "*" + literal_pattern(end)};
  for (const std::string& pattern : patterns) {
    if (list_log_files(folder, pattern).size() == files.size()) return pattern;
  }
  return patterns.back();
}

TableSample read_sample(const std::string& folder, const Group& group,
                        const ParquetSupport* parquet) {
  TableSample table{.files = group.files,
                    .pattern = pattern_for(folder, group.files),
                    .csv = group.columns.csv,
                    .unreadable = group.columns.unreadable};
  const std::vector<ColumnRequest>& requests = group.columns.requests;
  table.columns.resize(requests.size());
  std::vector<ColumnTaker> takers;
  for (size_t i = 0; i < requests.size(); ++i) {
    table.columns[i].name = requests[i].name;
    takers.emplace_back(table.columns[i]);
  }
  TableOptions options{.csv = group.columns.csv, .parquet = parquet, .block_rows = 1 << 12};
  options.mark_bad_rows = true;
  const size_t sampled = std::min(kSampledFiles, group.files.size());
  int64_t bytes = 0, all_bytes = 0;
  for (const LogFile& file : group.files) all_bytes += file.bytes;
  for (size_t f = 0; f < sampled; ++f) {  // at even distances: a log may be one file a day
    const LogFile& file =
        group.files[f * (group.files.size() - 1) / std::max<size_t>(1, sampled - 1)];
    const auto reader = open_table(file.path, requests, options);
    const int64_t wanted =
        kSampleRows * static_cast<int64_t>(f + 1) / static_cast<int64_t>(sampled);
    RawBlock block;
    bool more = true;
    while (table.rows < wanted && (more = reader->read(block))) {
      for (size_t row = 0, bad = 0; row < block.rows; ++row) {
        if (is_listed(block.bad, row, bad)) continue;
        for (size_t i = 0; i < takers.size(); ++i) takers[i].take(block.columns[i], row);
        ++table.rows;
      }
      for (size_t i = 0; i < takers.size(); ++i) {
        table.columns[i].unit_seconds = block.columns[i].unit_seconds;
      }
    }
    bytes += more ? std::min(file.bytes, reader->bytes_read()) : file.bytes;
  }
  for (ColumnTaker& taker : takers) taker.classify();
  table.all_rows = static_cast<double>(table.rows) * static_cast<double>(all_bytes) /
                   static_cast<double>(std::max<int64_t>(1, bytes));
  return table;
}

/// Files that may be tables, by name, and those that are not.
std::vector<LogFile> list_files(const std::string& folder, std::vector<std::string>& left_out) {
  std::vector<LogFile> files;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::skip_permission_denied, error),
      end;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    // What is no file any more, such as a link without an end, does not end the walk.
    std::error_code ignored;
    const bool hidden = name.starts_with('.') || name.starts_with('_') || it.depth() > kDeepest;
    if (it->is_directory(ignored)) {
      const bool store = base::exists((it->path() / kManifestFile).string());
      if (hidden || store) it.disable_recursion_pending();
      continue;
    }
    if (hidden || !it->is_regular_file(ignored)) continue;
    const std::string relative = it->path().lexically_relative(folder).string();
    const std::string extension = it->path().extension().string();
    if (!extension.empty() && std::ranges::find(kExtensions, extension) == std::end(kExtensions)) {
      left_out.push_back(relative + ": not looked at");
      continue;
    }
    if (!base::detail::is_utf8(relative)) {
      left_out.push_back(relative + ": its name is not UTF-8, as that in a schema must be");
      continue;
    }
    files.push_back({it->path().string(), relative, static_cast<int64_t>(it->file_size(ignored))});
  }
  constexpr size_t kMostNamed = 100;
  if (left_out.size() > kMostNamed) {
    const size_t more = left_out.size() - kMostNamed;
    left_out.resize(kMostNamed);
    left_out.push_back(fmt::format("{} more files of other kinds: not looked at", more));
  }
  std::ranges::sort(files, {}, &LogFile::path);
  if (files.size() > kMostFiles) {
    left_out.push_back(fmt::format("{} more files: not looked at", files.size() - kMostFiles));
    files.resize(kMostFiles);
  }
  return files;
}

}  // namespace

int64_t ColumnSample::present() const {
  return std::ranges::count_if(codes, [](uint32_t code) { return code != kMissing; });
}

double ColumnSample::number(size_t value) const {
  double number = 0;
  return parse_number(values[value], number) ? number : std::nan("");
}

bool ColumnSample::has(const std::string& value) const { return places.contains(value); }

bool ColumnSample::is_flag() const {
  if (type != Type::kInteger || values.size() > 4) return false;
  return std::ranges::all_of(values, [](const std::string& v) {
    bool flag = false;
    return v == "0" || v == "1" || parse_bool(v, flag) || v == "0.0" || v == "1.0";
  });
}

bool ColumnSample::is_padded() const {
  return type == Type::kInteger && std::ranges::any_of(values, [](const std::string& v) {
           return v.size() > 1 && v[0] == '0' && v[1] >= '0' && v[1] <= '9';
         });
}

const ColumnSample* TableSample::find(const std::string& name) const {
  const auto found = std::ranges::find(columns, name, &ColumnSample::name);
  return found == columns.end() ? nullptr : &*found;
}

FolderSample sample_files(const std::string& raw, const ParquetSupport* parquet) {
  FolderSample sample;
  std::error_code error;
  std::vector<LogFile> files;
  const fs::path path(raw);
  if (fs::is_regular_file(path, error)) {
    if (!base::detail::is_utf8(path.filename().string())) {
      fail(ErrorCode::kInvalidArgument,
           fmt::format("{}: its name is not UTF-8, as that in a schema must be; rename it", raw));
    }
    sample.folder = path.has_parent_path() ? path.parent_path().string() : ".";
    files = {{raw, path.filename().string(), static_cast<int64_t>(fs::file_size(path))}};
  } else if (fs::is_directory(path, error)) {
    sample.folder = raw;
    files = list_files(raw, sample.left_out);
  } else {
    fail(ErrorCode::kNotFound, fmt::format("{}: no such file or folder", raw));
  }
  const auto leave_out = [&](const LogFile& file, const Error& problem) {
    const std::string text = problem.what();
    sample.left_out.push_back(text.starts_with(file.path) ? text : file.name + ": " + text);
  };
  std::map<std::vector<std::string>, Group> groups;  // by separator and columns
  for (const LogFile& file : files) {
    try {
      Columns columns = columns_of(file.path, parquet);
      // Without names of columns, parts of one log are called alike but for a number.
      std::string name = columns.csv.columns.empty() ? "" : file.name;
      std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; });
      std::vector<std::string> key = {columns.csv.separator, name};
      for (const ColumnRequest& r : columns.requests) key.push_back(r.name);
      Group& group = groups[key];
      if (group.files.empty()) group.columns = std::move(columns);
      group.files.push_back(file);
    } catch (const Error& problem) {
      leave_out(file, problem);
    }
  }
  for (const auto& [key, group] : groups) {
    try {
      sample.tables.push_back(read_sample(sample.folder, group, parquet));
    } catch (const Error& problem) {  // damage behind the first lines
      leave_out(group.files.front(), problem);
    }
  }
  std::erase_if(sample.tables, [](const TableSample& table) { return table.rows == 0; });
  std::ranges::stable_sort(sample.tables, std::greater<>(), &TableSample::all_rows);
  if (sample.tables.empty()) {
    fail(ErrorCode::kNotFound,
         fmt::format("{}: no rows in Parquet or CSV files (plain, gzip or zstd){}{}", raw,
                     sample.left_out.empty() ? "; there are no files" : ":\n",
                     fmt::join(sample.left_out, "\n")));
  }
  return sample;
}

}  // namespace segue::data
