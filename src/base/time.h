#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace segue::base {

/// Seconds since construction or restart(), by the monotonic clock.
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  void restart() { start_ = std::chrono::steady_clock::now(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Milliseconds since 1970, UTC.
int64_t unix_time_ms();

/// "2026-01-31T23:59:59Z"; the argument counts seconds since 1970, UTC.
std::string iso_time(int64_t unix_seconds);
std::string iso_time_now();

}  // namespace segue::base
