#pragma once

#include <string>
#include <vector>

#include "data/propose/column_roles.h"
#include "data/propose/table_sample.h"

namespace segue::data {

/// What is known of items, as a schema says it.
struct ProposedAttributes {
  std::string text;                   // [[attributes]], and [[crosses]] with the first
  std::vector<std::string> left_out;  // "COLUMN: why"
  std::string csv_separator;  // of their files, where the log is no CSV; else that of the log
  double bad_share = 0;       // of the rows of a file, the most
};
ProposedAttributes propose_attributes(const FolderSample& folder, const TableSample& log,
                                      const ColumnRoles& roles);

/// Rows whose `c` is no id as prep reads it.
int64_t rows_without_id(const ColumnSample& c);

}  // namespace segue::data
