#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "sparse/hash_index.h"
#include "sparse/mixed_order.h"
#include "sparse/table.h"
#include "tensor/buffer.h"
#include "tensor/event.h"
#include "tensor/growing_buffer.h"

namespace segue::sparse {

/// A row for every id that training has met, of any 64 bits, up to a limit; then some are forgotten
/// for others. Ranks share mixed ids by the index's shards, which do not depend on ranks. Rows are
/// found when a batch is used. Evaluation, and training where an id is not admitted (yet), read the
/// id's initial row and leave the table as it is.
class DynamicTable final : public Table {
 public:
  explicit DynamicTable(TableSpec spec);

  int64_t check(const Lookup& lookup) const override;
  void make_keys(std::span<const int64_t> ids, int64_t* keys) const override;
  bool has_negative_keys() const override { return true; }
  Share share_of(int rank) const override;
  bool ids_are_keys() const override { return !mixes_early() && !counts_uses(); }
  void find_slots(std::span<int64_t> keys, Mode mode) override;
  bool resolves_late() const override { return true; }
  bool counts_uses() const override;
  void resolve(const Exec& exec, std::span<const LateBatch> batches) override;
  ops::MissingRows missing_rows() const override;
  Resident resident() const override;
  void release(std::span<const int64_t> slots, Mode mode, const Stream* last_use) override;
  /// "weight", "state", "key" and "stamp" of the rows in the order of keys; "candidate": keys that
  /// wait; "buckets" of the index's shards; "clock" and "totals": what was counted; of changes also
  /// "removed". What a static table has saved can be loaded, too.
  std::vector<TableArray> snapshot(Extent extent) override;
  Frozen freeze(Extent extent, const Stream& stream) override;
  void mark_saved() override { marked_ = shown_; }
  void load(const SavedArrays& saved) override;
  std::optional<TableStats> stats() const override;
  int64_t bytes() const override;

 private:
  /// Of resolve(): at most MixedOrder::kMostLists batches that have keys.
  void find_rows(const Exec& exec, std::span<const LateBatch> batches);
  void find_or_add_rows(const Exec& exec, std::span<const LateBatch> batches);
  /// Several ranks find owners by mixed keys. One has its rows in the order of ids, as a static
  /// table has: sums over them then have the same bits.
  bool mixes_early() const { return spec().ranks > 1; }
  HashIndexConfig index_config() const;
  /// First and one past the last.
  std::pair<int64_t, int64_t> shards_of(int rank) const;
  /// Room for rows 0 ... rows - 1.
  void make_room(int64_t rows);
  int64_t state_columns() const;
  /// The table of rows at `weights` and `state`.
  Resident rows_at(void* weights, void* state, int64_t rows) const;

  /// Where changes count from.
  struct Mark {
    int64_t clock = 0;
    std::vector<int64_t> keys;  // of all rows then, ascending
  };
  /// What a snapshot shows; it owns it all but for rows of the table itself.
  struct Saved {
    Extent extent = Extent::kAll;
    std::shared_ptr<Mark> now;
    std::shared_ptr<const Mark> before;  // of changes
    std::vector<int64_t> order, keys, stamps, candidates, removed, buckets, totals, clock;
    Buffer rows;  // a copy of them, or nothing
  };
  std::shared_ptr<Saved> begin_snapshot(Extent extent);
  std::vector<TableArray> arrays_of(Saved& saved, const HashIndex::Entries& entries,
                                    const Resident& rows) const;
  /// Keys of this rank among `keys` become entries; where each was, by its place among them.
  std::vector<int64_t> load_entries(const SavedArrays& saved, HashIndex::Entries& entries) const;
  void load_totals(const SavedArrays& saved);
  void load_rows(const SavedArrays& saved, const std::vector<int64_t>& places);

  int64_t num_shards_ = 1;
  std::unique_ptr<HashIndex> index_;  // absent: this rank has no shards
  GrowingBuffer weight_memory_, state_memory_;
  MixedOrder order_;              // of resolve(), where this table is the first
  int64_t clock_ = 0;             // batches trained
  TableStats before_;             // what was counted before the checkpoint that was loaded
  Event updated_;                 // behind the last use that was released
  std::shared_ptr<Saved> saved_;  // what snapshot() shows
  std::shared_ptr<Mark> shown_, marked_;
};

}  // namespace segue::sparse
