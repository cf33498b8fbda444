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

/// Decides by the first id whether the ids of a column get new numbers. Dense ids may be integers
/// and texts mixed.
IdColumn look_at(const char* name, const std::string& column, IdMapping mapping,
                 const std::vector<LogFile>& files, const TableOptions& options,
                 int64_t memory_bytes, const IdMaps* known) {
  IdColumn ids;
  ids.pure_text = mapping == IdMapping::kAuto && column_is_text(paths_of(files), column, options);
  ids.dictionary = make_dictionary(ids.pure_text || mapping == IdMapping::kDense, name, column,
                                   memory_bytes, known);
  return ids;
}

// Columns of a scan, as EventNormalizer has them.
constexpr size_t kUser = 0, kTime = 1, kItem = 2;

}  // namespace

LogScan scan_log(const LogSchema& schema, const std::vector<LogFile>& files,
                 const TableOptions& options, int64_t memory_bytes, int64_t after,
                 const IdMaps* known) {
  LogScan scan;
  scan.users =
      look_at("user", schema.user, schema.user_ids, files, options, memory_bytes / 2, known);
  scan.items =
      look_at("item", schema.item, schema.item_ids, files, options, memory_bytes / 2, known);
  EventNormalizer normalizer(schema, files, scan.users, scan.items);
  std::vector<ColumnRequest> columns = normalizer.requests();
  if (!options.mark_bad_rows) columns.resize(scan.items.dictionary ? kItem + 1 : kTime + 1);

  const RowChecker check(schema, files);
  LogReader reader(files, columns, options);
  base::Progress progress("scan", reader.total_bytes(), "bytes");
  scan.first_time = std::numeric_limits<int64_t>::max();
  // New numbers are not known yet, so nothing can be said about their order.
  scan.in_order = !scan.users.dictionary;
  int64_t last_user = -1, last_time = 0, ties = 0;
  RawBlock block;
  std::vector<BadRow> bad;
  while (reader.next(block)) {
    if (options.mark_bad_rows) bad = normalizer.find_bad(block);
    for (const BadRow& b : bad) {
      scan.skipped.add(files[block.file].name, block.first_row + static_cast<int64_t>(b.row),
                       b.fault);
    }
    for (size_t row = 0, next_bad = 0; row < block.rows; ++row) {
      if (is_listed(bad, row, next_bad)) continue;
      check.check_id(block, block.columns[kUser], row, schema.user, scan.users);
      if (scan.users.dictionary) scan.users.add(block.columns[kUser], row);
      if (scan.items.dictionary) {
        check.check_id(block, block.columns[kItem], row, schema.item, scan.items);
        scan.items.add(block.columns[kItem], row);
      }
      const int64_t time = check.seconds(block, block.columns[kTime], row);
      scan.first_time = std::min(scan.first_time, time);
      scan.last_time = std::max(scan.last_time, time);
      if (time <= after && scan.early_rows++ == 0) {
        scan.first_early = fmt::format("{}: row {} at {}", files[block.file].path,
                                       block.first_row + static_cast<int64_t>(row) + 1, time);
      }
      if (scan.users.dictionary) continue;
      const int64_t user = block.columns[kUser].integers[row];
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
         fmt::format("{}{}: no events, only a header at most; see `events` of the schema",
                     files.front().path, files.size() > 1 ? " and others" : ""));
  }
  if (scan.users.dictionary) scan.users.dictionary->finish();
  if (scan.items.dictionary) scan.items.dictionary->finish();
  return scan;
}

}  // namespace segue::data
