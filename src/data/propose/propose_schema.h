#pragma once

#include <string>

#include "data/log/table_reader.h"

namespace segue::data {

/// A commented schema for the log at `raw`, a folder or a file: which columns are user, item and
/// time, what is predicted, what is known of items, each with what speaks for it in a sample of the
/// rows. Where the files do not tell, a comment says what to fill in. Error(kNotFound) when nothing
/// can be read.
std::string propose_schema(const std::string& raw, const ParquetSupport* parquet);

}  // namespace segue::data
