#pragma once

#include "data/log/table_reader.h"
#include "data/log/vector_table.h"

#if SEGUE_HAS_ARROW
#include "data/parquet/parquet.h"
#endif

namespace segue::cli {

/// Null in a build without Arrow.
inline const data::ParquetSupport* parquet() {
#if SEGUE_HAS_ARROW
  return &data::parquet_support();
#else
  return nullptr;
#endif
}

inline const data::VectorFiles* parquet_vectors() {
#if SEGUE_HAS_ARROW
  return &data::parquet_vectors();
#else
  return nullptr;
#endif
}

}  // namespace segue::cli
