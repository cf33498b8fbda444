#pragma once

#include <memory>
#include <span>
#include <string>

#include "data/log/table_reader.h"
#include "data/log/vector_table.h"
#include "data/synth/synth_output.h"

namespace segue::data {

/// Writes FOLDER/flat/<size>/multi_event.parquet and the mappings, with the types of the public
/// data set: `segue prep` takes one for the other.
std::unique_ptr<RawLogWriter> make_parquet_log_writer(const std::string& folder,
                                                      const std::string& size_name);

/// See VectorFiles::create.
std::unique_ptr<VectorWriter> make_vector_writer(const std::string& path, const VectorShape& shape);

/// See ParquetSupport::write_table.
void write_parquet_table(const std::string& path, std::span<const TableColumn> columns);

}  // namespace segue::data
