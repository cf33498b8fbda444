#pragma once

#include <cstdint>

#include "tensor/device.h"

namespace segue {

/// A point in the work of a stream that knows when it was reached: differences are the device's own
/// time, which nobody has to wait for. On the CPU, where work is done when a call returns, it is
/// the time of record().
class TimedEvent {
 public:
  TimedEvent() = default;
  ~TimedEvent();
  TimedEvent(TimedEvent&& other) noexcept;
  TimedEvent& operator=(TimedEvent&& other) noexcept;

  /// The point moves to the end of what `stream` (null: on the CPU) has been given so far.
  void record(const Stream* stream);
  bool reached() const;
  /// Both have been reached, on the same device.
  double seconds_since(const TimedEvent& earlier) const;

 private:
  void* handle_ = nullptr;  // cudaEvent_t, made when first recorded on a GPU
  int64_t at_ns_ = 0;       // on the CPU
};

}  // namespace segue
