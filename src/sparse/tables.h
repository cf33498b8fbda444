#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "comm/codec.h"
#include "comm/communicator.h"
#include "ops/optimizer.h"
#include "sparse/dedup.h"
#include "sparse/shard_plan.h"
#include "tensor/exec.h"
#include "tensor/upload.h"

namespace segue::sparse {

enum class TableId : int32_t {};

/// What a config asks for; the planner decides what is left to it.
enum class TierChoice { kAuto, kDevice, kHost };

struct TableConfig {
  std::string name;
  int64_t rows = 0;
  double init_bound = 0;  // uniform in +-bound; 0: 1 / sqrt(rows)
  Sharding sharding = Sharding::kAuto;
  TierChoice placement = TierChoice::kAuto;
};
void describe(base::ConfigVisitor& v, TableConfig& c);

enum class OutOfRange { kError, kClamp, kZero };
using comm::Wire;

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
  /// Row-wise Adagrad of a table cut by columns: every block of columns keeps its own accumulator,
  /// over its own columns, as the reference does; otherwise the result is that of the whole row.
  bool per_block_state = false;

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
  /// On one rank the ids themselves; otherwise ids as they are dealt out (see RowDeal), so that the
  /// rows of one owner lie together.
  std::span<const int64_t> distinct_ids(TableId table) const { return part(table).values.span(); }
  /// A copy of distinct_ids where ops can read it, valid as long as the ticket is used. Without one
  /// rows() and apply() make their own.
  void place_ids(TableId table, const Tensor& ids) {
    placed_ids_.resize(parts_.size());
    placed_ids_[static_cast<size_t>(table)] = ids;
  }

 private:
  friend class Tables;
  friend class TableExchange;

  /// With several ranks: which rows of this rank's shard of a table the others (and itself) ask
  /// for.
  struct Shared {
    /// Part of the distinct rows of the table.
    struct Segment {
      int64_t first = 0, count = 0;
      ColumnBlock columns;
    };
    std::vector<Segment> from;            // [ranks] what each has of the rows that this rank needs
    std::vector<int64_t> served;          // [ranks] rows that each gets from this rank
    UploadBlock::Part<int64_t> slots;     // [sum of served] rows of the shard, by asking rank
    UploadBlock::Part<int64_t> distinct;  // the same, each once, ascending
    UploadBlock::Part<int32_t> place;     // [sum of served] place among the distinct ones
  };

  Tensor ids_for(const Exec& exec, TableId table) const;
  const Distinct& part(TableId table) const { return parts_[static_cast<size_t>(table)]; }
  std::vector<Distinct> parts_;     // per table; inverse of its lookups one after the other
  std::vector<Tensor> placed_ids_;  // per table; empty or absent: not placed
  struct Place {
    size_t table = 0;
    int64_t at = 0, size = 0;  // in the inverse of the table
  };
  std::vector<Place> lookups_;
  std::vector<Shared> shared_;  // per table; empty on one rank
  UploadBlock block_;
  UploadBlock::Placed placed_;  // from rows() on
};

/// The groups of ranks that share the tables. `ids` serves begin(), which may run a step ahead on
/// another thread, `rows` the other two calls.
struct TableGroups {
  comm::Communicator* ids = nullptr;
  comm::Communicator* rows = nullptr;
};

/// Named embedding tables: those of one rank, or one rank's shards of tables that several ranks
/// hold together. Three calls make a step: begin, rows, apply; with several ranks all of them are
/// collective. Expanded per-token rows never cross this border.
class Tables {
 public:
  Tables(const TablesConfig& config, Device device, DType dtype, uint64_t seed);
  /// `plan` and what `groups` point to belong to the same ranks; the groups outlive the tables.
  Tables(const TablesConfig& config, const ShardPlan& plan, TableGroups groups, Device device,
         DType dtype, uint64_t seed);

  const TablesConfig& config() const { return config_; }
  const ShardPlan& plan() const { return plan_; }
  int rank() const { return rank_; }        // among those of the plan
  TableId id(std::string_view name) const;  // Error(kConfig) with the nearest name
  int64_t count() const { return static_cast<int64_t>(tables_.size()); }

  /// Dedupes, and tells the owners of rows which ones are wanted. Ids outside a table follow the
  /// policy: kError throws Error(kOutOfRange) naming feature, id and table; kClamp takes the
  /// nearest row; kZero reads zeros and is never updated. The last two count. An old ticket may be
  /// given for its memory.
  Ticket begin(std::span<const Lookup> lookups, Ticket ticket = {});

  /// [distinct, dim] in exec's arena, in float or double as the tables are kept; of several tables
  /// one after the other.
  Tensor rows(const Exec& exec, Ticket& ticket, std::span<const TableId> tables) const;
  Tensor rows(const Exec& exec, Ticket& ticket, TableId table) const {
    return rows(exec, ticket, std::span(&table, 1));
  }

  /// One summed gradient per distinct row, of several tables one after the other; updates weights
  /// and optimizer state in place. Gradients of one row from several ranks are added in their
  /// order. `step` counts updates from 1 (Adam's bias correction). Where `finite` (f64 [1] on
  /// exec's device; absent: 1) is 0 nothing changes.
  void apply(const Exec& exec, Ticket& ticket, std::span<const TableId> tables,
             const Tensor& row_gradients, double lr, int64_t step, const Tensor& finite = {});
  void apply(const Exec& exec, Ticket& ticket, TableId table, const Tensor& row_gradients,
             double lr, int64_t step, const Tensor& finite = {}) {
    apply(exec, ticket, std::span(&table, 1), row_gradients, lr, step, finite);
  }

  /// Ids of this rank that fell outside their table so far, per table.
  std::span<const int64_t> out_of_range_counts() const { return out_of_range_; }

  /// This rank's part of a table: rows and columns as `shard` says; without any, no rows.
  LocalShard shard(TableId table) const { return tables_[static_cast<size_t>(table)].shard; }
  Tensor weights(TableId table) const { return tables_[static_cast<size_t>(table)].weights; }
  Tensor state(TableId table) const { return tables_[static_cast<size_t>(table)].state; }
  int64_t bytes() const;

 private:
  friend class TableExchange;
  struct Table {
    TableConfig config;
    LocalShard shard;
    Buffer weight_memory, state_memory;
    Tensor weights, state;  // [rows, columns], [rows, state size]
  };
  bool alone() const { return groups_.rows == nullptr; }
  void add_table(const TableConfig& config, const TablePlacement& placement, Device device,
                 DType dtype, uint64_t seed);
  /// Per table its part of `rows`; absent for those not named.
  std::vector<Tensor> split(const Tensor& rows, const Ticket& ticket,
                            std::span<const TableId> tables) const;
  ops::RowUpdateParams update_params(double lr, int64_t step) const;

  TablesConfig config_;
  ShardPlan plan_;
  TableGroups groups_;
  int rank_ = 0;
  DType dtype_ = DType::kF32;
  std::vector<Table> tables_;
  std::vector<int64_t> out_of_range_;
  struct Work {
    HostArray<int64_t> ids;
    DedupScratch scratch;
  };
  std::vector<Work> work_;  // per table: memory of begin()
};

/// What numbers travel as.
DType wire_type(Wire wire);

}  // namespace segue::sparse
