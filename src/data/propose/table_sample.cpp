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
#include "data/log/iso_time.h"
#include "data/propose/column_shapes.h"
#include "data/propose/csv_look.h"
#include "data/store/store_manifest.h"

namespace segue::data {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kSampleRows = 100'000;  // of a table
constexpr size_t kSampledFiles = 8;       // of a table
constexpr size_t kMostFiles = 512;        // of a folder
// Different texts and places of values, which texts of items can be long enough to make gigabytes.
constexpr size_t kSampleBytes = 64 << 20;  // of a table
constexpr size_t kFolderBytes = 512 << 20;
constexpr int kDeepest = 4;
constexpr double kMost = 0.99;  // a few values may be wrong

constexpr const char* kExtensions[] = {".parquet", ".pq",    ".csv",   ".tsv", ".txt",
                                       ".dat",     ".log",   ".data",  ".gz",  ".zst",
                                       ".json",    ".jsonl", ".ndjson"};

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
    bytes_ += sizeof(uint32_t);
    auto found = column_.places.find(text);
    if (found == column_.places.end()) {
      bytes_ += text.size() + kBytesOfValue;
      column_.values.push_back(std::move(text));
      column_.counts.push_back(0);
      found = column_.places
                  .emplace(column_.values.back(), static_cast<uint32_t>(column_.values.size() - 1))
                  .first;
    }
    ++column_.counts[found->second];
    column_.codes.push_back(found->second);
  }
  size_t bytes() const { return bytes_; }

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
          parse_whole_integer(text, integer)) {
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
    } else if (column_.is_text_in_file && static_cast<double>(numbers) >= enough) {
      column_.numbers_as_text = true;
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
  static constexpr size_t kBytesOfValue = 128;  // what lists and a hash table add to a text
  ColumnSample& column_;
  size_t bytes_ = 0;
};

struct Columns {
  std::vector<ColumnRequest> requests;
  std::vector<std::string> unreadable;
  CsvFormat csv;
  bool parquet = false;
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
  columns.parquet = is_parquet(path);
  if (columns.parquet) {
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
    if (names[i].empty()) {
      columns.unreadable.push_back(fmt::format(
          "column {}: has no name, as the index of a pandas table; give it one if it is "
          "needed",
          i + 1));
      continue;
    }
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

size_t bytes_of(const std::vector<ColumnTaker>& takers) {
  size_t bytes = 0;
  for (const ColumnTaker& taker : takers) bytes += taker.bytes();
  return bytes;
}

/// Of at most about `most_bytes`.
TableSample read_sample(const std::string& folder, const Group& group, size_t most_bytes,
                        const ParquetSupport* parquet) {
  TableSample table{.files = group.files,
                    .pattern = pattern_for(folder, group.files),
                    .parquet = group.columns.parquet,
                    .csv = group.columns.csv,
                    .unreadable = group.columns.unreadable};
  const std::vector<ColumnRequest>& requests = group.columns.requests;
  table.columns.resize(requests.size());
  std::vector<ColumnTaker> takers;
  for (size_t i = 0; i < requests.size(); ++i) {
    table.columns[i].name = requests[i].name;
    table.columns[i].is_text_in_file = table.parquet && requests[i].role == ColumnRole::kText;
    takers.emplace_back(table.columns[i]);
  }
  TableOptions options{.csv = group.columns.csv, .parquet = parquet, .block_rows = 1 << 10};
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
    const size_t room = most_bytes * (f + 1) / sampled;
    size_t taken = bytes_of(takers);
    RawBlock block;
    bool more = true;
    while (table.rows < wanted && taken < room && (more = reader->read(block))) {
      for (size_t row = 0, bad = 0; row < block.rows; ++row) {
        if (is_listed(block.bad, row, bad)) continue;
        for (size_t i = 0; i < takers.size(); ++i) takers[i].take(block.columns[i], row);
        ++table.rows;
      }
      table.broken_rows += std::ssize(block.bad);
      taken = bytes_of(takers);
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
      left_out.push_back(
          fmt::format("{}: not looked at; {} are", relative, fmt::join(kExtensions, " ")));
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
  const size_t room = std::min(kSampleBytes, kFolderBytes / std::max<size_t>(1, groups.size()));
  for (const auto& [key, group] : groups) {
    try {
      sample.tables.push_back(read_sample(sample.folder, group, room, parquet));
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
