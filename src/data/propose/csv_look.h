#pragma once

#include <string>
#include <vector>

#include "data/log/table_reader.h"

namespace segue::data {

/// What stands between the fields of a CSV file, and what its columns are called, by its first
/// lines. Without a header line they are column1 and on, which CsvFormat::columns then has, too.
CsvFormat look_at_csv(const std::string& path, std::vector<std::string>& names);

}  // namespace segue::data
