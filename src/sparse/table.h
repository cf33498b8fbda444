#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "ops/initialize.h"
#include "ops/optimizer.h"
#include "sparse/hash_index.h"
#include "sparse/shard_plan.h"
#include "sparse/table_snapshot.h"
#include "tensor/device.h"
#include "tensor/event.h"
#include "tensor/exec.h"
#include "tensor/host_array.h"
#include "tensor/tensor.h"

namespace segue::sparse {

enum class TableId : int32_t {};

/// What a config asks for; the planner decides what is left to it.
enum class TierChoice { kAuto, kDevice, kHost, kCached, kFile };

/// Which rows leave a cache first: those not used for longest, or least often of late.
enum class CachePolicy { kLru, kLfu };

/// kDefault: that of all tables.
enum class OptimizerChoice { kDefault, kRowwiseAdagrad, kAdagrad, kSgd, kAdam };

/// kStatic: rows 0 ... n - 1. kDynamic: a row for every id that training has met, of any 64 bits.
enum class TableKind { kStatic, kDynamic };

/// Beside uniform values: what ops::Init says of the others.
enum class InitChoice { kUniform, kNormal, kTruncatedNormal, kConstant };

inline constexpr int64_t kMostColumns = 1 << 16;
/// What the index of a dynamic table takes beside a row, at most.
inline constexpr int64_t kIndexBytesPerRow = 72;

struct TableConfig {
  std::string name;
  int64_t rows = 0;
  double init_bound = 0;  // 0: by TablesConfig::init_scale
  Sharding sharding = Sharding::kAuto;
  TierChoice placement = TierChoice::kAuto;
  double cache_share = 0;  // of its rows; 0: as planned
  CachePolicy cache_policy = CachePolicy::kLru;
  int64_t dim = 0;  // 0: that of all tables
  OptimizerChoice optimizer = OptimizerChoice::kDefault;
  InitChoice init = InitChoice::kUniform;
  TableKind kind = TableKind::kStatic;
  // Of dynamic tables.
  int64_t max_rows = 0;  // 0: as max_gib, or `rows`, says
  double max_gib = 0;
  int64_t start_rows = 0;  // 0: a sixteenth of the most
  Evict evict = Evict::kLru;
  std::vector<std::string> score;  // kScore: columns of a batch that have a value for every use
  int64_t admit_after = 1;
  double admit_share = 1;
  int64_t ttl_seconds = 0;

  bool dynamic() const { return kind == TableKind::kDynamic; }
  /// Ids are 0 ... this - 1; of a dynamic table any.
  int64_t id_limit() const;
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
  /// Of every use, in training and where the table keeps them (Table::keeps_scores).
  std::span<const int64_t> scores = {};
  Tensor on_device = {};  // instead of `ids`: i64 where the tables are; see Tables::begin

  int64_t count() const { return on_device ? on_device.elements() : std::ssize(ids); }
  int64_t num_uses() const { return uses.empty() ? count() : std::ssize(uses); }
};

/// Everything that a table is made from.
struct TableSpec {
  TableConfig config;
  int64_t dim = 0;   // width of a whole row, and how it is updated: the config's, or the default
  int64_t rows = 0;  // of a static table; of a dynamic one at most
  ops::RowOptimizer optimizer = ops::RowOptimizer::kRowwiseAdagrad;
  double init_bound = 0;         // scale of initial values
  bool per_block_state = false;  // see TablesConfig
  OutOfRange out_of_range = OutOfRange::kError;
  TablePlacement placement;
  int ranks = 1, rank = 0;
  Device device;
  DType dtype = DType::kF32;
  uint64_t seed = 0;
  std::string spill_folder;  // of tables that lie in files
  /// Memory of a small table, for all rows_on_device(), zeroed; null: the table takes its own.
  void* weights = nullptr;
  void* state = nullptr;

  ops::RowInit init() const;
};

/// What a table that lies in device memory takes there on its rank, with as many rows as it may
/// ever have: bytes of weights and of optimizer state. Nothing of one that lies elsewhere.
struct RowBytes {
  int64_t weights = 0, state = 0;
};
RowBytes rows_on_device(const TableSpec& spec);

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

/// One batch's keys at their owner, each once and ascending, where the table is.
struct KeyBatch {
  Tensor keys;    // i64
  Tensor uses;    // i32, how often each is used; of tables that count them
  Tensor scores;  // i64, the largest of each key's uses; of tables that keep them, in training
  Mode mode = Mode::kTraining;
  int64_t time = 0;  // latest event time of the batch, seconds
};

/// What a batch holds of a table that resolves late and lies behind a cache, by key; -1: nothing.
struct HeldRows {
  HostArray<int64_t> rows;
  HostArray<int64_t> slots;  // pinned until release()
  Event sent;                // they have reached the device
};

/// What a cache tells about itself; counts and seconds are so far.
struct CacheStats {
  int64_t rows = 0, capacity = 0;  // now; without growing
  int64_t stored = 0;              // rows that have a place in the memory behind it
  int64_t hits = 0, misses = 0, evicted = 0;
  int64_t bytes_in = 0, bytes_out = 0;
  double stage_seconds = 0;  // host time that bringing rows took
  double stall_seconds = 0;  // part of it: waiting for the device
};

/// What tables of changing size tell about themselves, and those behind a cache.
struct TableStats {
  bool dynamic = false;            // it has the following
  int64_t rows = 0, capacity = 0;  // now; at most
  int64_t candidates = 0;
  int64_t inserted = 0, evicted = 0, expired = 0, refused = 0, growths = 0;  // so far
  std::optional<CacheStats> cache;
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
  /// Whether distinct ids are their own keys, on one rank, so that a GPU may find them before the
  /// host has looked at any: those that are rows, or any where slots are found late.
  virtual bool ids_are_keys() const { return false; }
  /// Whether the host need not see those keys either: they are slots, or slots are found late, and
  /// not by the host.
  virtual bool slots_are_keys() const { return resolves_late() && !resolves_on_host(); }

  /// Keys that this rank holds, each once and ascending, become slots in place. Evaluation gets -1
  /// for a row that there is not, which reads zeros; training always gets a slot. They stay valid
  /// until release().
  virtual void find_slots(std::span<int64_t> keys, Mode mode) = 0;

  /// Whether slots are found when a batch is used and not when it begins: by resolve(), after all
  /// batches before it, so that a batch that was begun and never used leaves no trace. find_slots()
  /// then does nothing.
  virtual bool resolves_late() const { return false; }
  /// Whether the host does that: it has the keys and uses of the batch.
  virtual bool resolves_on_host() const { return false; }
  /// When a batch of these keys begins that the host will resolve: rows that it will find, as
  /// things are now, may be brought close. `held` is what the batch holds from now on.
  virtual void look_ahead(std::span<const int64_t> keys, HeldRows& held);
  /// Whether it matters how often a batch uses a row.
  virtual bool counts_uses() const { return false; }
  /// Whether uses of training have scores: a row keeps the largest of its last batch.
  virtual bool keeps_scores() const { return false; }
  /// Slots (i64, where the tables are) of keys; -1: there is no row, which reads as
  /// missing_rows() says and is not updated.
  struct LateBatch;
  /// Of this table and others of its kind, each once: what is alike is done at once.
  virtual void resolve(const Exec& exec, std::span<const LateBatch> batches);
  /// How rows read that there are not: `init` and `mixed` of the op.
  virtual ops::MissingRows missing_rows() const { return {}; }

  /// Brings the rows of `slots`, as find_slots() gave them, to where resident() says, on
  /// `copy_stream`. True: something is on its way there.
  virtual bool stage(std::span<const int64_t> slots, const Stream& copy_stream);
  virtual Resident resident() const = 0;
  /// Nobody reads or updates `slots` (of a batch that the host resolves: those that it holds) for
  /// this batch any more once `last_use` has done what it was given so far; a batch of training may
  /// have updated them. Null: it was never used.
  virtual void release(std::span<const int64_t> slots, Mode mode, const Stream* last_use);

  /// The arrays that make up the table, to be saved; or all of them to be filled from a checkpoint,
  /// but for those of no fixed size, after which load() makes what was saved the table. Changes are
  /// rows by number ("row") or by key, and "removed": keys that were in the save before and are
  /// not in this one; what is small is there whole.
  virtual std::vector<TableArray> snapshot(Extent extent) = 0;
  virtual void load(const SavedArrays& saved) = 0;
  /// snapshot() in two parts, for a table that would be held up by it: copies what it needs on
  /// `stream`; the rest may be done on another thread. Absent: snapshot() is quick, or there is no
  /// memory for a copy.
  using Frozen = std::function<std::vector<TableArray>()>;
  virtual Frozen freeze(Extent /*extent*/, const Stream& /*stream*/) { return {}; }
  /// What snapshot() or freeze() has just shown was saved: changes count from here.
  virtual void mark_saved() = 0;
  /// Absent for tables of fixed size on the device. May wait for the device.
  virtual std::optional<TableStats> stats() const { return std::nullopt; }

  virtual int64_t bytes() const = 0;

 private:
  TableSpec spec_;
};

/// What resolve() is asked of one table.
struct Table::LateBatch {
  Table* table = nullptr;
  KeyBatch batch;
  Tensor slots;
  HeldRows* held = nullptr;  // where the host resolves
};

using MakeTable = std::function<std::unique_ptr<Table>(TableSpec spec)>;

/// The kind that config and placement ask for.
std::unique_ptr<Table> make_table(TableSpec spec);

}  // namespace segue::sparse
