#include "tensor/growing_buffer.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/error.h"

namespace segue {
namespace {

constexpr int64_t kHostStep = 1 << 16;

int64_t round_up(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

#if !SEGUE_HAS_CUDA
namespace detail {
int64_t cuda_granularity(int index) {
  require_available(Device::cuda(index));
  return 1;
}
void* cuda_reserve(int, int64_t) { return nullptr; }
uint64_t cuda_map(int, void*, int64_t) { return 0; }
void cuda_unmap(int, void*, int64_t, uint64_t) noexcept {}
void cuda_unreserve(int, void*, int64_t) noexcept {}
}  // namespace detail
#endif

GrowingBuffer::GrowingBuffer(Device device, int64_t most_bytes, Purpose purpose)
    : most_bytes_(most_bytes), device_(device), purpose_(purpose) {
  SEGUE_ASSERT(most_bytes >= 0, "negative buffer size");
  if (most_bytes == 0) return;
  if (device.is_cuda()) {
    reserved_ = round_up(most_bytes, detail::cuda_granularity(device.index));
    data_ = detail::cuda_reserve(device.index, reserved_);
    return;
  }
  reserved_ = round_up(most_bytes, kHostStep);
  void* const at = mmap(nullptr, static_cast<size_t>(reserved_), PROT_NONE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("no addresses for {} bytes of {}", most_bytes, to_string(purpose)));
  }
  data_ = at;
}

GrowingBuffer::~GrowingBuffer() { release(); }

GrowingBuffer::GrowingBuffer(GrowingBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)),
      most_bytes_(std::exchange(other.most_bytes_, 0)),
      reserved_(std::exchange(other.reserved_, 0)),
      device_(other.device_),
      purpose_(other.purpose_),
      pieces_(std::move(other.pieces_)) {
  other.pieces_.clear();
}

GrowingBuffer& GrowingBuffer::operator=(GrowingBuffer&& other) noexcept {
  if (this != &other) {
    release();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    most_bytes_ = std::exchange(other.most_bytes_, 0);
    reserved_ = std::exchange(other.reserved_, 0);
    device_ = other.device_;
    purpose_ = other.purpose_;
    pieces_ = std::move(other.pieces_);
    other.pieces_.clear();
  }
  return *this;
}

void GrowingBuffer::grow(int64_t bytes) {
  SEGUE_ASSERT(bytes <= most_bytes_, "a buffer grows beyond its addresses");
  if (bytes <= bytes_) return;
  // An eighth more than there was, so that many small steps do not cost one call each.
  const int64_t wanted = std::max(bytes, bytes_ + bytes_ / 8);
  const int64_t step = device_.is_cuda() ? detail::cuda_granularity(device_.index) : kHostStep;
  const int64_t to = std::min(round_up(wanted, step), reserved_);
  const int64_t more = to - bytes_;
  void* const at = static_cast<char*>(data_) + bytes_;
  if (device_.is_cuda()) {
    pieces_.push_back({detail::cuda_map(device_.index, at, more), more});
  } else if (mprotect(at, static_cast<size_t>(more), PROT_READ | PROT_WRITE) != 0) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("no memory for {} more bytes of {}", more, to_string(purpose_)));
  }
  detail::count_bytes(device_, purpose_, more);
  bytes_ = to;
}

void GrowingBuffer::release() noexcept {
  if (data_ == nullptr) return;
  detail::count_bytes(device_, purpose_, -bytes_);
  if (device_.is_cuda()) {
    char* at = static_cast<char*>(data_);
    for (const Piece& piece : pieces_) {
      detail::cuda_unmap(device_.index, at, piece.bytes, piece.handle);
      at += piece.bytes;
    }
    detail::cuda_unreserve(device_.index, data_, reserved_);
  } else {
    munmap(data_, static_cast<size_t>(reserved_));
  }
  data_ = nullptr;
  pieces_.clear();
}

}  // namespace segue
