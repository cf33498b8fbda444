#pragma once

#include <vector>

#include "data/log/event_normalizer.h"
#include "data/log/log_reader.h"
#include "data/log/log_schema.h"
#include "data/log/skipped_rows.h"
#include "data/store/store_writer.h"

namespace segue::data {

/// A log that was scanned.
struct ScannedLog {
  const LogSchema& schema;
  const std::vector<LogFile>& files;
  const TableOptions& options;
  const IdColumn &users, &items;
};

/// Reads the files that map items, or users, to an attribute into the store's map; of several rows
/// of one the last counts. Rows without a value, rows of ids that their dictionary does not know,
/// and rows of the log itself that it had to leave out, are left out. Attributes that are text are
/// numbered from 1 in the order of their bytes (0 stays "unknown"), behind those that have numbers
/// in `known` (may be null); the store keeps them in segue/<name>_ids.txt. Of several values in a
/// field, blanks around them aside, the first different ones fill the columns of the attribute, 0
/// those behind: all are integers, or all are texts. Rows that cannot be used are left out as far
/// as `skip_bad` allows, else they are RowErrors. `memory_bytes` bounds the distinct texts. True if
/// a row is of an item, or user, whose id is new to its dictionary.
bool read_attribute(const AttributeFile& attribute, const std::vector<LogFile>& files,
                    const ScannedLog& log, const SkipLimit& skip_bad, int64_t memory_bytes,
                    const IdMaps* known, StoreWriter& store);

}  // namespace segue::data
