#include "train/step/gradient_reducer.h"

#include <algorithm>
#include <utility>

#include "base/stage.h"
#include "tensor/device_memory.h"
#include "tensor/part_timer.h"

namespace segue::train {

GradientReducer::GradientReducer(comm::Communicator& group, std::vector<Tensor> buckets,
                                 Device device)
    : group_(group),
      buckets_(std::move(buckets)),
      stream_(device),
      made_(buckets_.size()),
      thread_([this] { work(); }) {}

GradientReducer::~GradientReducer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GradientReducer::ready(size_t bucket, const Stream& stream) {
  {
    const std::lock_guard lock(mutex_);
    for (size_t b = ready_; b <= bucket; ++b) made_[b].record(stream);
    ready_ = std::max(ready_, bucket + 1);
  }
  changed_.notify_all();
}

void GradientReducer::finish(const Stream& stream) {
  const Part part("reduce gradients");
  ready(buckets_.size() - 1, stream);
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return done_ == buckets_.size() || error_ != nullptr; });
  if (error_ != nullptr) std::rethrow_exception(error_);
  ready_ = done_ = 0;
  lock.unlock();
  summed_.hold(stream);
}

void GradientReducer::work() {
  base::name_thread("gradient reducer");
  use_device(stream_.device());
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || (done_ < ready_ && error_ == nullptr); });
    if (stop_) return;
    const size_t bucket = done_;
    lock.unlock();
    std::exception_ptr error;
    try {
      const base::Stage stage("all-reduce");
      made_[bucket].hold(stream_);
      group_.all_reduce(buckets_[bucket], &stream_).throw_if_failed();
      if (bucket + 1 == buckets_.size()) summed_.record(stream_);
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error != nullptr) {
      error_ = error;
    } else {
      ++done_;
    }
    changed_.notify_all();
  }
}

}  // namespace segue::train
