#include "comm/deadline.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "base/log.h"

namespace segue::comm {
namespace {

using Seconds = std::chrono::duration<double>;

/// Says it and ends the process, a moment later: mpirun kills all ranks when the first one ends,
/// before all could say why.
[[noreturn]] void end_process(const std::string& message) {
  base::log_error(message);
  std::this_thread::sleep_for(std::chrono::seconds(2));
  std::_Exit(kPeerExitCode);
}

}  // namespace

CallDeadline::CallDeadline(std::string call, int rank, double seconds,
                           std::function<void(const std::string&)> expired)
    : call_(std::move(call)), rank_(rank), seconds_(seconds), expired_(std::move(expired)) {
  if (!expired_) expired_ = end_process;
  // Signals are for the threads that know what to do with them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error& error) {  // destructors use this, too
    base::log_warning(fmt::format("no thread can watch over {}: {}", call_, error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

CallDeadline::~CallDeadline() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CallDeadline::watch() {
  // Time is counted in slices. One that took much longer than it should was not this process's: it
  // was stopped meanwhile, and others may have answered.
  constexpr Seconds kSlice{0.1}, kLongest{0.5};
  Seconds waited{0};
  auto last = Clock::now();
  std::unique_lock lock(mutex_);
  while (waited.count() < seconds_) {
    const Seconds slice = std::min(kSlice, Seconds(seconds_) - waited);
    if (wake_.wait_for(lock, slice, [this] { return done_; })) return;
    const auto now = Clock::now();
    waited += std::min<Seconds>(now - last, kLongest);
    last = now;
  }
  lock.unlock();
  expired_(fmt::format(
      "rank {} waited {:.1f} s in {} (comm.timeout_seconds) and gives up: another rank was not "
      "started, has stopped or cannot be reached, or a file system does not answer; the last lines "
      "of the other ranks may say why",
      rank_, waited.count(), call_));
}

}  // namespace segue::comm
