#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "ops/optimizer.h"
#include "sparse/shard_plan.h"
#include "sparse/table_snapshot.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace segue::sparse {

enum class TableId : int32_t {};

/// What a config asks for; the planner decides what is left to it.
enum class TierChoice { kAuto, kDevice, kHost };

/// kDefault: that of all tables.
enum class OptimizerChoice { kDefault, kRowwiseAdagrad, kAdagrad, kSgd, kAdam };

inline constexpr int64_t kMostColumns = 1 << 16;

struct TableConfig {
  std::string name;
  int64_t rows = 0;
  double init_bound = 0;  // uniform in +-bound; 0: 1 / sqrt(rows)
  Sharding sharding = Sharding::kAuto;
  TierChoice placement = TierChoice::kAuto;
  int64_t dim = 0;  // 0: that of all tables
  OptimizerChoice optimizer = OptimizerChoice::kDefault;

  void validate(int64_t default_dim) const;  // Error(kConfig)
};
void describe(base::ConfigVisitor& v, TableConfig& c);

enum class OutOfRange { kError, kClamp, kZero };

/// What a batch is for. Training may add rows to a table that takes any id; evaluation changes
/// nothing.
enum class Mode { kTraining, kEvaluation };

/// The ids that one feature of the batch looks up.
struct Lookup {
  TableId table{};
  std::string_view feature;  // for messages
  std::span<const int64_t> ids;
  std::span<const int32_t> uses = {};  // places in `ids`, one per use; absent: each is used once
};

/// Everything that a table is made from.
struct TableSpec {
  TableConfig config;
  int64_t dim = 0;  // width of a whole row, and how it is updated: the config's, or the default
  ops::RowOptimizer optimizer = ops::RowOptimizer::kRowwiseAdagrad;
  bool per_block_state = false;  // see TablesConfig
  OutOfRange out_of_range = OutOfRange::kError;
  TablePlacement placement;
  int ranks = 1, rank = 0;
  Device device;
  DType dtype = DType::kF32;
  uint64_t seed = 0;
};

/// What one rank holds of a table: rows by key, and these columns of them.
struct Share {
  int64_t first_key = 0, last_key = -1;  // both inclusive
  ColumnBlock columns;
  bool empty() const { return first_key > last_key; }
};

/// Rows where the ops of a step find them, by slot.
struct Resident {
  Tensor weights, state;  // [slots, columns], [slots, columns of the optimizer's state]
};

/// One embedding table, or this rank's part of it. It decides who owns a row (ids become keys, keys
/// sort by owner), where its owner keeps it (keys become slots) and in which memory (resident).
/// Whole batches go through every call, so a call may be virtual; rows are read and updated by ops,
/// for all tables at once.
///
/// The calls of a batch come in the order below. Those up to stage() may be a batch ahead of the
/// others, on another thread; each of the two threads goes one batch at a time.
class Table {
 public:
  explicit Table(TableSpec spec);
  virtual ~Table() = default;
  Table(const Table&) = delete;
  Table& operator=(const Table&) = delete;

  const TableSpec& spec() const { return spec_; }
  bool replicated() const { return spec_.placement.sharding == Sharding::kReplicated; }

  /// How many ids have no row; Error(kOutOfRange) naming feature, id and table where that is not
  /// allowed. For several lookups at a time.
  virtual int64_t check(const Lookup& lookup) const = 0;
  /// One key per id, the same for the same row; keys of one owner lie together. For several lookups
  /// at a time.
  virtual void make_keys(std::span<const int64_t> ids, int64_t* keys) const = 0;
  /// Whether keys use all 64 bits. Where they do not, a negative one says that the id has no row:
  /// zeros are read, nothing is updated.
  virtual bool has_negative_keys() const { return false; }
  virtual Share share_of(int rank) const = 0;

  /// Keys that this rank holds, each once and ascending, become slots in place. Evaluation gets -1
  /// for a row that there is not, which reads zeros; training always gets a slot. They stay valid
  /// until release().
  virtual void find_slots(std::span<int64_t> keys, Mode mode) = 0;

  /// Brings the rows of `slots`, as find_slots() gave them, to where resident() says, on
  /// `copy_stream`. True: something is on its way there.
  virtual bool stage(std::span<const int64_t> slots, const Stream& copy_stream);
  virtual Resident resident() const = 0;
  /// Nobody reads or updates `slots` for this batch any more once `last_use` has done what it was
  /// given so far (null: now).
  virtual void release(std::span<const int64_t> slots, const Stream* last_use);

  /// The arrays that make up the table, to be saved; or to be filled from a checkpoint, after which
  /// restore() makes them the table.
  virtual std::vector<TableArray> snapshot() = 0;
  virtual void restore() = 0;

  virtual int64_t bytes() const = 0;

 private:
  TableSpec spec_;
};

using MakeTable = std::function<std::unique_ptr<Table>(TableSpec spec)>;

/// The kind that config and placement ask for; Error(kUnsupported) for a tier that cannot be
/// trained.
std::unique_ptr<Table> make_table(TableSpec spec);

}  // namespace segue::sparse
