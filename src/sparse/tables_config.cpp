#include "sparse/tables_config.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/memory.h"

namespace segue::sparse {

using base::fail_config;

DType wire_type(Wire wire) {
  if (wire == Wire::kF32) return DType::kF32;
  return wire == Wire::kF16 ? DType::kF16 : DType::kBf16;
}

ops::RowOptimizer TablesConfig::optimizer_of(const TableConfig& table) const {
  if (table.optimizer == OptimizerChoice::kDefault) return optimizer;
  return static_cast<ops::RowOptimizer>(static_cast<int>(table.optimizer) - 1);
}

double TablesConfig::init_bound_of(const TableConfig& table) const {
  if (table.init_bound > 0) return table.init_bound;
  const int64_t n = init_scale == InitScale::kRows ? rows_of(table) : dim_of(table);
  return 1 / std::sqrt(static_cast<double>(n));
}

int64_t TablesConfig::rows_of(const TableConfig& table) const {
  if (!table.dynamic()) return table.rows;
  if (table.max_rows > 0) return table.max_rows;
  if (table.max_gib == 0) return table.rows;
  const int64_t dim_here = dim_of(table);
  const int64_t values = dim_here + ops::row_state_size(optimizer_of(table), dim_here);
  const double row_bytes =
      static_cast<double>(values) * sizeof(float) + static_cast<double>(kIndexBytesPerRow);
  constexpr int64_t kMostRows = int64_t{1} << 30;
  return std::clamp<int64_t>(static_cast<int64_t>(table.max_gib * base::kGib / row_bytes), 1,
                             kMostRows);
}

ops::RowUpdateParams TablesConfig::update_params(ops::RowOptimizer kind, double lr,
                                                 int64_t step) const {
  ops::RowUpdateParams p;
  p.kind = kind;
  p.lr = lr;
  p.eps = eps;
  p.beta1 = beta1;
  p.beta2 = beta2;
  p.t = step;
  return p;
}

void describe(base::ConfigVisitor& v, TablesConfig& c) {
  v.list("tables", c.tables, "embedding tables");
  v.field("dim", c.dim, "width of rows, where a table has not its own");
  v.choice("out_of_range", c.out_of_range, {"error", "clamp", "zero"},
           "ids outside their table: stop, take the nearest row, or read zeros");
  v.choice("optimizer", c.optimizer, {"rowwise_adagrad", "adagrad", "sgd", "adam"},
           "how rows are updated, where a table has not its own");
  v.choice("init_scale", c.init_scale, {"rows", "width"},
           "scale of initial values where a table has no init_bound: 1 / sqrt(its rows), as the "
           "reference, or 1 / sqrt(the width of a row)");
  v.field("eps", c.eps, "added to the root in Adagrad and Adam");
  v.field("beta1", c.beta1, "Adam: decay of the first moment");
  v.field("beta2", c.beta2, "Adam: decay of the second moment");
  v.choice("forward_wire", c.forward_wire, {"f32", "bf16", "f16"},
           "rows are rounded as if they had travelled in this type");
  v.choice("backward_wire", c.backward_wire, {"f32", "bf16", "f16"},
           "row gradients are rounded as if they had travelled in this type");
  v.field("per_block_state", c.per_block_state,
          "row-wise Adagrad of tables cut by columns: one accumulator per block, as the reference");
  v.field("spill_folder", c.spill_folder,
          "local disk for tables of placement = \"file\"; empty: TMPDIR, or /tmp");
}

TableId TablesConfig::id(std::string_view name, std::string_view looked_up_by) const {
  std::vector<std::string> names;
  for (size_t t = 0; t < tables.size(); ++t) {
    names.push_back(tables[t].name);
    if (names.back() == name) return static_cast<TableId>(t);
  }
  const std::string nearest = base::nearest_name(name, names);
  const std::string hint = nearest.empty() ? fmt::format("there is: {}", fmt::join(names, ", "))
                                           : fmt::format("did you mean `{}`?", nearest);
  fail_config(looked_up_by.empty()
                  ? fmt::format("there is no table `{}`; {}", name, hint)
                  : fmt::format("{} looks up table `{}`, which sparse.tables does not have; {}",
                                looked_up_by, name, hint));
}

void TablesConfig::validate() const {
  if (tables.empty()) fail_config("there are no embedding tables; add at least one to `tables`");
  if (dim <= 0 || dim > kMostColumns) {
    fail_config(fmt::format("`dim`, the width of table rows, must be between 1 and {}, not {}",
                            kMostColumns, dim));
  }
  if (!(eps >= 0) || !std::isfinite(eps)) {
    fail_config(fmt::format("`eps` of the table optimizer must be 0 or more, not {}", eps));
  }
  for (const auto& [name, beta] : {std::pair("beta1", beta1), std::pair("beta2", beta2)}) {
    if (!(beta >= 0 && beta < 1)) {
      fail_config(fmt::format("`{}` of the table optimizer must be in [0, 1), not {}", name, beta));
    }
  }
  for (size_t i = 0; i < tables.size(); ++i) {
    const TableConfig& table = tables[i];
    if (table.name.empty()) fail_config(fmt::format("table {} of `tables` has no name", i));
    const auto same = [&](const TableConfig& other) { return other.name == table.name; };
    if (std::any_of(tables.begin(), tables.begin() + static_cast<std::ptrdiff_t>(i), same)) {
      fail_config(fmt::format("two tables are called `{}`; features that share rows name one table",
                              table.name));
    }
    table.validate(dim);
  }
}

}  // namespace segue::sparse
