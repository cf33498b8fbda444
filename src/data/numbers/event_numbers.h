#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/numbers/day_counts.h"
#include "data/numbers/user_counts.h"
#include "data/store/event_log.h"

namespace segue::data {

inline constexpr const char* kNumbersFile = "numbers.idx";

/// Numeric features of the events of a log, each from strictly earlier events: of the same user
/// those of earlier times, of everyone those of earlier days. They lie in numbers.idx of every
/// piece's index folder, 4 bytes for each name and event, and are made when they are missing or
/// stale. A segment continues the counts of the pieces before it, so samples of a store with
/// segments are those of one prep. The store must live longer.
class EventNumbers {
 public:
  explicit EventNumbers(const EventLog& log);

  /// Of an event, in the order of count_names().
  std::span<const float> of_event(size_t piece, int64_t position) const {
    return pieces_[piece].rows.subspan(static_cast<size_t>(position) * width_, width_);
  }
  /// A user at a time, whose events before it were gone through.
  struct AskedUser {
    int64_t user = 0, time = 0;
    std::optional<UserCounts> counts;  // none: nobody was asked about yet
  };
  /// Of a candidate that no event proposes, as an event of that time would have them. Goes through
  /// the user's events before it, unless those of `asked` are the same.
  void of_candidate(AskedUser& asked, int64_t user, CountedEvent candidate,
                    std::span<float> out) const;

  size_t width() const { return width_; }
  /// What was opened of a piece, for those who verify it.
  std::vector<const IndexFile*> files(size_t piece) const {
    return {&days_[piece].file(), &groups_[piece].file(), &pieces_[piece].file};
  }

 private:
  struct Piece {
    IndexFile file;
    std::span<const float> rows;  // [events, names]
  };
  uint64_t with_columns(const EventStore& piece, uint64_t key) const;
  void build(size_t piece, const std::string& path, uint64_t key) const;
  CountedEvent event_at(size_t piece, int64_t position) const;
  void set_attributes(CountedEvent& event) const;
  /// Adds the user's events of pieces before `piece`, and of that one those before `end` in time.
  void replay(int64_t user, size_t piece, int64_t end, UserCounts& counts) const;
  EveryonesCounts everyone(const CountedEvent& event, size_t piece) const;

  const EventLog& log_;
  const SampleSchema& schema_;
  size_t success_, width_;
  std::vector<DayCounts> days_;
  std::vector<ValueGroups> groups_;
  std::vector<Piece> pieces_;
};

}  // namespace segue::data
