#pragma once

#include <vector>

#include "tensor/exec.h"
#include "tensor/timed_event.h"

namespace segue::bench {

/// Times consecutive parts of work on one device: by events on a GPU, where work is only queued, by
/// the clock on the CPU.
class LapTimer {
 public:
  explicit LapTimer(const Exec& exec) : stream_(exec.stream) {}

  /// Between parts: n + 1 marks surround n of them.
  void mark();
  /// Waits for the work. Seconds of each part since the last call.
  std::vector<double> laps();

 private:
  const Stream* stream_;
  std::vector<TimedEvent> events_;
};

}  // namespace segue::bench
