#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/log/table_reader.h"
#include "data/log/vector_table.h"

namespace segue::data {

std::unique_ptr<TableReader> open_parquet(const std::string& path,
                                          const std::vector<ColumnRequest>& columns,
                                          size_t block_rows, bool mark_bad_rows = false);
/// See VectorFiles::open.
std::unique_ptr<VectorReader> open_vectors(const std::string& path, const VectorShape& shape);
std::vector<ParquetColumn> parquet_columns(const std::string& path);
bool is_text_column(const std::string& path, const std::string& column);

}  // namespace segue::data
