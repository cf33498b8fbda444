#include "train/run/watchdog.h"

#include <utility>

#include <fmt/format.h>

#include "base/log.h"
#include "base/stage.h"

namespace segue::train {

std::string describe_threads() {
  std::string text;
  for (const base::ThreadState& state : base::thread_states()) {
    text += text.empty() ? "" : "\n";
    text += fmt::format("  {}: ", state.thread);
    text += state.stages.empty()
                ? "in no named stage"
                : fmt::format("{} for {:.1f} s", fmt::join(state.stages, " > "), state.seconds);
  }
  return text;
}

Watchdog::Watchdog(double seconds, std::function<void(const std::string&)> say)
    : seconds_(seconds), say_(std::move(say)), patience_(seconds) {
  if (!say_) say_ = [](const std::string& text) { base::log_warning(text); };
  if (seconds_ > 0) thread_ = std::thread([this] { watch(); });
}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Watchdog::alive() {
  const std::lock_guard lock(mutex_);
  last_ = std::chrono::steady_clock::now();
  patience_ = seconds_;
}

void Watchdog::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto due = last_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                 std::chrono::duration<double>(patience_));
    if (std::chrono::steady_clock::now() < due) {
      wake_.wait_until(lock, due);
      continue;
    }
    const double silent = patience_;
    patience_ *= 2;
    lock.unlock();
    say_(fmt::format("no step has ended for {:.1f} s; the threads are at:\n{}", silent,
                     describe_threads()));
    lock.lock();
  }
}

}  // namespace segue::train
