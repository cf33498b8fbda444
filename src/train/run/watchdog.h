#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace segue::train {

/// Says where each thread is when nothing has moved for a while: once, then after twice the time,
/// and so on until alive() is called again. It only speaks; ending the run is for a person to
/// decide.
class Watchdog {
 public:
  /// 0 seconds: never. `say` gets the report; by default it is logged as a warning.
  explicit Watchdog(double seconds, std::function<void(const std::string&)> say = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void alive();

 private:
  void watch();

  double seconds_ = 0;
  std::function<void(const std::string&)> say_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  double patience_ = 0;  // seconds since last_ after which to speak
  bool stop_ = false;
  std::thread thread_;
};

/// "main: step > tokens forward for 12.0 s", one line per thread.
std::string describe_threads();

}  // namespace segue::train
