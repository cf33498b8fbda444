#pragma once

#include <vector>

#include "data/log/event_normalizer.h"
#include "data/log/log_reader.h"
#include "data/log/log_schema.h"
#include "data/log/skipped_rows.h"
#include "data/store/store_writer.h"

namespace segue::data {

/// Reads the files of an attribute into the store's map, of several rows of an item the last one;
/// text values get numbers from 1. Rows that cannot be used are left out as far as `skip_bad`
/// allows, else they are RowErrors. `memory_bytes` bounds the distinct texts.
void read_attribute(const AttributeFile& attribute, const std::vector<LogFile>& files,
                    const TableOptions& table_options, const SkipLimit& skip_bad,
                    const IdColumn& items, int64_t memory_bytes, StoreWriter& store);

}  // namespace segue::data
