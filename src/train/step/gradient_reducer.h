#pragma once

#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "tensor/event.h"

namespace segue::train {

/// Adds up the dense gradients of all ranks, bucket by bucket in a fixed order, on a thread of its
/// own while backward still makes the later ones.
class GradientReducer {
 public:
  /// `group` is used by nobody else while a step is reduced; the buckets are views of live memory.
  GradientReducer(comm::Communicator& group, std::vector<Tensor> buckets, Device device);
  ~GradientReducer();

  /// Buckets up to this one are complete in what `stream` has been given.
  void ready(size_t bucket, const Stream& stream);
  /// All are; returns when the sums are there (on a GPU: for what `stream` is given from now on).
  /// What went wrong is thrown here.
  void finish(const Stream& stream);

 private:
  void work();

  comm::Communicator& group_;
  std::vector<Tensor> buckets_;
  Stream stream_;
  std::vector<Event> made_;  // per bucket
  Event summed_;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t ready_ = 0, done_ = 0;  // buckets of this step
  bool stop_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // last: uses all of the above
};

}  // namespace segue::train
