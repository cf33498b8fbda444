#pragma once

#include <cstdint>

#include "data/log/event_normalizer.h"
#include "data/log/log_reader.h"
#include "data/log/log_schema.h"
#include "data/log/table_reader.h"
#include "data/store/store_writer.h"

namespace segue::data {

/// Reads a file that maps items, or users, to an attribute into a store; `owners` are those. Rows
/// without a value, and rows of ids that their dictionary does not know, are left out. Attributes
/// that are text are numbered from 1 in the order of their bytes (0 stays "unknown"), behind those
/// that have numbers in `known` (may be null); the store keeps them in segue/<name>_ids.txt.
void read_attribute(const AttributeFile& attribute, const LogFile& file,
                    const TableOptions& options, const IdColumn& owners, int64_t memory_bytes,
                    const IdMaps* known, StoreWriter& store);

}  // namespace segue::data
