#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sparse/table.h"
#include "tensor/host_array.h"

namespace segue::sparse {

/// Which rows a cache holds, and in which slots. Rows lie in sets of kWays by a hash of the row; a
/// way that a batch uses is pinned until that batch gives it back, however many batches are out.
/// Rows that find all ways of their set pinned go to slots beyond the sets, of which there are as
/// many as were ever needed at once. It decides where rows are, never what is in them. Sets have
/// nothing to do with each other, so threads share them out; what comes out does not depend on how
/// many there are. One caller at a time.
class CacheIndex {
 public:
  static constexpr int64_t kWays = 32;

  /// Room for at least `rows` rows in sets.
  CacheIndex(int64_t rows, CachePolicy policy);

  /// A slot that has got another row.
  struct Change {
    int64_t row = 0, slot = 0;
    int64_t victim = -1;        // the row that was there; -1: none
    bool victim_dirty = false;  // and it was written since it came
    int64_t last_use = 0;       // number of the last release() of the slot; 0: none
  };
  /// Rows, each once, become slots in place, and are pinned; `changes` are those of this call.
  /// Before there are more slots than ever, make_room(slots) is called. What it throws goes on;
  /// then nothing is pinned, and the changes so far stand.
  void acquire(std::span<int64_t> rows, const std::function<void(int64_t slots)>& make_room,
               HostArray<Change>& changes);
  /// Slots that one acquire() gave. `number`: that of the release, rising; 0: they were not used.
  void release(std::span<const int64_t> slots, bool wrote, int64_t number);

  int64_t set_slots() const { return num_sets_ * kWays; }
  int64_t slots() const { return static_cast<int64_t>(rows_.size()); }
  int64_t rows_held() const { return held_; }
  int64_t row_at(int64_t slot) const { return rows_[static_cast<size_t>(slot)]; }  // -1: none
  bool dirty(int64_t slot) const { return dirty_[static_cast<size_t>(slot)] != 0; }
  void set_dirty(int64_t slot) { dirty_[static_cast<size_t>(slot)] = 1; }
  void set_clean(int64_t slot) { dirty_[static_cast<size_t>(slot)] = 0; }
  /// As in Change.
  int64_t last_use(int64_t slot) const { return last_use_[static_cast<size_t>(slot)]; }
  bool pinned(int64_t slot) const { return pins_[static_cast<size_t>(slot)] > 0; }

  /// So far; of rows.
  int64_t hits() const { return hits_; }
  int64_t misses() const { return misses_; }
  int64_t evicted() const { return evicted_; }

 private:
  static constexpr int64_t kNone = -1;
  /// Neighbouring sets, which one thread looks after, and rows of a batch that belong there.
  struct Part {
    int64_t first = 0, count = 0;     // of order_
    int64_t changes = 0, filled = 0;  // slots that got a row; that had none
    std::vector<int32_t> missing;
    std::vector<int32_t> outside;  // found beyond the sets, or to be put there
  };
  static constexpr int64_t kParts = 64;

  int64_t set_of(int64_t row) const;
  /// Rows of a batch by the part of the sets that they belong to, otherwise in their order.
  void share_out(std::span<const int64_t> rows);
  /// Finds the rows of a part, and slots in its sets for those that are not there.
  void seat(std::span<const int64_t> rows, Part& part, Change* changes);
  /// What this leaves: rows beyond the sets, and then, in their order, those that go there.
  void seat_outside(std::span<const int64_t> rows,
                    const std::function<void(int64_t slots)>& make_room,
                    HostArray<Change>& changes);
  int64_t find_in_set(int64_t set, int64_t row) const;  // kNone: not there
  /// The way of a set that is given up first; kNone: all are pinned.
  int64_t victim_in_set(int64_t set) const;
  Change give(int64_t slot, int64_t row);
  int64_t slot_beyond(const std::function<void(int64_t slots)>& make_room);
  void pin(int64_t slot);
  void unpin(int64_t slot);
  bool beyond(int64_t slot) const { return slot >= set_slots(); }
  void age();

  CachePolicy policy_;
  int64_t num_sets_ = 1;
  int part_shift_ = 0;  // a part has 2^this sets
  uint32_t clock_ = 0;  // batches
  int64_t held_ = 0, hits_ = 0, misses_ = 0, evicted_ = 0;
  // By slot.
  std::vector<int64_t> rows_;
  std::vector<uint32_t> stamps_, counts_;  // last batch; batches, halved now and then
  std::vector<int32_t> pins_;
  std::vector<int64_t> last_use_;
  std::vector<uint8_t> dirty_;
  // Beyond the sets: where rows are, and slots that nobody has pinned, oldest first.
  std::unordered_map<int64_t, int64_t> beyond_;
  std::set<std::pair<uint32_t, int64_t>> unpinned_;  // stamp, slot

  // Of one acquire().
  HostArray<int64_t> found_;   // slots, by row of the batch
  HostArray<int32_t> order_;   // rows of the batch, by part
  HostArray<uint32_t> sets_;   // by row of the batch
  HostArray<int32_t> starts_;  // in order_, per piece of the batch and part
  std::array<Part, kParts> parts_;
};

}  // namespace segue::sparse
