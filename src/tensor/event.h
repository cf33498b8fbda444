#pragma once

#include "tensor/device.h"

namespace segue {

/// A point in the work of a stream, for other streams and the host to wait for. Nothing waits for
/// an event that was never recorded; on the CPU nothing ever waits.
class Event {
 public:
  Event() = default;
  ~Event();
  Event(Event&& other) noexcept;
  Event& operator=(Event&& other) noexcept;

  /// The point moves to the end of what `stream` has been given so far.
  void record(const Stream& stream);
  /// What `stream` is given from now on waits.
  void hold(const Stream& stream) const;
  /// The host waits.
  void synchronize() const;
  /// Whether it would not have to.
  bool reached() const;

 private:
  void* handle_ = nullptr;  // cudaEvent_t, made when first recorded on a GPU
};

}  // namespace segue
