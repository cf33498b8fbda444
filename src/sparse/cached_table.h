#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sparse/cache_index.h"
#include "sparse/row_mover.h"
#include "sparse/row_store.h"
#include "sparse/row_table.h"
#include "tensor/buffer.h"
#include "tensor/event.h"
#include "tensor/growing_buffer.h"
#include "tensor/host_array.h"

namespace segue::sparse {

/// Rows in host memory, or in a file, behind a cache in device memory, with the numbers of a
/// StaticTable. A row that training has not touched takes no memory: its initial values are made on
/// the device when it is used.
///
/// find_slots() decides where the cache will have the rows of a batch, stage() brings them there
/// and takes those that were updated and have to go back. Weights and optimizer state of a row
/// travel together. What is read and written by whom is ordered by streams: stage() only touches
/// slots that no batch has pinned, after the last batch that used them.
class CachedTable final : public RowTable {
 public:
  explicit CachedTable(TableSpec spec);

  bool ids_are_keys() const override { return spec().ranks == 1; }
  void find_slots(std::span<int64_t> keys, Mode mode) override;
  bool stage(std::span<const int64_t> slots, const Stream& copy_stream) override;
  Resident resident() const override { return resident_; }
  void release(std::span<const int64_t> slots, Mode mode, const Stream* last_use) override;
  /// All rows of a table up to kDenseBytes; of larger ones those that were touched.
  std::vector<TableArray> snapshot(Extent extent) override;
  void mark_saved() override;
  void load(const SavedArrays& saved) override;
  std::optional<TableStats> stats() const override;
  int64_t bytes() const override;

  static constexpr int64_t kDenseBytes = int64_t{1} << 30;
  // For tests.
  void set_dense_bytes(int64_t bytes) { dense_bytes_ = bytes; }
  void set_most_mapped(int64_t bytes) { store_.set_most_mapped(bytes); }

 private:
  /// What one find_slots() has left to do, in order.
  struct Pending {
    HostArray<CacheIndex::Change> changes;
    HostArray<int64_t> place, victim_place;  // in the store, per change; kNone: none
  };
  static constexpr size_t kEvents = 16;

  RowStoreConfig store_config() const;
  int64_t planned_rows() const;
  int64_t weight_bytes() const { return columns() * size_of(spec().dtype); }
  int64_t state_bytes() const { return state_columns() * size_of(spec().dtype); }
  void make_room(int64_t slots);
  void take_releases();
  void hold_until_unused(int64_t release, const Stream& stream);

  /// Places of the rows that came and went.
  void note_places(Pending& now);
  /// Rows of `slots` that have no place get one.
  void add_places(std::span<const int64_t> slots, Pending& now);
  void bring(const Pending& now, const Stream& stream);
  /// Everything that was asked for, so that pending_ is empty.
  void bring_all(const Stream& stream);
  /// The store is as the cache is.
  void flush(const Stream& stream);
  std::vector<TableArray> dense_snapshot(const Stream& stream);
  /// Of rows that the store has, by their numbers on this rank.
  std::vector<TableArray> sparse_snapshot(std::vector<int64_t> local);

  // Of everything but releases.
  mutable std::mutex mutex_;
  RowStore store_;
  CacheIndex index_;
  std::vector<int64_t> places_;  // in the store, of the row in each slot; kNone: none
  GrowingBuffer weight_memory_, state_memory_;
  Resident resident_;
  std::deque<Pending> pending_;
  std::vector<Pending> spare_pending_;  // their memory
  Event staged_;                        // end of the last stage()
  RowMover mover_;
  double stage_seconds_ = 0;

  // Batches that are done with their slots wait here for the next find_slots(), so that the thread
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

  // What snapshot() shows, until training goes on.
  std::vector<int64_t> saved_rows_, saved_order_;
  Buffer dense_weights_, dense_state_;
  int64_t dense_bytes_ = kDenseBytes;
};

}  // namespace segue::sparse
