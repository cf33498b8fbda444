#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/log/event_normalizer.h"
#include "data/log/log_reader.h"
#include "data/log/log_schema.h"
#include "data/log/skipped_rows.h"

namespace segue::data {

/// What a first look at a log tells: enough to split it and to plan memory.
struct LogScan {
  int64_t rows = 0;                       // those that were left out among them
  SkippedRows skipped;                    // with TableOptions::mark_bad_rows
  int64_t first_time = 0, last_time = 0;  // seconds
  bool in_order = true;                   // users rise, times rise within a user
  int64_t largest_user = -1;              // -1: users get new numbers
  IdColumn users, items;
  int64_t early_rows = 0;   // not after the time that was given
  std::string first_early;  // file, row and time of one of them
};

/// Reads the columns with users and times, and those of ids that need a dictionary; with
/// options.mark_bad_rows all columns, so that rows that are left out leave no trace. `memory_bytes`
/// bounds the dictionaries. Rows that are not after `after` are counted; all times are. Ids that
/// have numbers in `known` (may be null) keep them.
/// Error(kCorrupt) for a log without rows.
LogScan scan_log(const LogSchema& schema, const std::vector<LogFile>& files,
                 const TableOptions& options, int64_t memory_bytes, int64_t after = -1,
                 const IdMaps* known = nullptr);

}  // namespace segue::data
