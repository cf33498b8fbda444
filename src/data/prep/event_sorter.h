#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/prep/event_runs.h"

namespace segue::data {

struct EventSorterConfig {
  std::function<std::string(const std::string&)> scratch;  // name to path of a temporary file
  int64_t run_events = 1 << 22;                            // events of a run
  int buffers = 2;  // runs in memory: one is filled, the others are sorted and written
  int64_t merge_bytes = 256 << 20;  // all buffers of a merge together
  TieOrder ties = TieOrder::kFields;
  size_t numbers = 0;  // of an event
};

/// Sorts any number of events in bounded memory: sorted runs on disk, then a merge. What fits into
/// one run never touches the disk.
class EventSorter {
 public:
  explicit EventSorter(EventSorterConfig config);
  ~EventSorter();

  /// Append events here, their numbers to numbers(), then call added(). Both references may change
  /// with every call of added().
  std::vector<Event>& buffer();
  NumberArena& numbers();
  void added();

  /// No more events: the number of runs.
  int64_t finish();
  /// Replaces `block` by the next events in order; false at the end. Their numbers may be the
  /// sorter's own, which then must live longer.
  bool next(EventBlock& block);

 private:
  struct Slot;
  void spill();
  void merge_passes();
  int64_t fan_in() const;
  size_t buffer_bytes(size_t runs) const;
  int64_t cursor_overhead() const;

  EventSorterConfig config_;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t current_ = 0;
  std::vector<std::pair<size_t, size_t>> order_;  // of the runs: slot, run in it
  std::vector<EventRun> runs_;
  std::unique_ptr<RunMerger> merger_;
  EventBlock rest_;  // all events, where one run held them
  size_t rest_done_ = 0;
};

}  // namespace segue::data
