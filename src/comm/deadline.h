#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "comm/link/link.h"

namespace segue::comm {

inline Clock::time_point after(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// Exit code of a process that ends because of another rank.
inline constexpr int kPeerExitCode = 9;

/// For a call that waits for other ranks, or for a file system, and has no deadline of its own:
/// while this lives, a thread watches, and when the time is over it says which rank waited for what
/// and ends the process with kPeerExitCode. Nothing softer is possible: the call does not come back
/// and nothing can be thrown into it.
///
///     const CallDeadline deadline("MPI_Init_thread", rank, config.timeout_seconds);
///
/// Only the time in which this process could run counts: one that was itself stopped (SIGSTOP, a
/// debugger) and goes on still has what was left of it.
class CallDeadline {
 public:
  /// `expired` takes the message instead and the process goes on: for tests.
  CallDeadline(std::string call, int rank, double seconds,
               std::function<void(const std::string&)> expired = {});
  ~CallDeadline();
  CallDeadline(const CallDeadline&) = delete;
  CallDeadline& operator=(const CallDeadline&) = delete;

 private:
  void watch();

  std::string call_;
  int rank_ = 0;
  double seconds_ = 0;
  std::function<void(const std::string&)> expired_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace segue::comm
