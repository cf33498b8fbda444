#include "bench/lap_timer.h"

#if SEGUE_HAS_CUDA
#include <cuda_runtime.h>
#endif

#include "base/error.h"
#include "base/time.h"

namespace segue::bench {

#if SEGUE_HAS_CUDA
namespace {

void check_cuda(cudaError_t rc) {
  if (rc != cudaSuccess) {
    fail(ErrorCode::kUnsupported, std::string("CUDA: ") + cudaGetErrorString(rc));
  }
}

/// An event of the current device.
class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&handle_)); }
  ~Event() { cudaEventDestroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record(const Stream& stream) {
    check_cuda(cudaEventRecord(handle_, static_cast<cudaStream_t>(stream.handle())));
  }
  double seconds_since(const Event& earlier) const {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, earlier.handle_, handle_));
    return static_cast<double>(ms) * 1e-3;
  }

 private:
  cudaEvent_t handle_ = nullptr;
};

}  // namespace
#endif

struct LapTimer::Marks {
  explicit Marks(const Exec& exec) : stream(exec.stream), on_gpu(exec.device.is_cuda()) {
#if SEGUE_HAS_CUDA
    // Events belong to the device that is current.
    if (on_gpu) check_cuda(cudaSetDevice(exec.device.index));
#endif
  }
  const Stream* stream;
  bool on_gpu;
  base::Stopwatch watch;
  std::vector<double> times;
#if SEGUE_HAS_CUDA
  std::vector<std::unique_ptr<Event>> events;
#endif
};

LapTimer::LapTimer(const Exec& exec) : marks_(std::make_unique<Marks>(exec)) {}
LapTimer::~LapTimer() = default;

void LapTimer::mark() {
#if SEGUE_HAS_CUDA
  if (marks_->on_gpu) {
    marks_->events.push_back(std::make_unique<Event>());
    marks_->events.back()->record(*marks_->stream);
    return;
  }
#endif
  marks_->times.push_back(marks_->watch.seconds());
}

std::vector<double> LapTimer::laps() {
  std::vector<double> laps;
#if SEGUE_HAS_CUDA
  if (marks_->on_gpu) {
    marks_->stream->synchronize();
    for (size_t i = 1; i < marks_->events.size(); ++i) {
      laps.push_back(marks_->events[i]->seconds_since(*marks_->events[i - 1]));
    }
    marks_->events.clear();
    return laps;
  }
#endif
  for (size_t i = 1; i < marks_->times.size(); ++i) {
    laps.push_back(marks_->times[i] - marks_->times[i - 1]);
  }
  marks_->times.clear();
  return laps;
}

}  // namespace segue::bench
