#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "sparse/row_cache.h"
#include "sparse/row_table.h"
#include "tensor/buffer.h"

namespace segue::sparse {

/// Rows in host memory, or in a file, behind a cache in device memory (RowCache), with the numbers
/// of a StaticTable.
class CachedTable final : public RowTable {
 public:
  explicit CachedTable(TableSpec spec);

  bool ids_are_keys() const override { return spec().ranks == 1; }
  void find_slots(std::span<int64_t> keys, Mode mode) override;
  bool stage(std::span<const int64_t> slots, const Stream& copy_stream) override;
  Resident resident() const override { return cache_.resident(); }
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
  void set_most_mapped(int64_t bytes) { cache_.set_most_mapped(bytes); }

 private:
  RowCacheConfig cache_config();
  int64_t weight_bytes() const { return columns() * size_of(spec().dtype); }
  int64_t state_bytes() const { return state_columns() * size_of(spec().dtype); }
  std::vector<TableArray> dense_snapshot(const Stream& stream);
  /// Of rows that the store has, by their numbers on this rank.
  std::vector<TableArray> sparse_snapshot(std::vector<int64_t> local);

  mutable std::mutex mutex_;  // of the cache, and of what RowTable knows of changes
  RowCache cache_;

  // What snapshot() shows, until training goes on.
  std::vector<int64_t> saved_rows_, saved_order_;
  Buffer dense_weights_, dense_state_;
  int64_t dense_bytes_ = kDenseBytes;
};

}  // namespace segue::sparse
