#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <vector>

#include "data/log/later_labels.h"

namespace segue::data {

/// Whether the later labels of a store follow from its events. An event that made a label true may
/// lie behind the end of the store, so labels of its last events may be true without one.
class LaterCheck {
 public:
  explicit LaterCheck(const LogSchema& schema);

  /// Events in the order of the store, with the outcomes that it says. Returns the number of the
  /// first one that is found wrong, -1 as long as there is none.
  int64_t add(const Event& event);
  /// The same at the end, given the newest time of all events.
  int64_t finish(int64_t last_time);

 private:
  struct Rule {
    uint64_t kinds = 0;
    int64_t within = 0;
  };
  void compare();

  std::vector<Rule> rules_;
  LaterLabels labels_;
  std::deque<uint8_t> stored_;
  std::vector<Event> decided_;
  int64_t position_ = 0, wrong_ = -1;
  /// The event without a cause in the store that needs the earliest one behind it, and when.
  int64_t earliest_ = -1, earliest_time_ = std::numeric_limits<int64_t>::max();
};

}  // namespace segue::data
