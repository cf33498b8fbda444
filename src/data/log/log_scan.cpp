#include "data/log/log_scan.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "base/progress.h"

namespace segue::data {
namespace {

/// Ties are held in memory when a log is in order; with more of them it is sorted like any other.
constexpr int64_t kMostTies = 1 << 20;

/// Decides by the first file how the ids of a column are read, and whether they get new numbers.
IdColumn look_at(const char* name, const std::string& column, IdMapping mapping,
                 const std::string& path, const TableOptions& options, int64_t memory_bytes,
                 const IdMaps* known) {
  IdColumn ids;
  if (mapping != IdMapping::kAsIs) ids.text = column_is_text(path, column, options);
  ids.dictionary =
      make_dictionary(ids.text || mapping == IdMapping::kDense, name, column, memory_bytes, known);
  return ids;
}

/// Adds the ids of a block to their dictionary.
class IdCollector {
 public:
  IdCollector(const RowChecker& check, IdColumn& ids, std::string column, IdMapping mapping,
              const char* option)
      : check_(check),
        ids_(ids),
        column_(std::move(column)),
        pure_text_(mapping == IdMapping::kAuto && ids.text),
        option_(option) {}

  void add(const RawBlock& block, const RawColumn& column) {
    for (size_t row = 0; row < block.rows; ++row) {
      check_.require(block, column, row, column_);
      if (column.type == RawColumn::Type::kInteger) {
        ids_.dictionary->add(column.integers[row]);
        continue;
      }
      const std::string_view text = column.text(row);
      int64_t ignored = 0;
      if (pure_text_ && parse_canonical_integer(text, ignored) && column.untyped) {
        check_.fail_at(block, row,
                       fmt::format("column \"{}\" has the integer {} among texts; if all ids are "
                                   "texts, say {} = \"dense\" in the schema",
                                   column_, text, option_));
      }
      ids_.dictionary->add(text);
    }
  }

 private:
  const RowChecker& check_;
  IdColumn& ids_;
  std::string column_;
  bool pure_text_;
  const char* option_;
};

}  // namespace

LogScan scan_log(const LogSchema& schema, const std::vector<LogFile>& files,
                 const TableOptions& options, int64_t memory_bytes, int64_t after,
                 const IdMaps* known) {
  LogScan scan;
  const std::string& first = files.front().path;
  scan.users =
      look_at("user", schema.user, schema.user_ids, first, options, memory_bytes / 2, known);
  scan.items =
      look_at("item", schema.item, schema.item_ids, first, options, memory_bytes / 2, known);
  const std::string text_ids = "; ids that are texts need user_ids = \"auto\" or \"dense\"";
  std::vector<ColumnRequest> columns = {{schema.user, scan.users.role(), text_ids},
                                        {schema.time, ColumnRole::kTime}};
  if (scan.items.dictionary) columns.push_back({schema.item, scan.items.role()});

  const RowChecker check(schema, files);
  IdCollector users(check, scan.users, schema.user, schema.user_ids, "user_ids");
  IdCollector items(check, scan.items, schema.item, schema.item_ids, "item_ids");
  LogReader reader(files, columns, options);
  base::Progress progress("scan", reader.total_bytes(), "bytes");
  scan.first_time = std::numeric_limits<int64_t>::max();
  // New numbers are not known yet, so nothing can be said about their order.
  scan.in_order = !scan.users.dictionary;
  int64_t last_user = -1, last_time = 0, ties = 0;
  RawBlock block;
  while (reader.next(block)) {
    if (scan.users.dictionary) users.add(block, block.columns[0]);
    if (scan.items.dictionary) items.add(block, block.columns[2]);
    for (size_t row = 0; row < block.rows; ++row) {
      const int64_t time = check.seconds(block, block.columns[1], row);
      scan.first_time = std::min(scan.first_time, time);
      scan.last_time = std::max(scan.last_time, time);
      if (time <= after && scan.early_rows++ == 0) {
        scan.first_early = fmt::format("{}: row {} at {}", files[block.file].path,
                                       block.first_row + static_cast<int64_t>(row) + 1, time);
      }
      if (scan.users.dictionary) continue;
      const int64_t user = check.id(block, block.columns[0], row, schema.user, nullptr);
      scan.largest_user = std::max(scan.largest_user, user);
      if (!scan.in_order) continue;
      ties = user == last_user && time == last_time ? ties + 1 : 0;
      scan.in_order =
          (user > last_user || (user == last_user && time >= last_time)) && ties < kMostTies;
      last_user = user;
      last_time = time;
    }
    scan.rows += static_cast<int64_t>(block.rows);
    progress.update(reader.bytes_read(),
                    fmt::format("{} rows", base::format_count(static_cast<double>(scan.rows))));
  }
  progress.finish();
  if (scan.rows == 0) {
    fail(ErrorCode::kCorrupt,
         fmt::format("{}{}: no events, only a header at most; see `events` of the schema", first,
                     files.size() > 1 ? " and others" : ""));
  }
  if (scan.users.dictionary) scan.users.dictionary->finish();
  if (scan.items.dictionary) scan.items.dictionary->finish();
  return scan;
}

}  // namespace segue::data
