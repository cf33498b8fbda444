#include "sparse/table.h"

#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/config_checks.h"
#include "base/error.h"
#include "sparse/static_table.h"

namespace segue::sparse {

using base::fail_config;

void describe(base::ConfigVisitor& v, TableConfig& c) {
  v.field("name", c.name, "name that features refer to");
  v.field("rows", c.rows, "number of rows; ids are 0 .. rows - 1");
  v.field("init_bound", c.init_bound, "initial values are uniform in +-bound; 0: 1 / sqrt(rows)");
  v.choice("sharding", c.sharding, {"auto", "table", "row", "column", "table_row", "replicated"},
           "how ranks share it: as planned, whole on one, rows or columns split over all, rows "
           "within one machine, a copy each");
  v.choice("placement", c.placement, {"auto", "device", "host"}, "which memory its rows lie in");
  v.field("dim", c.dim, "width of its rows; 0: sparse.dim");
  v.choice("optimizer", c.optimizer, {"default", "rowwise_adagrad", "adagrad", "sgd", "adam"},
           "how its rows are updated; default: sparse.optimizer");
}

void TableConfig::validate(int64_t default_dim) const {
  if (dim < 0 || dim > kMostColumns) {
    fail_config(fmt::format("table `{}`: `dim` must be 0 (for sparse.dim) or up to {}, not {}",
                            name, kMostColumns, dim));
  }
  constexpr int64_t kBytesPerValue = 8;
  const int64_t most_rows =
      std::numeric_limits<int64_t>::max() / kBytesPerValue / (dim > 0 ? dim : default_dim) / 2;
  if (rows <= 0 || rows > most_rows) {
    fail_config(
        fmt::format("table `{}`: `rows` must be between 1 and {}, not {}", name, most_rows, rows));
  }
  if (!(init_bound >= 0) || !std::isfinite(init_bound)) {
    fail_config(
        fmt::format("table `{}`: `init_bound` must be 0 (for 1 / sqrt(rows)) or more, not {}", name,
                    init_bound));
  }
}

Table::Table(TableSpec spec) : spec_(std::move(spec)) {}

bool Table::stage(std::span<const int64_t> /*slots*/, const Stream& /*copy_stream*/) {
  return false;
}

void Table::release(std::span<const int64_t> /*slots*/, const Stream* /*last_use*/) {}

std::unique_ptr<Table> make_table(TableSpec spec) {
  if (spec.placement.tier == Tier::kHost) {
    fail(ErrorCode::kUnsupported,
         fmt::format("table `{}` is planned into host memory, which training cannot use yet. Use "
                     "more ranks, fewer rows, a smaller dim, or more device memory per rank",
                     spec.config.name));
  }
  return std::make_unique<StaticTable>(std::move(spec));
}

}  // namespace segue::sparse
