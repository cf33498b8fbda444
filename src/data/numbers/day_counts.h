#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <span>
#include <vector>

#include "data/numbers/tally.h"
#include "data/store/event_store.h"
#include "data/store/index_file.h"

namespace segue::data {

/// The pool whose events count as successes: the label's, or the first where labels are the bits of
/// all pools.
size_t success_pool(const SampleSchema& schema);
/// Seconds until the outcome of an event is known.
int64_t outcome_wait(const SampleSchema& schema);
/// Days since 1970, UTC.
int64_t day_of(int64_t time);
/// The value of an item in map `attribute` of `maps`, which is the store without its segments; 0
/// for an item beyond it, as candidates have it.
int64_t attribute_of(const EventStore& maps, size_t attribute, int64_t item);
/// Says whether the values of items below `items_end` are those that an index was made from: every
/// byte of maps, which newer ones replace in a few places, but nothing of what is appended to them.
uint64_t fingerprint_of_maps(const EventStore& maps, int64_t items_end, uint64_t seed);
/// Compares columns, and that of successes, with their checksums (EventStore::require_intact).
void require_intact(const EventStore& piece, std::initializer_list<const char*> columns);

/// How counts are made and kept; tests lower it.
struct DayCountLimits {
  int64_t events_together = int64_t{1} << 25;                    // in memory, 8 bytes each
  int64_t ids_together = 1 << 12;                                // are not sorted apart
  int64_t narrow_events = std::numeric_limits<uint32_t>::max();  // that 4 bytes count
  int64_t places = int64_t{1} << 20;                             // by id, however few ids there are
};

/// How often all, an item or an attribute's value were tried and with success in the events of one
/// piece of a log, day by day: what any of them had at the start of a day, for all users together.
/// Events that may be predicted count (SampleSchema::anchor_kinds). Whole days, so that no order
/// between users is needed, and what a candidate sees does not depend on who came first that day.
/// An event counts on the day on which its outcome is known.
class DayCounts {
 public:
  /// counts.idx of the piece's index folder, made when it is missing or stale: one pass over the
  /// columns for each of them, more where they have more events than are sorted at a time.
  static DayCounts open_or_build(const EventStore& piece, const EventStore& maps,
                                 const DayCountLimits& limits = {});

  /// Who is counted: everyone (id 0), items, then the values of each attribute.
  enum Of : size_t { kAll, kItem, kFirstAttribute };
  /// On days before `day`.
  Tally before(size_t of, int64_t id, int64_t day) const;
  /// Behind the largest id that was tried, of those below `most`.
  int64_t end(size_t of, int64_t most = std::numeric_limits<int64_t>::max()) const;
  /// Days on which anything was tried, ascending.
  std::vector<int64_t> days() const;

  const IndexFile& file() const { return file_; }

 private:
  /// All of an id up to the end of a day on which there was something.
  template <class Day, class Count>
  struct CellOf {
    Day day = 0;
    Count positive = 0, all = 0;
  };
  using Cell = CellOf<int32_t, uint32_t>;
  using WideCell = CellOf<int64_t, uint64_t>;  // of a piece with more events than Cell counts
  class Builder;
  struct Counts {
    std::span<const int64_t> ids;      // ascending; none: all up to the largest one
    std::span<const int64_t> offsets;  // by id, or place in ids; one more at the end
    std::span<const Cell> cells;
    std::span<const WideCell> wide;  // instead
  };
  DayCounts(IndexFile file, size_t of, bool wide);

  IndexFile file_;
  std::vector<Counts> counts_;
};

}  // namespace segue::data
