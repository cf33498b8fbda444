#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace segue::base {

/// One thread that does jobs in the order they come. What a job throws is rethrown by the next
/// submit() or wait(); later jobs are dropped then.
class BackgroundWorker {
 public:
  /// submit() blocks while `depth` jobs are waiting or running.
  explicit BackgroundWorker(size_t depth = 1) : depth_(depth), thread_([this] { run(); }) {}
  /// Jobs that have not begun are dropped.
  ~BackgroundWorker() {
    {
      const std::lock_guard lock(mutex_);
      jobs_.clear();
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  BackgroundWorker(const BackgroundWorker&) = delete;
  BackgroundWorker& operator=(const BackgroundWorker&) = delete;

  void submit(std::function<void()> job) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.size() + (running_ ? 1 : 0) < depth_ || error_; });
    rethrow();
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return jobs_.empty() && !running_; });
    rethrow();
  }

 private:
  void rethrow() {
    if (error_) std::rethrow_exception(error_);
  }
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !jobs_.empty() || stop_; });
      if (jobs_.empty()) return;
      std::function<void()> job = std::move(jobs_.front());
      jobs_.pop_front();
      running_ = true;
      lock.unlock();
      std::exception_ptr error;
      try {
        job();
      } catch (...) {
        error = std::current_exception();
      }
      job = nullptr;
      lock.lock();
      running_ = false;
      if (error) {
        error_ = error;
        jobs_.clear();
      }
      changed_.notify_all();
    }
  }

  size_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool running_ = false;
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: starts when all else is there
};

}  // namespace segue::base
