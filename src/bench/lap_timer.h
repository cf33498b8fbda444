#pragma once

#include <memory>
#include <vector>

#include "tensor/exec.h"

namespace segue::bench {

/// Times consecutive parts of work on one device: by events on a GPU, where work is only queued, by
/// the clock on the CPU.
class LapTimer {
 public:
  explicit LapTimer(const Exec& exec);
  ~LapTimer();
  LapTimer(const LapTimer&) = delete;
  LapTimer& operator=(const LapTimer&) = delete;

  /// Between parts: n + 1 marks surround n of them.
  void mark();
  /// Waits for the work. Seconds of each part since the last call.
  std::vector<double> laps();

 private:
  struct Marks;
  std::unique_ptr<Marks> marks_;
};

}  // namespace segue::bench
