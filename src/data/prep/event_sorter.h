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
};

/// Sorts any number of events in bounded memory: sorted runs on disk, then a merge. What fits into
/// one run never touches the disk.
class EventSorter {
 public:
  explicit EventSorter(EventSorterConfig config);
  ~EventSorter();

  /// Append events here, then call added(). The reference may change with every call of added().
  std::vector<Event>& buffer();
  void added();

  /// No more events: the number of runs.
  int64_t finish();
  /// Replaces `events` by the next ones in order; false at the end.
  bool next(std::vector<Event>& events);

 private:
  struct Slot;
  void spill();
  void merge_passes();
  int64_t fan_in() const;
  size_t buffer_bytes(size_t runs) const;

  EventSorterConfig config_;
  std::vector<std::unique_ptr<Slot>> slots_;
  size_t current_ = 0;
  std::vector<std::pair<size_t, size_t>> order_;  // of the runs: slot, run in it
  std::vector<EventRun> runs_;
  std::unique_ptr<RunMerger> merger_;
  std::vector<Event> rest_;  // all events, where one run held them
  size_t rest_done_ = 0;
};

}  // namespace segue::data
