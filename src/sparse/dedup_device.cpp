#include "sparse/dedup_device.h"

#include <bit>

#include "base/error.h"
#include "ops/cuda_forms.h"
#include "sparse/dedup.h"
#include "tensor/device_memory.h"

namespace segue::sparse {
namespace {

constexpr int64_t kAlignment = 256;

/// Hands out consecutive pieces of memory.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<char*>(memory)) {}
  void* take(int64_t bytes) {
    char* const piece = memory_ + used_;
    used_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return piece;
  }
  int64_t used() const { return used_; }

 private:
  char* memory_;
  int64_t used_ = 0;
};

DedupArrays divide(const Buffer& memory, int64_t n) {
  Pieces pieces(memory.data());
  pieces.take(8 * n);  // input()
  DedupArrays a{};
  a.values = static_cast<int64_t*>(pieces.take(8 * n));
  a.first = static_cast<int32_t*>(pieces.take(4 * n));
  for (void*& keys : a.keys) keys = pieces.take(8 * n);
  for (int32_t*& items : a.items) items = static_cast<int32_t*>(pieces.take(4 * n));
  a.inverse = static_cast<int32_t*>(pieces.take(4 * n));
  a.starts = static_cast<int32_t*>(pieces.take(4 * (n + 1)));
  a.count = static_cast<int64_t*>(pieces.take(8));
  a.scratch_bytes = memory.bytes() - pieces.used();
  a.scratch = pieces.take(a.scratch_bytes);
  return a;
}

/// Less than the arrays and far more than a sort and a sum need to coordinate their blocks.
int64_t scratch_bytes(int64_t n) { return n + (int64_t{1} << 20); }

}  // namespace

int64_t DeviceDedup::memory_bytes(int64_t ids) {
  constexpr int64_t kArrays = 11;
  return ids * (2 * 8 + 2 * 8 + 2 * 4 + 3 * 4) + kArrays * kAlignment + scratch_bytes(ids);
}

void DeviceDedup::reserve(Device device, int64_t bytes) {
  if (bytes <= memory_.bytes()) return;
  counted_.synchronize();
  memory_ = {};
  memory_ = Buffer(device, bytes, Purpose::kBatch);
}

Tensor DeviceDedup::input(int64_t count, Device device) {
  if (memory_bytes(count) > memory_.bytes()) {
    constexpr int64_t kStep = 1 << 18;  // a batch that is a little larger finds room
    reserve(device, memory_bytes((count + kStep - 1) / kStep * kStep));
  }
  return {memory_.data(), DType::kI64, device, {count}};
}

DeviceDedup::Found DeviceDedup::find(const Tensor& ids, IdRange range, bool skip_negative,
                                     const Stream& stream) {
  SEGUE_ASSERT(ids.dtype == DType::kI64 && ids.rank == 1 && ids.is_contiguous(),
               "ids are a vector of 64-bit integers");
  const int64_t n = ids.size(0);
  SEGUE_ASSERT(n < std::numeric_limits<int32_t>::max(), "places among distinct ids are 32 bit");
  const Device device = stream.device();
  input(n, device);
  count_.set_memory(HostMemory::kPinned);
  count_.resize(1);
  const DedupArrays a = divide(memory_, n);
  int order = 0;
  if (n == 0) {
    counted_.synchronize();  // the last count may be on its way
    count_[0] = 0;
    detail::cuda_zero(device.index, a.starts, 4, 4, 1, &stream);
  } else if constexpr (ops::kHasCuda) {
    DedupKeys keys{};
    if (skip_negative) range.smallest = std::max<int64_t>(range.smallest, 0);
    range.largest = std::max(range.largest, range.smallest);
    keys.smallest = static_cast<uint64_t>(range.smallest);
    keys.width = static_cast<uint64_t>(range.largest) - keys.smallest;
    keys.skip_negative = skip_negative;
    keys.bits = std::max(1, static_cast<int>(std::bit_width(keys.width + (skip_negative ? 1 : 0))));
    order = cuda::find_distinct(static_cast<const int64_t*>(ids.data), n, keys, a, stream);
    copy_bytes(count_.data(), Device::cpu(), a.count, device, sizeof(int64_t), &stream);
  }
  counted_.record(stream);
  const auto view = [&](void* data, DType dtype, int64_t size) {
    return Tensor(data, dtype, device, {size});
  };
  return {view(a.values, DType::kI64, n), view(a.first, DType::kI32, n),
          view(a.inverse, DType::kI32, n), view(a.items[order], DType::kI32, n),
          view(a.starts, DType::kI32, n + 1)};
}

int64_t DeviceDedup::count() const {
  counted_.synchronize();
  return count_[0];
}

}  // namespace segue::sparse
