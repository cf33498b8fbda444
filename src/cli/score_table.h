#pragma once

#include <string>
#include <vector>

#include "data/log/table_reader.h"

namespace segue::cli {

/// Scores as columns of equal length.
using ScoreTable = std::vector<data::TableColumn>;

/// Error(kInvalidArgument) for a name that ends in neither .csv, .jsonl nor .parquet,
/// Error(kUnsupported) for Parquet in a build without it.
void require_table_format(const std::string& path);
/// In the format that the name of the file says.
void write_table(const std::string& path, const ScoreTable& table);
std::string csv_text(const ScoreTable& table);

}  // namespace segue::cli
