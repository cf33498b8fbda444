#include "bench/lap_timer.h"

namespace segue::bench {

void LapTimer::mark() {
  events_.emplace_back();
  events_.back().record(stream_);
}

std::vector<double> LapTimer::laps() {
  if (stream_ != nullptr) stream_->synchronize();
  std::vector<double> laps;
  for (size_t i = 1; i < events_.size(); ++i) {
    laps.push_back(events_[i].seconds_since(events_[i - 1]));
  }
  events_.clear();
  return laps;
}

}  // namespace segue::bench
