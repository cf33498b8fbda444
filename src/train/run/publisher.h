#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <utility>

#include "base/background.h"

namespace segue::train {

/// Hands checkpoints on, one at a time, on a thread of its own. What goes wrong there is a warning:
/// the next one has it all again.
class Publisher {
 public:
  using Publish = std::function<void(const std::string& checkpoint)>;
  explicit Publisher(Publish publish) : publish_(std::move(publish)) {}

  bool busy() const { return busy_; }
  void start(const std::string& checkpoint);  // not while busy
  void wait() { worker_.wait(); }

 private:
  Publish publish_;
  std::atomic<bool> busy_{false};
  base::BackgroundWorker worker_;  // last: uses all of the above
};

}  // namespace segue::train
