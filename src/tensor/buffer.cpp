#include "tensor/buffer.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/error.h"
#include "tensor/device_memory.h"
#include "tensor/growing_buffer.h"

namespace segue {

namespace {
constexpr size_t kAlignment = 256;
std::array<std::atomic<int64_t>, kNumPurposes> live_bytes_by_purpose{}, of_these_on_gpus{};
}  // namespace

void detail::count_bytes(Device device, Purpose purpose, int64_t bytes) {
  live_bytes_by_purpose[static_cast<size_t>(purpose)] += bytes;
  if (device.is_cuda()) of_these_on_gpus[static_cast<size_t>(purpose)] += bytes;
}

const char* to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::kTable:
      return "tables";
    case Purpose::kOptimizer:
      return "optimizer";
    case Purpose::kParameter:
      return "parameters";
    case Purpose::kActivation:
      return "activations";
    case Purpose::kComm:
      return "communication";
    case Purpose::kBatch:
      return "batches";
    case Purpose::kScratch:
      return "scratch";
  }
  return "?";
}

Buffer::Buffer(Device device, int64_t bytes, Purpose purpose, HostMemory host)
    : bytes_(bytes), device_(device), purpose_(purpose) {
  SEGUE_ASSERT(bytes >= 0, "negative buffer size");
  if (bytes == 0) return;
  if (device.is_cpu()) {
    const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    if (host == HostMemory::kPinned) data_ = detail::cuda_allocate_pinned(bytes);
    pinned_ = data_ != nullptr;
    if (!pinned_) data_ = std::aligned_alloc(kAlignment, rounded);
    if (data_ == nullptr) {
      fail(ErrorCode::kOutOfMemory,
           fmt::format("no memory for {} bytes of {}", bytes, to_string(purpose)));
    }
    std::memset(data_, 0, static_cast<size_t>(bytes));
  } else {
    data_ = detail::cuda_allocate(device.index, bytes);
    detail::cuda_zero(device.index, data_, bytes, bytes, 1, nullptr);
  }
  detail::count_bytes(device, purpose, bytes);
}

Buffer spare_buffer(Device device, int64_t bytes, Purpose purpose) {
  constexpr int64_t kLeft = int64_t{2} << 30;  // on a GPU, for what grows
  if (device.is_cuda() && cuda_facts(device.index).free_bytes < bytes + kLeft) return {};
  try {
    return {device, bytes, purpose};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    return {};
  }
}

Buffer::~Buffer() { release(); }

Buffer::Buffer(Buffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      device_(other.device_),
      purpose_(other.purpose_),
      pinned_(other.pinned_) {}

Buffer& Buffer::operator=(Buffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    device_ = other.device_;
    purpose_ = other.purpose_;
    pinned_ = other.pinned_;
  }
  return *this;
}

void Buffer::release() noexcept {
  if (data_ == nullptr) return;
  if (pinned_) {
    detail::cuda_free_pinned(data_);
  } else if (device_.is_cpu()) {
    std::free(data_);
  } else {
    detail::cuda_free(device_.index, data_);
  }
  detail::count_bytes(device_, purpose_, -bytes_);
  data_ = nullptr;
}

int64_t Buffer::live_bytes(Purpose purpose) {
  return live_bytes_by_purpose[static_cast<size_t>(purpose)];
}

int64_t device_bytes_held(Purpose purpose) {
  return of_these_on_gpus[static_cast<size_t>(purpose)];
}

}  // namespace segue
