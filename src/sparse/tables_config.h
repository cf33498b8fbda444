#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "comm/codec.h"
#include "ops/optimizer.h"
#include "sparse/table.h"

namespace segue::sparse {

using comm::Wire;

struct TablesConfig {
  std::vector<TableConfig> tables;
  int64_t dim = 0;  // width of rows, where a table has not its own
  OutOfRange out_of_range = OutOfRange::kError;
  ops::RowOptimizer optimizer = ops::RowOptimizer::kRowwiseAdagrad;  // likewise
  double eps = 1e-8, beta1 = 0.9, beta2 = 0.999;
  /// Scale of initial values where a table does not say: 1 / sqrt(rows), as the reference has it,
  /// or 1 / sqrt(width of a row), which makes rows that can be told apart, however many there are.
  enum class InitScale { kRows, kWidth } init_scale = InitScale::kRows;
  /// Rows (and row gradients) are rounded as if they had travelled in this type; the reference
  /// rounds to f16 even on one rank.
  Wire forward_wire = Wire::kF32;
  Wire backward_wire = Wire::kF32;
  /// Row-wise Adagrad of a table cut by columns: every block of columns keeps its own accumulator,
  /// over its own columns, as the reference does; otherwise the result is that of the whole row.
  bool per_block_state = false;
  std::string spill_folder;  // of tables in files; empty: TMPDIR, or /tmp

  int64_t dim_of(const TableConfig& table) const { return table.dim > 0 ? table.dim : dim; }
  ops::RowOptimizer optimizer_of(const TableConfig& table) const;
  double init_bound_of(const TableConfig& table) const;
  /// Rows of a table; of a dynamic one at most.
  int64_t rows_of(const TableConfig& table) const;
  ops::RowUpdateParams update_params(ops::RowOptimizer optimizer, double lr, int64_t step) const;

  /// Error(kConfig) with the nearest name, and who looks it up.
  TableId id(std::string_view name, std::string_view looked_up_by = {}) const;

  void validate() const;  // Error(kConfig): names, sizes, duplicates
};
void describe(base::ConfigVisitor& v, TablesConfig& c);

/// What numbers travel as.
DType wire_type(Wire wire);

}  // namespace segue::sparse
