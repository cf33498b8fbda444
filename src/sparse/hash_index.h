#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "tensor/device.h"
#include "tensor/tensor.h"

namespace segue::sparse {

/// What a full bucket forgets first; equal ones in the order of keys.
///   kLru    used longest ago, in steps
///   kLfu    used least often, then as kLru
///   kAge    added first, by event time
///   kScore  lowest score that batches gave, then as kLru
enum class Evict { kLru, kLfu, kAge, kScore };

struct HashIndexConfig {
  int64_t max_rows = 0;    // rounded up to whole buckets, as many in every shard
  int64_t start_rows = 0;  // likewise; 0: max_rows
  Evict evict = Evict::kLru;
  int64_t admit_after = 1;  // uses before a key gets a row
  double admit_share = 1;   // chance of a use to admit its key
  int64_t ttl_seconds = 0;  // rows that were not used for longer, by event time, go; 0: none does
  uint64_t seed = 0;        // of admission by share
  int64_t first_shard = 0, end_shard = -1;  // those kept here; -1: all of them
};

/// One to one, so that every id is legal; keys are ordered as signed numbers.
int64_t key_of_id(int64_t id);
int64_t id_of_key(int64_t key);

/// Keys are cut by their leading bits into shards, whose number follows from max_rows (and
/// admission) alone and not from ranks; each grows and forgets on its own.
int64_t num_shards(const HashIndexConfig& config);
int64_t shard_of_key(int64_t key, int64_t shards);

/// Keys to rows, where rows are numbers 0, 1, ... that stay with a key until it is forgotten. What
/// it holds after any sequence of calls (hash_index_rules.h says what) is a function of those calls
/// alone, the same on CPU and GPU and however shards are shared out; only the numbers of rows are
/// its own affair.
class HashIndex {
 public:
  /// One batch of training: keys ascending, each once. On the index's device; ordered on `stream`.
  struct Batch {
    Tensor keys;       // i64 [n]
    Tensor uses;       // i32 [n], at least 1 each; absent: 1 each
    Tensor scores;     // i64 [n]; kScore
    int64_t step = 0;  // never less than in the batch before
    int64_t time = 0;  // event time, seconds
  };
  /// What became of it, on the index's device.
  struct Found {
    Tensor rows;    // i64 [n]: its row; -1: not admitted (yet), or no room for it
    Tensor is_new;  // u8 [n]: 1 where the row must be given initial values
  };
  struct Counts {
    int64_t rows = 0, capacity = 0, slots = 0;  // now; capacity and slots at this size
    int64_t candidates = 0;                     // keys that wait for admission, now
    // Since it was made or loaded. Rows given, evicted, expired; keys that got none for want of
    // room; how often a shard grew.
    int64_t inserted = 0, evicted = 0, expired = 0, refused = 0, growths = 0;
  };
  /// Everything that is saved, ascending by key; on the host.
  struct Entries {
    std::vector<int64_t> keys, rows;  // row -1: a candidate
    std::vector<int64_t> steps;       // of the last use
    std::vector<int64_t> scores;      // uses (kLfu, candidates), time of adding, or score
    std::vector<int64_t> times;       // of the last use; empty without ttl
    std::vector<int64_t> buckets;     // [shards kept here] their sizes
  };

  virtual ~HashIndex() = default;
  virtual const HashIndexConfig& config() const = 0;
  virtual void find_or_insert(const Batch& batch, const Found& found, const Stream& stream) = 0;
  /// Changes nothing: -1 for a key without a row. Keys in any order.
  virtual void find(const Tensor& keys, const Tensor& rows, const Stream& stream) const = 0;
  /// Rows 0 ... this - 1 may be in use after a batch: room for them is needed.
  virtual int64_t rows_in_use() const = 0;
  virtual Counts counts() const = 0;
  virtual Entries entries() const = 0;
  /// entries() of now, to be taken later, on any thread: what it needs is copied on `stream`.
  virtual std::function<Entries()> freeze(const Stream& /*stream*/) const {
    return [held = entries()] { return held; };
  }
  /// Takes the place of everything in it; rows are numbered anew, in the order of keys, and
  /// `entries.rows` is read only for -1 or not. `buckets` is used where it fits this config,
  /// otherwise shards grow as needed. Without admission candidates are left out. Error(kConfig)
  /// where the entries do not fit or lack what this config needs, Error(kCorrupt) where they are
  /// not ascending or of other shards.
  virtual void load(const Entries& entries) = 0;
  virtual int64_t bytes() const = 0;
};

/// What one index of several is asked.
struct IndexRequest {
  HashIndex* index = nullptr;
  HashIndex::Batch batch;
  HashIndex::Found found;
};
/// find_or_insert of indices on one device: on a GPU they share its launches, and the wait while
/// one of them is below its largest size.
void find_or_insert(std::span<const IndexRequest> requests, const Stream& stream);

std::unique_ptr<HashIndex> make_hash_index(const HashIndexConfig& config, Device device);

}  // namespace segue::sparse
