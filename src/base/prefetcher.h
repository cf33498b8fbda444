#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace segue::base {

/// A thread that makes values ahead of their use, at most `depth` of them. `make(T&)` replaces a
/// value that was used before (so that its memory is used again) and returns false at the end. What
/// it throws is rethrown by next().
template <class T>
class Prefetcher {
 public:
  template <class Make>
  Prefetcher(size_t depth, Make make) : depth_(depth) {
    thread_ = std::thread([this, make = std::move(make)]() mutable { run(make); });
  }
  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Puts the next value in place of `value`, which is given back; false at the end.
  bool next(T& value) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !ready_.empty() || done_; });
    if (ready_.empty()) {
      if (error_) std::rethrow_exception(error_);
      return false;
    }
    std::swap(value, ready_.front());
    used_.push_back(std::move(ready_.front()));
    ready_.pop_front();
    changed_.notify_all();
    return true;
  }

 private:
  template <class Make>
  void run(Make& make) {
    try {
      while (true) {
        T value = take_used();
        if (!make(value)) break;
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ready_.size() < depth_ || stop_; });
        if (stop_) break;
        ready_.push_back(std::move(value));
        changed_.notify_all();
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      error_ = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    done_ = true;
    changed_.notify_all();
  }
  T take_used() {
    const std::lock_guard lock(mutex_);
    if (used_.empty()) return T();
    T value = std::move(used_.front());
    used_.pop_front();
    return value;
  }

  size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<T> ready_, used_;
  bool stop_ = false, done_ = false;
  std::exception_ptr error_;
  std::thread thread_;
};

}  // namespace segue::base
