#include <cstring>
#include <source_location>
#include <string>
#include <utility>

#include <cuda_runtime.h>

#include "base/error.h"
#include "tensor/buffer.h"
#include "tensor/device.h"
#include "tensor/device_memory.h"
#include "tensor/event.h"
#include "tensor/host_mapping.h"
#include "tensor/l2_cache.h"

namespace segue {

namespace {

void check_cuda(cudaError_t rc, std::source_location at = std::source_location::current()) {
  if (rc == cudaSuccess) return;
  const ErrorCode code =
      rc == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported;
  fail(code, std::string("CUDA: ") + cudaGetErrorString(rc) + " (" + at.file_name() + ":" +
                 std::to_string(at.line()) + ")");
}

/// Makes a device current for one scope.
class DeviceScope {
 public:
  explicit DeviceScope(int index) {
    check_cuda(cudaGetDevice(&previous_));
    check_cuda(cudaSetDevice(index));
  }
  ~DeviceScope() { cudaSetDevice(previous_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace

CudaFacts cuda_facts(int index) {
  require_available(Device::cuda(index));
  DeviceScope scope(index);
  CudaFacts f;
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, index));
  f.name = properties.name;
  char bus_id[32] = {};
  check_cuda(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), index));
  f.bus_id = bus_id;
  f.major = properties.major;
  f.minor = properties.minor;
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  f.memory_bytes = static_cast<int64_t>(total);
  f.free_bytes = static_cast<int64_t>(free);
  check_cuda(cudaDeviceGetAttribute(&f.clock_khz, cudaDevAttrClockRate, index));
  check_cuda(cudaDriverGetVersion(&f.driver));
  check_cuda(cudaRuntimeGetVersion(&f.runtime));
  return f;
}

int64_t cuda_l2_bytes(int index) {
  require_available(Device::cuda(index));
  int bytes = 0;
  check_cuda(cudaDeviceGetAttribute(&bytes, cudaDevAttrL2CacheSize, index));
  return bytes;
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();  // no driver is an answer, not an error to keep
    return 0;
  }
  return count;
}

void use_device(Device device) {
  if (device.is_cuda()) check_cuda(cudaSetDevice(device.index));
}

std::string describe(Device device) {
  require_available(device);
  if (device.is_cpu()) return "cpu";
  cudaDeviceProp properties{};
  check_cuda(cudaGetDeviceProperties(&properties, device.index));
  return std::string(properties.name) + ", " +
         std::to_string(properties.totalGlobalMem / (1024 * 1024 * 1024)) + " GiB, compute " +
         std::to_string(properties.major) + "." + std::to_string(properties.minor);
}

Stream::Stream(Device device, Priority priority) : device_(device) {
  require_available(device);
  if (device.is_cpu()) return;
  DeviceScope scope(device.index);
  cudaStream_t stream = nullptr;
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  check_cuda(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                          priority == Priority::kAhead ? greatest : 0));
  handle_ = stream;
}

Stream::~Stream() {
  if (handle_ != nullptr) cudaStreamDestroy(static_cast<cudaStream_t>(handle_));
}

void Stream::synchronize() const {
  if (handle_ != nullptr) check_cuda(cudaStreamSynchronize(static_cast<cudaStream_t>(handle_)));
}

int64_t device_bytes_in_use(Device device) {
  if (device.is_cpu()) return 0;
  DeviceScope scope(device.index);
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  return static_cast<int64_t>(total - free);
}

Event::~Event() {
  if (handle_ != nullptr) cudaEventDestroy(static_cast<cudaEvent_t>(handle_));
}
Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

void Event::record(const Stream& stream) {
  if (stream.device().is_cpu()) return;
  DeviceScope scope(stream.device().index);
  if (handle_ == nullptr) {
    cudaEvent_t event = nullptr;
    check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    handle_ = event;
  }
  check_cuda(cudaEventRecord(static_cast<cudaEvent_t>(handle_),
                             static_cast<cudaStream_t>(stream.handle())));
}

void Event::hold(const Stream& stream) const {
  if (handle_ == nullptr || stream.device().is_cpu()) return;
  DeviceScope scope(stream.device().index);
  check_cuda(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream.handle()),
                                 static_cast<cudaEvent_t>(handle_)));
}

bool Event::reached() const {
  return handle_ == nullptr || cudaEventQuery(static_cast<cudaEvent_t>(handle_)) == cudaSuccess;
}

void Event::synchronize() const {
  if (handle_ != nullptr) check_cuda(cudaEventSynchronize(static_cast<cudaEvent_t>(handle_)));
}

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes,
                const Stream* stream) {
  if (bytes == 0) return;
  if (to_device.is_cpu() && from_device.is_cpu()) {
    std::memcpy(to, from, bytes);
    return;
  }
  const Device device = to_device.is_cuda() ? to_device : from_device;
  DeviceScope scope(device.index);
  cudaStream_t handle = stream != nullptr ? static_cast<cudaStream_t>(stream->handle()) : nullptr;
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, handle));
  if (stream == nullptr) check_cuda(cudaStreamSynchronize(handle));
}

namespace detail {

void* cuda_allocate(int index, int64_t bytes) {
  require_available(Device::cuda(index));
  DeviceScope scope(index);
  void* data = nullptr;
  check_cuda(cudaMalloc(&data, static_cast<size_t>(bytes)));
  return data;
}

void cuda_free(int index, void* data) noexcept {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(index);
  cudaFree(data);
  cudaSetDevice(previous);
}

void* cuda_allocate_pinned(int64_t bytes) {
  if (cuda_device_count() == 0) return nullptr;
  void* data = nullptr;
  // Portable: whichever GPU the batch goes to.
  check_cuda(cudaHostAlloc(&data, static_cast<size_t>(bytes), cudaHostAllocPortable));
  return data;
}

void cuda_free_pinned(void* data) noexcept { cudaFreeHost(data); }

bool cuda_map_host(int index, void* data, int64_t bytes) {
  DeviceScope scope(index);
  int same_addresses = 0;
  check_cuda(
      cudaDeviceGetAttribute(&same_addresses, cudaDevAttrCanUseHostPointerForRegisteredMem, index));
  if (same_addresses == 0) return false;
  const cudaError_t rc = cudaHostRegister(data, static_cast<size_t>(bytes), cudaHostRegisterMapped);
  if (rc != cudaSuccess) cudaGetLastError();  // an answer, not an error to keep
  return rc == cudaSuccess;
}

void cuda_unmap_host(int index, const std::vector<void*>& pieces) noexcept {
  int previous = 0;
  cudaGetDevice(&previous);
  cudaSetDevice(index);
  cudaDeviceSynchronize();  // nothing may still use it
  for (void* const piece : pieces) cudaHostUnregister(piece);
  cudaSetDevice(previous);
}

void cuda_zero(int index, void* data, int64_t pitch, int64_t row_bytes, int64_t rows,
               const Stream* stream) {
  DeviceScope scope(index);
  // Without a stream the memset runs on the default one, which our streams do not wait for.
  const auto handle = stream != nullptr ? static_cast<cudaStream_t>(stream->handle()) : nullptr;
  if (rows == 1 || pitch == row_bytes) {
    check_cuda(cudaMemsetAsync(data, 0, static_cast<size_t>(row_bytes * rows), handle));
  } else {
    check_cuda(cudaMemset2DAsync(data, static_cast<size_t>(pitch), 0,
                                 static_cast<size_t>(row_bytes), static_cast<size_t>(rows),
                                 handle));
  }
  if (stream == nullptr) check_cuda(cudaStreamSynchronize(handle));
}

}  // namespace detail
}  // namespace segue
