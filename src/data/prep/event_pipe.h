#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "data/log/later_labels.h"
#include "data/log/log_split.h"
#include "data/prep/duplicates.h"

namespace segue::data {

/// What happens to all events of a log, in the order of a store, before they are split.
class EventPipe {
 public:
  /// Labels that wait for later events hold at most `most_waiting`, and so do ties.
  EventPipe(const LogSchema& schema, const LogSplit& split, TieOrder ties, int64_t most_waiting,
            SplitSink& sink)
      : split_(split),
        duplicates_(schema.duplicates, ties, most_waiting),
        labels_(schema, most_waiting),
        sink_(sink) {}

  void add(std::span<const Event> events) {
    events_.clear();
    for (const Event& e : events) {
      if (split_.needs(e)) events_.push_back(e);
    }
    duplicates_.filter(events_);
    if (labels_.empty()) return sink_.add(events_);
    decided_.clear();
    labels_.add(events_, decided_);
    sink_.add(decided_);
  }
  void finish() {
    decided_.clear();
    labels_.finish(decided_);
    sink_.add(decided_);
  }
  int64_t duplicates() const { return duplicates_.found(); }

 private:
  LogSplit split_;
  DuplicateFilter duplicates_;
  LaterLabels labels_;
  SplitSink& sink_;
  std::vector<Event> events_, decided_;
};

}  // namespace segue::data
