#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sparse/key_table.h"
#include "sparse/mixed_order.h"
#include "sparse/row_cache.h"
#include "tensor/host_array.h"

namespace segue::sparse {

/// Rows in host memory, or in a file, behind a cache in device memory (RowCache); the index on the
/// host. It has the ids, stamps and rows of a DynamicTable, bit for bit.
///
/// What a batch that begins will find, as things are then, is brought into the cache and pinned.
/// That is a hint: the batch gets its rows when it is used, after all batches before it, when some
/// of those may have been forgotten and their numbers given to others.
class CachedDynamicTable final : public KeyTable {
 public:
  explicit CachedDynamicTable(TableSpec spec);

  bool resolves_on_host() const override { return true; }
  void look_ahead(std::span<const int64_t> keys, HeldRows& held) override;
  bool stage(std::span<const int64_t> slots, const Stream& copy_stream) override;
  void resolve(const Exec& exec, std::span<const LateBatch> batches) override;
  Resident resident() const override { return cache_.resident(); }
  void release(std::span<const int64_t> slots, Mode mode, const Stream* last_use) override;
  std::vector<TableArray> snapshot(Extent extent) override;
  void load(const SavedArrays& saved) override;
  std::optional<TableStats> stats() const override;
  int64_t bytes() const override;

  // For tests.
  void set_most_mapped(int64_t bytes) { cache_.set_most_mapped(bytes); }
  void set_most_slots(int64_t slots) { cache_.set_most_slots(slots); }

 private:
  RowCacheConfig cache_config();
  /// The two parts of resolve(): the batch holds its rows; they, and where they are, reach the
  /// device.
  void hold_rows(const KeyBatch& batch, HeldRows& held);
  void send_slots(const LateBatch& late, const Stream& stream);
  /// rows_ of keys, in their order.
  void find_rows(std::span<const int64_t> keys);
  /// The same, and is_new_; ids_ of rows that are.
  void find_or_add_rows(const KeyBatch& batch);
  /// Error(kOutOfMemory) from when the cache could not hold a batch on: the index knows its ids,
  /// whose rows were never begun, so that nothing may be read or saved any more.
  void require_whole() const;
  /// Where there is no room for rows that may begin, nothing has happened yet.
  void reserve_places(std::span<const int64_t> keys);
  void load_rows(const SavedArrays& saved, std::span<const int64_t> places,
                 std::span<const int64_t> keys) override;

  mutable std::mutex mutex_;  // of the index, the cache and the following
  RowCache cache_;
  std::vector<int64_t> ids_;  // of rows
  bool whole_ = true;         // until the cache cannot hold a batch that the index has taken
  // Of one call.
  MixedOrder order_;
  HostArray<int64_t> mixed_, rows_;
  HostArray<uint8_t> is_new_;
  std::vector<uint8_t> is_new_row_;
};

}  // namespace segue::sparse
