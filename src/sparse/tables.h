#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "ops/optimizer.h"
#include "sparse/dedup.h"
#include "tensor/exec.h"

namespace segue::sparse {

enum class TableId : int32_t {};

struct TableConfig {
  std::string name;
  int64_t rows = 0;
  double init_bound = 0;  // uniform in +-bound; 0: 1 / sqrt(rows)
};
void describe(base::ConfigVisitor& v, TableConfig& c);

enum class OutOfRange { kError, kClamp, kZero };
enum class Wire { kF32, kBf16, kF16 };

struct TablesConfig {
  std::vector<TableConfig> tables;
  int64_t dim = 0;  // width of every row
  OutOfRange out_of_range = OutOfRange::kError;
  ops::RowOptimizer optimizer = ops::RowOptimizer::kRowwiseAdagrad;
  double eps = 1e-8, beta1 = 0.9, beta2 = 0.999;
  /// Rows (and row gradients) are rounded as if they had travelled in this type; the reference
  /// rounds to f16 even on one rank.
  Wire forward_wire = Wire::kF32;
  Wire backward_wire = Wire::kF32;

  void validate() const;  // Error(kConfig): names, sizes, duplicates
};
void describe(base::ConfigVisitor& v, TablesConfig& c);

/// The ids that one feature of the batch looks up.
struct Lookup {
  TableId table{};
  std::string_view feature;  // for messages
  std::span<const int64_t> ids;
};

/// One batch's distinct rows: made by begin(), used by rows() and apply(), may exist a step ahead.
class Ticket {
 public:
  int64_t distinct_rows(TableId table) const { return part(table).values.size(); }
  /// i32 [ids of the lookup]: place of each id among the distinct rows of its table, -1 for a zero
  /// row. Of `count` lookups in a row when they all read one table.
  std::span<const int32_t> inverse(int64_t lookup, int64_t count = 1) const;
  std::span<const int64_t> distinct_ids(TableId table) const { return part(table).values.span(); }
  /// A copy of distinct_ids where ops can read it, valid as long as the ticket is used. Without one
  /// rows() and apply() make their own.
  void place_ids(TableId table, const Tensor& ids) {
    placed_ids_.resize(parts_.size());
    placed_ids_[static_cast<size_t>(table)] = ids;
  }

 private:
  friend class Tables;
  Tensor ids_for(const Exec& exec, TableId table) const;
  const Distinct& part(TableId table) const { return parts_[static_cast<size_t>(table)]; }
  std::vector<Distinct> parts_;     // per table; inverse of its lookups one after the other
  std::vector<Tensor> placed_ids_;  // per table; empty or absent: not placed
  struct Place {
    size_t table = 0;
    int64_t at = 0, size = 0;  // in the inverse of the table
  };
  std::vector<Place> lookups_;
};

/// Named embedding tables of one rank. Three calls make a step: begin, rows, apply. Expanded
/// per-token rows never cross this border. The calls stay the same when tables become sharded,
/// staged or dynamic.
class Tables {
 public:
  Tables(const TablesConfig& config, Device device, DType dtype, uint64_t seed);

  const TablesConfig& config() const { return config_; }
  TableId id(std::string_view name) const;  // Error(kConfig) with the nearest name
  int64_t count() const { return static_cast<int64_t>(tables_.size()); }

  /// Dedupes. Ids outside a table follow the policy: kError throws Error(kOutOfRange) naming
  /// feature, id and table; kClamp takes the nearest row; kZero reads zeros and is never updated.
  /// The last two count. An old ticket may be given for its memory.
  Ticket begin(std::span<const Lookup> lookups, Ticket ticket = {});

  /// [distinct, dim] in exec's arena, in float or double as the tables are kept; of several tables
  /// one after the other.
  Tensor rows(const Exec& exec, const Ticket& ticket, std::span<const TableId> tables) const;
  Tensor rows(const Exec& exec, const Ticket& ticket, TableId table) const {
    return rows(exec, ticket, std::span(&table, 1));
  }

  /// One summed gradient per distinct row, of several tables one after the other; updates weights
  /// and optimizer state in place. `step` counts updates from 1 (Adam's bias correction). Where
  /// `enabled` (f64 [1] on exec's device; absent: 1) is 0 nothing changes.
  void apply(const Exec& exec, const Ticket& ticket, std::span<const TableId> tables,
             const Tensor& row_gradients, double lr, int64_t step, const Tensor& enabled = {});
  void apply(const Exec& exec, const Ticket& ticket, TableId table, const Tensor& row_gradients,
             double lr, int64_t step, const Tensor& enabled = {}) {
    apply(exec, ticket, std::span(&table, 1), row_gradients, lr, step, enabled);
  }

  /// Ids that fell outside their table so far, per table.
  std::span<const int64_t> out_of_range_counts() const { return out_of_range_; }

  Tensor weights(TableId table) const { return tables_[static_cast<size_t>(table)].weights; }
  Tensor state(TableId table) const { return tables_[static_cast<size_t>(table)].state; }
  int64_t bytes() const;

 private:
  struct Table {
    TableConfig config;
    Buffer weight_memory, state_memory;
    Tensor weights, state;  // [rows, dim], [rows, state size]
  };
  TablesConfig config_;
  DType dtype_ = DType::kF32;
  std::vector<Table> tables_;
  std::vector<int64_t> out_of_range_;
  struct Work {
    HostArray<int64_t> ids;
    DedupScratch scratch;
  };
  std::vector<Work> work_;  // per table: memory of begin()
};

}  // namespace segue::sparse
