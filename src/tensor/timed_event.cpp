#include "tensor/timed_event.h"

#include <utility>

#if SEGUE_HAS_CUDA
#include <cuda_runtime.h>
#endif

#include "base/error.h"
#include "base/stage.h"
#include "tensor/device_memory.h"

namespace segue {

TimedEvent::TimedEvent(TimedEvent&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), at_ns_(other.at_ns_) {}

TimedEvent& TimedEvent::operator=(TimedEvent&& other) noexcept {
  std::swap(handle_, other.handle_);
  at_ns_ = other.at_ns_;
  return *this;
}

#if SEGUE_HAS_CUDA

namespace {

void check_cuda(cudaError_t rc) {
  if (rc == cudaSuccess) return;
  fail(ErrorCode::kUnsupported, std::string("CUDA: ") + cudaGetErrorString(rc));
}

cudaEvent_t event_of(void* handle) { return static_cast<cudaEvent_t>(handle); }

}  // namespace

TimedEvent::~TimedEvent() {
  if (handle_ != nullptr) cudaEventDestroy(event_of(handle_));
}

void TimedEvent::record(const Stream* stream) {
  if (stream == nullptr || stream->device().is_cpu()) {
    at_ns_ = base::stage_clock_ns();
    return;
  }
  if (handle_ == nullptr) {
    use_device(stream->device());  // events belong to the device that is current
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreate(&event));
    handle_ = event;
  }
  check_cuda(cudaEventRecord(event_of(handle_), static_cast<cudaStream_t>(stream->handle())));
}

bool TimedEvent::reached() const {
  return handle_ == nullptr || cudaEventQuery(event_of(handle_)) == cudaSuccess;
}

double TimedEvent::seconds_since(const TimedEvent& earlier) const {
  if (handle_ == nullptr) return static_cast<double>(at_ns_ - earlier.at_ns_) * 1e-9;
  float ms = 0;
  check_cuda(cudaEventElapsedTime(&ms, event_of(earlier.handle_), event_of(handle_)));
  return static_cast<double>(ms) * 1e-3;
}

#else

TimedEvent::~TimedEvent() = default;
void TimedEvent::record(const Stream* /*stream*/) { at_ns_ = base::stage_clock_ns(); }
bool TimedEvent::reached() const { return true; }
double TimedEvent::seconds_since(const TimedEvent& earlier) const {
  return static_cast<double>(at_ns_ - earlier.at_ns_) * 1e-9;
}

#endif

}  // namespace segue
