#include "tensor/arena.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <sys/mman.h>

#include "base/error.h"

namespace segue {

namespace {
constexpr int64_t kAlignment = 256;
/// An arena of this capacity has no memory and only counts.
constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();
}  // namespace

Arena::Arena(Device device, int64_t capacity_bytes) : device_(device), capacity_(capacity_bytes) {
  SEGUE_ASSERT(capacity_bytes > 0, "an arena needs a capacity");
  if (capacity_bytes == kUnlimited) {
    base_ = reinterpret_cast<char*>(kAlignment);  // NOLINT(performance-no-int-to-ptr): unused
    return;
  }
  if (device.is_cuda()) {
    device_block_ = Buffer(device, capacity_bytes, Purpose::kActivation);
    base_ = static_cast<char*>(device_block_.data());
    return;
  }
  void* block = mmap(nullptr, static_cast<size_t>(capacity_bytes), PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (block == MAP_FAILED) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format("cannot reserve {:.1f} GiB of address space for activations; lower "
                     "train.arena_gib",
                     static_cast<double>(capacity_bytes) / (1 << 30)));
  }
  base_ = static_cast<char*>(block);
}

Arena::~Arena() {
  if (device_.is_cpu() && capacity_ != kUnlimited) munmap(base_, static_cast<size_t>(capacity_));
}

Tensor Arena::tensor(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor view(base_ + used_, dtype, device_, shape);
  const int64_t bytes = (view.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes > capacity_ - used_) {
    fail(ErrorCode::kOutOfMemory,
         fmt::format(
             "activations need {} bytes more than the arena holds ({} of {} bytes used, {} asked "
             "for {}); raise train.arena_gib or train.distinct_share, or lower "
             "train.micro_batch_tokens",
             bytes - (capacity_ - used_), used_, capacity_, bytes, view.shape_string()));
  }
  used_ += bytes;
  high_water_ = std::max(high_water_, used_);
  return view;
}

}  // namespace segue
