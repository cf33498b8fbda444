#pragma once

#include "data/log/table_reader.h"
#include "data/log/vector_table.h"

namespace segue::data {

/// Reads and writes Parquet files with Arrow. Only the files of this folder know Arrow.
const ParquetSupport& parquet_support();
/// The same of files of vectors.
const VectorFiles& parquet_vectors();

}  // namespace segue::data
