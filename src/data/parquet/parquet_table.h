#pragma once

#include <span>
#include <string>

#include "data/table_reader.h"

namespace segue::data {

/// See ParquetSupport::write_table.
void write_parquet_table(const std::string& path, std::span<const TableColumn> columns);

}  // namespace segue::data
