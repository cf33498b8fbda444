#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <mutex>
#include <span>
#include <vector>

#include "ops/initialize.h"
#include "sparse/cache_index.h"
#include "sparse/row_mover.h"
#include "sparse/row_store.h"
#include "sparse/table.h"
#include "tensor/event.h"
#include "tensor/growing_buffer.h"
#include "tensor/host_array.h"

namespace segue::sparse {

struct RowCacheConfig {
  RowStoreConfig store;
  int64_t planned_rows = 0;  // in the cache, without growing
  CachePolicy policy = CachePolicy::kLru;
  DType dtype = DType::kF32;
  int64_t columns = 0, state_columns = 0;
  int64_t first_column = 0;  // of the whole row, for its initial values
  ops::RowInit init;
  std::function<int64_t(int64_t row)> number_of;  // that a row's initial values follow from
  /// Told of rows that a batch has trained; may be absent.
  std::function<void(std::span<const int64_t> rows)> on_trained;
};
/// What `spec` and its placement ask for, where this rank has up to `rows` rows.
RowCacheConfig row_cache_config(const TableSpec& spec, int64_t rows, ColumnBlock columns);

/// Rows 0, 1, ... in host memory, or in a file, behind a cache in device memory. A row that
/// training has not touched takes no memory: its initial values are made on the device when it is
/// used.
///
/// acquire() decides where the cache will have the rows of a batch, stage() brings them there and
/// takes those that were updated and have to go back. Weights and optimizer state of a row travel
/// together. What is read and written by whom is ordered by streams: stage() only touches slots
/// that no batch has pinned, after the last batch that used them.
///
/// One caller at a time; only release() may come from another thread.
class RowCache {
 public:
  explicit RowCache(RowCacheConfig config);

  /// Where stage() brings the rows of slots.
  Resident resident() const { return resident_; }

  /// Rows, each once, become slots in place, pinned until release(). Rows that will be trained get
  /// a place in the store before that: when memory or disk has none, nothing has happened yet.
  void acquire(std::span<int64_t> rows, Mode mode);
  /// The same for a batch that may hold some of its rows already: afterwards it holds `rows` (-1:
  /// none). Those of `is_new` (absent: none) now belong to something else than before; they begin
  /// with their initial values, whoever has them pinned and wherever the old ones are on their way.
  void acquire(std::span<const int64_t> rows, std::span<const uint8_t> is_new, Mode mode,
               HeldRows& held);
  /// Places for so many rows that have none yet.
  void reserve(int64_t more) { store_.reserve(more); }
  /// Everything that was acquired so far comes on `stream`.
  void stage(const Stream& stream);
  /// Of slots that a batch has pinned; negative ones are none. `wrote`: they may have been updated.
  /// Null: they were never used.
  void release(std::span<const int64_t> slots, bool wrote, const Stream* last_use);
  /// So that the cache knows of all releases so far.
  void take_releases();

  /// The store has all that was trained, and the host may read it.
  void flush(const Stream& stream);
  const RowStore& store() const { return store_; }
  RowMover& mover() { return mover_; }
  /// No row was ever touched. Batches in flight are left out.
  void clear();
  /// Places one after the other for rows that have none, to be filled by the caller: the first.
  int64_t add_stored(std::span<const int64_t> rows);

  CacheStats stats() const;
  int64_t bytes() const { return weight_memory_.bytes() + state_memory_.bytes(); }
  // For tests.
  void set_most_mapped(int64_t bytes) { store_.set_most_mapped(bytes); }
  void set_most_slots(int64_t slots) { most_slots_ = slots; }

 private:
  /// What one acquire() has left to do, in order.
  struct Pending {
    HostArray<CacheIndex::Change> changes;
    HostArray<int64_t> place, victim_place;  // in the store, per change; kNone: none
  };
  static constexpr size_t kEvents = 16;

  int64_t weight_bytes() const { return config_.store.weight_bytes; }
  int64_t state_bytes() const { return config_.store.state_bytes; }
  void make_room(int64_t slots);
  /// acquire() of rows; `pending_` has one more.
  void seat(std::span<int64_t> rows, Mode mode);
  /// Places of the rows that came and went.
  void note_places(Pending& now);
  /// Rows of `slots` that have no place get one.
  void add_places(std::span<const int64_t> slots, Pending& now);
  /// Rows of `slots`, which are pinned, begin with their initial values.
  void begin_again(std::span<const int64_t> slots, Pending& now);
  void hold_until_unused(int64_t release, const Stream& stream);
  void bring(const Pending& now, const Stream& stream);
  /// Everything that was asked for, so that pending_ is empty.
  void bring_all(const Stream& stream);

  RowCacheConfig config_;
  RowStore store_;
  CacheIndex index_;
  std::vector<int64_t> places_;    // in the store, of the row in each slot; kNone: none
  std::vector<uint8_t> is_fresh_;  // per slot, while begin_again() works
  GrowingBuffer weight_memory_, state_memory_;
  Resident resident_;
  std::deque<Pending> pending_;
  std::vector<Pending> spare_pending_;  // their memory
  Event staged_;                        // end of the last stage()
  RowMover mover_;
  double stage_seconds_ = 0;
  int64_t most_slots_ = std::numeric_limits<int64_t>::max();

  // Batches that are done with their slots wait here for the next acquire(), so that the thread
  // that computes never waits for the one that prepares.
  struct Release {
    HostArray<int64_t> slots;
    bool wrote = false;
    int64_t number = 0;
  };
  std::mutex release_mutex_;
  std::vector<Release> releases_, spare_;
  int64_t released_ = 0;               // number of the last one
  std::array<Event, kEvents> events_;  // of the last ones, by number
};

}  // namespace segue::sparse
