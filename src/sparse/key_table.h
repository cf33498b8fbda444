#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "sparse/hash_index.h"
#include "sparse/table.h"
#include "tensor/buffer.h"

namespace segue::sparse {

/// A row for every id that training has met, of any 64 bits, up to a limit; then some are forgotten
/// for others. Ranks share mixed ids by the index's shards, which do not depend on ranks. Rows are
/// found when a batch is used. Evaluation, and training where an id is not admitted (yet), read the
/// id's initial row and leave the table as it is. Where rows lie is left to the kinds of it.
class KeyTable : public Table {
 public:
  int64_t check(const Lookup& lookup) const override;
  void make_keys(std::span<const int64_t> ids, int64_t* keys) const override;
  bool has_negative_keys() const override { return true; }
  Share share_of(int rank) const override;
  bool ids_are_keys() const override { return !mixes_early() && !counts_uses() && !keeps_scores(); }
  void find_slots(std::span<int64_t> keys, Mode mode) override;
  bool resolves_late() const override { return true; }
  bool counts_uses() const override;
  bool keeps_scores() const override { return spec().config.evict == Evict::kScore; }
  ops::MissingRows missing_rows() const override;
  /// Saved are "weight", "state", "key" and "stamp" of the rows in the order of keys; "candidate":
  /// keys that wait; "buckets" of the index's shards; "clock" and "totals": what was counted; of
  /// changes also "removed". What a static table has saved can be loaded, too.
  void mark_saved() override { marked_ = shown_; }
  void load(const SavedArrays& saved) override;
  std::optional<TableStats> stats() const override;

  /// Rows that a table of this spec may have on its rank.
  static int64_t most_rows_of(const TableSpec& spec);

 protected:
  /// Where the index lies: with the ops, or on the host.
  enum class IndexAt { kDevice, kHost };
  KeyTable(TableSpec spec, IndexAt index_at);

  /// Several ranks find owners by mixed keys. One has its rows in the order of ids, as a static
  /// table has: sums over them then have the same bits.
  bool mixes_early() const { return spec().ranks > 1; }
  int64_t state_columns() const { return ops::row_state_size(spec().optimizer, spec().dim); }
  HashIndex* index() const { return index_.get(); }  // null: this rank has no shards
  int64_t most_rows() const { return most_rows_; }   // of this rank
  int64_t clock() const { return clock_; }           // batches trained
  /// Before a batch is resolved.
  void count_batch(Mode mode);
  /// Rows 0 ... rows - 1.
  Resident rows_at(void* weights, void* state, int64_t rows, Device device) const;

  /// Row i of this table, of key keys[i], is row places[i] of the saved ones; there are no others.
  virtual void load_rows(const SavedArrays& saved, std::span<const int64_t> places,
                         std::span<const int64_t> keys) = 0;
  void read_rows(const SavedArrays& saved, std::span<const int64_t> places,
                 const Resident& to) const;

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
  /// Everything but the entries of the index.
  std::shared_ptr<Saved> begin_snapshot(Extent extent);
  /// Adds the entries. `order` then has the rows that are saved.
  void add_entries(Saved& saved, const HashIndex::Entries& entries) const;
  /// Row i of the arrays lies at order[i] of `rows`.
  std::vector<TableArray> arrays_of(Saved& saved, const Resident& rows) const;
  /// What snapshot() shows until the next batch.
  void show(std::shared_ptr<Saved> saved) { saved_ = std::move(saved); }

 private:
  /// First and one past the last.
  std::pair<int64_t, int64_t> shards_of(int rank) const;
  /// Keys of this rank among `keys` become entries; where each was, by its place among them.
  std::vector<int64_t> load_entries(const SavedArrays& saved, HashIndex::Entries& entries) const;
  void load_totals(const SavedArrays& saved);

  int64_t num_shards_ = 1, most_rows_ = 0;
  std::unique_ptr<HashIndex> index_;
  int64_t clock_ = 0;
  TableStats before_;             // what was counted before the checkpoint that was loaded
  std::shared_ptr<Saved> saved_;  // what snapshot() shows
  std::shared_ptr<Mark> shown_, marked_;
};

}  // namespace segue::sparse
