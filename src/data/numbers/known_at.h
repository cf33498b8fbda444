#pragma once

#include <cstdint>
#include <limits>

namespace segue::data {

inline constexpr int64_t kSecondsPerDay = 86400, kSecondsPerHour = 3600;

/// When the outcome of an event is known that takes `wait` seconds. Times of a store may be any
/// number: what would be known beyond all of them is known at the last one.
inline int64_t known_at(int64_t time, int64_t wait) {
  int64_t known = 0;
  return __builtin_add_overflow(time, wait, &known) ? std::numeric_limits<int64_t>::max() : known;
}

/// From an earlier time to a later one; at most what a number holds.
inline int64_t seconds_between(int64_t earlier, int64_t later) {
  int64_t seconds = 0;
  return __builtin_sub_overflow(later, earlier, &seconds) ? std::numeric_limits<int64_t>::max()
                                                          : seconds;
}

}  // namespace segue::data
