#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace segue {

/// Where memory lives and work runs.
struct Device {
  enum class Kind : uint8_t { kCpu, kCuda };
  Kind kind = Kind::kCpu;
  int16_t index = 0;

  static constexpr Device cpu() { return {}; }
  static constexpr Device cuda(int index = 0) { return {Kind::kCuda, static_cast<int16_t>(index)}; }
  constexpr bool is_cpu() const { return kind == Kind::kCpu; }
  constexpr bool is_cuda() const { return kind == Kind::kCuda; }
  friend constexpr bool operator==(Device, Device) = default;
};

std::string to_string(Device device);

/// "cpu", "cuda" or "cuda:N"; Error(kInvalidArgument) otherwise.
Device parse_device(std::string_view text);

/// Number of CUDA devices this process can use; 0 in a build without CUDA.
int cuda_device_count();

/// What the device is, for logs: "cpu", or the card's name and memory.
std::string describe(Device device);

/// What a CUDA device is; the device must exist.
struct CudaFacts {
  std::string name, bus_id;
  int major = 0, minor = 0;  // compute capability
  int64_t memory_bytes = 0, free_bytes = 0;
  int clock_khz = 0;            // of the SMs, at most
  int driver = 0, runtime = 0;  // CUDA versions, 13000 for 13.0
};
CudaFacts cuda_facts(int index);

/// Throws Error(kUnsupported) with what to do when `device` cannot be used.
void require_available(Device device);

/// Who goes first where several streams have work: blocks of a stream that is ahead take the next
/// room on a multiprocessor, also while a kernel of another one has blocks left.
enum class Priority : uint8_t { kNormal, kAhead };

/// An ordered queue of work on a device. On the CPU work is done when the call returns.
class Stream {
 public:
  explicit Stream(Device device, Priority priority = Priority::kNormal);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  Device device() const { return device_; }
  void* handle() const { return handle_; }  // cudaStream_t, null on the CPU
  void synchronize() const;

 private:
  Device device_;
  void* handle_ = nullptr;
};

/// Copies between any two places, ordered on `stream`; a copy that touches the host is complete on
/// return only after synchronize(). `stream` may be null when both sides are host memory.
void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes,
                const Stream* stream);

}  // namespace segue
