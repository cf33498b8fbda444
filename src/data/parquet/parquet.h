#pragma once

#include "data/log/table_reader.h"

namespace segue::data {

/// Reads and writes Parquet files with Arrow. Only the files of this folder know Arrow.
const ParquetSupport& parquet_support();

}  // namespace segue::data
