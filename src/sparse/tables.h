#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"
#include "ops/id_rows.h"
#include "sparse/shard_plan.h"
#include "sparse/table.h"
#include "sparse/tables_config.h"
#include "sparse/ticket.h"
#include "tensor/exec.h"

namespace segue::sparse {

/// The groups of ranks that share the tables. `ids` serves begin(), which may run a step ahead on
/// another thread, `rows` the calls that read and update rows.
struct TableGroups {
  comm::Communicator* ids = nullptr;
  comm::Communicator* rows = nullptr;
};

/// Named embedding tables: those of one rank, or one rank's parts of tables that several ranks hold
/// together. A step is begin, stage, rows, apply, release; with several ranks begin, rows and apply
/// are collective.
class Tables {
 public:
  /// `config` must be valid.
  Tables(const TablesConfig& config, Device device, DType dtype, uint64_t seed);
  /// `plan` and what `groups` point to belong to the same ranks; the groups outlive the tables.
  Tables(const TablesConfig& config, const ShardPlan& plan, TableGroups groups, Device device,
         DType dtype, uint64_t seed, const MakeTable& make = make_table);
  Tables(const Tables&) = delete;
  Tables& operator=(const Tables&) = delete;

  const TablesConfig& config() const { return config_; }
  const ShardPlan& plan() const { return plan_; }
  const TableGroups& groups() const { return groups_; }
  Device device() const { return device_; }
  int rank() const { return rank_; }  // among those of the plan
  bool alone() const { return groups_.rows == nullptr; }
  TableId id(std::string_view name) const { return config_.id(name); }
  int64_t count() const { return static_cast<int64_t>(tables_.size()); }
  Table& table(TableId id) { return *tables_[static_cast<size_t>(id)]; }
  const Table& table(TableId id) const { return *tables_[static_cast<size_t>(id)]; }

  /// Dedupes, and tells the owners of rows which ones are wanted, and what for. Ids without a row
  /// are errors, or counted: see Table. `time` is the latest event time of the batch, in seconds;
  /// tables that forget by age need it. An old ticket may be given for its memory. One at a time.
  ///
  /// Where the inverse may stay on a GPU, the GPU dedups, all tables at once, if this rank has them
  /// alone, their ids are their keys (Table::ids_are_keys) and fit 64 bits together: with the same
  /// result, and faster by far where a batch has many ids. It waits for the counts, on a stream of
  /// its own. Lookups may then have their ids there, too, done by the time of the call.
  Ticket begin(std::span<const Lookup> lookups, Mode mode, Ticket ticket = {}, int64_t time = 0,
               InverseAt inverse = InverseAt::kHost);
  /// Whether slots should reach the device with the caller's own upload: Ticket::place_slots.
  bool slots_travel() const { return alone() && device_.is_cuda(); }

  /// Starts, on `copy_stream`, what has to be moved before rows() can find it. Once, by the thread
  /// that began the ticket; rows() does it on its own stream where nobody did.
  void stage(Ticket& ticket, const Stream& copy_stream);

  /// [distinct, dim] in exec's arena, in float or double as the tables are kept; of several tables,
  /// all of one width, one after the other.
  Tensor rows(const Exec& exec, Ticket& ticket, std::span<const TableId> tables);
  Tensor rows(const Exec& exec, Ticket& ticket, TableId table) {
    return rows(exec, ticket, std::span(&table, 1));
  }

  /// One summed gradient per distinct row, of several tables one after the other; updates weights
  /// and optimizer state in place. Gradients of one row from several ranks are added in their
  /// order. `step` counts updates from 1 (Adam's bias correction). Unless all values of `finite`
  /// (flat f64 on exec's device; absent: none) are finite, nothing changes. Training only.
  void apply(const Exec& exec, Ticket& ticket, std::span<const TableId> tables,
             const Tensor& row_gradients, double lr, int64_t step, const Tensor& finite = {});
  void apply(const Exec& exec, Ticket& ticket, TableId table, const Tensor& row_gradients,
             double lr, int64_t step, const Tensor& finite = {}) {
    apply(exec, ticket, std::span(&table, 1), row_gradients, lr, step, finite);
  }

  /// Of all ids of a batch, tables in their order and the lookups of a table in theirs.
  struct Places {
    Tensor inverse;      // i32 [ids]: place among the distinct rows of all tables; -1: zeros
    ops::IdOrder order;  // where it is known
  };
  Places places(const Exec& exec, Ticket& ticket) const;
  /// A row for each of these ids [ids, dim], straight from the tables, which have one width. With
  /// one rank, as the next.
  Tensor rows_of_ids(const Exec& exec, Ticket& ticket);
  /// apply() with a gradient for each of these ids, which are summed here.
  void apply_to_ids(const Exec& exec, Ticket& ticket, const Tensor& gradients, double lr,
                    int64_t step, const Tensor& finite = {});

  /// What `stream` has been given so far is the last to use the ticket's rows. Needed where a later
  /// stage() uses another stream, and by tables that take slots away from rows.
  void release(Ticket& ticket, const Stream& stream);
  /// The ticket is never going to be used.
  void drop(Ticket& ticket) { give_back(ticket, nullptr); }

  /// See Table::load(); `saved` has the arrays of the table that it is asked for.
  void load(const std::function<std::unique_ptr<SavedArrays>(const std::string& table)>& saved);

  /// See Table::mark_saved().
  void mark_saved();

  /// Ids of this rank that had no row so far, per table.
  std::span<const int64_t> out_of_range_counts() const { return out_of_range_; }
  int64_t bytes() const;

 private:
  /// Small tables get pieces of one allocation.
  void share_memory(std::span<TableSpec> specs);
  void make_ready(const Exec& exec, Ticket& ticket);
  void resolve(const Exec& exec, Ticket& ticket);
  Table::LateBatch late_batch(const Exec& exec, Ticket& ticket, TableId id) const;
  /// What begin() knows of the lookups without looking at ids; ids of each table.
  std::vector<int64_t> lay_out(std::span<const Lookup> lookups, Mode mode, int64_t time,
                               Ticket& ticket) const;
  bool can_begin_on_device(std::span<const Lookup> lookups) const;
  /// False: the ids do not fit.
  bool begin_on_device(std::span<const Lookup> lookups, Mode mode, int64_t time, Ticket& ticket);
  void find_slots(std::span<const TableId> tables, Mode mode, Ticket& ticket);
  void find_slots_by_host(Mode mode, Ticket& ticket);
  Tensor send_ids(std::span<const Lookup> lookups, const std::vector<int64_t>& ids_per_table,
                  Ticket& ticket, const Stream& stream) const;
  std::vector<TableId> all() const;
  /// Of the only rank, where ops can read them: keys that begin() found, and their slots.
  static Tensor keys_for(const Exec& exec, const Ticket& ticket, TableId table);
  static Tensor slots_for(const Exec& exec, const Ticket& ticket, TableId table);
  /// Without `to`.
  ops::MissingRows missing_rows(const Exec& exec, const Ticket& ticket, TableId id) const;
  void fill_missing(const Exec& exec, std::span<const ops::MissingRows> rows) const;
  void give_back(Ticket& ticket, const Stream* last_use);
  /// Per table its part of `rows`; absent for those not named.
  std::vector<Tensor> split(const Tensor& rows, const Ticket& ticket,
                            std::span<const TableId> tables) const;

  TablesConfig config_;
  ShardPlan plan_;
  TableGroups groups_;
  Device device_;
  int rank_ = 0;
  DType dtype_ = DType::kF32;
  Buffer small_weights_, small_state_;  // of all small tables, one after the other
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<int64_t> out_of_range_;
  struct Work {
    HostArray<int64_t> keys;
    DedupScratch scratch;
    IdRange range{0, 0};  // of ids so far, where any id is legal; of dedup by the device
  };
  std::vector<Work> work_;  // per table: memory of begin()
  std::unique_ptr<Stream> id_stream_;
  std::shared_ptr<Tables*> self_ = std::make_shared<Tables*>(this);  // of tickets
};

}  // namespace segue::sparse
