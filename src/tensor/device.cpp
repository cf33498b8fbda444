#include "tensor/device.h"

#include <charconv>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "tensor/buffer.h"
#include "tensor/device_memory.h"
#include "tensor/event.h"
#include "tensor/l2_cache.h"

namespace segue {

std::string to_string(Device device) {
  return device.is_cpu() ? "cpu" : fmt::format("cuda:{}", device.index);
}

Device parse_device(std::string_view text) {
  if (text == "cpu") return Device::cpu();
  if (text == "cuda") return Device::cuda(0);
  constexpr std::string_view kPrefix = "cuda:";
  if (text.starts_with(kPrefix)) {
    const std::string_view number = text.substr(kPrefix.size());
    int index = -1;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error == std::errc() && end == number.data() + number.size() && index >= 0 &&
        index < 1024) {
      return Device::cuda(index);
    }
  }
  fail(ErrorCode::kInvalidArgument,
       fmt::format("device `{}` is not known; use cpu, cuda or cuda:N", text));
}

void require_available(Device device) {
  if (device.is_cpu()) return;
#if !SEGUE_HAS_CUDA
  fail(ErrorCode::kUnsupported,
       "this segue was built without CUDA; install the CUDA toolkit and rebuild "
       "(cmake --preset cuda), or use --device cpu");
#else
  const int count = cuda_device_count();
  if (device.index >= count) {
    fail(ErrorCode::kUnsupported,
         fmt::format("device {} asked for, but this machine shows {} CUDA device(s) and a working "
                     "driver is needed; see nvidia-smi, or use --device cpu",
                     to_string(device), count));
  }
#endif
}

#if !SEGUE_HAS_CUDA
int cuda_device_count() { return 0; }

std::string describe(Device device) {
  require_available(device);
  return "cpu";
}

void use_device(Device) {}

Stream::Stream(Device device, Priority) : device_(device) { require_available(device); }
Stream::~Stream() {}  // gives back a handle where there is CUDA
void Stream::synchronize() const {}

int64_t device_bytes_in_use(Device) { return 0; }

Event::~Event() {}
Event::Event(Event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
Event& Event::operator=(Event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}
void Event::record(const Stream&) {}
void Event::hold(const Stream&) const {}
bool Event::reached() const { return true; }
void Event::synchronize() const {}

void copy_bytes(void* to, Device to_device, const void* from, Device from_device, size_t bytes,
                const Stream*) {
  require_available(to_device);
  require_available(from_device);
  if (bytes > 0) std::memcpy(to, from, bytes);
}

CudaFacts cuda_facts(int index) {
  require_available(Device::cuda(index));
  return {};
}

int64_t cuda_l2_bytes(int index) {
  require_available(Device::cuda(index));
  return 0;
}

namespace detail {
void* cuda_allocate(int index, int64_t) {
  require_available(Device::cuda(index));
  return nullptr;
}
void cuda_free(int, void*) noexcept {}
void* cuda_allocate_pinned(int64_t) { return nullptr; }
void cuda_free_pinned(void*) noexcept {}
void cuda_zero(int, void*, int64_t, int64_t, int64_t, const Stream*) {}
}  // namespace detail
#endif

}  // namespace segue
