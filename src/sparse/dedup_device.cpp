#include "sparse/dedup_device.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <optional>

#include "base/error.h"
#include "ops/cuda_forms.h"
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
  a.report = static_cast<DedupReport*>(pieces.take(sizeof(DedupReport)));
  a.scratch_bytes = memory.bytes() - pieces.used();
  a.scratch = pieces.take(a.scratch_bytes);
  return a;
}

/// An empty range has one id: nobody asks for it.
IdRange bounded(IdRange range) {
  if (range.largest < range.smallest) range.largest = range.smallest;
  return range;
}

/// Absent: they do not fit.
std::optional<DedupKeys> keys_of(std::span<const IdPart> parts) {
  DedupKeys keys{};
  uint64_t next = 0;
  bool full = false;  // the last key is the largest of all
  for (const IdPart& part : parts) {
    const IdRange range = bounded(part.range);
    const auto smallest = static_cast<uint64_t>(range.smallest);
    const uint64_t width = static_cast<uint64_t>(range.largest) - smallest;
    const int64_t end = (keys.count == 0 ? 0 : keys.parts[keys.count - 1].end) + part.count;
    if (full || width > std::numeric_limits<uint64_t>::max() - next) return std::nullopt;
    keys.parts[keys.count++] = {end, next, smallest, width, part.outside};
    keys.skips = keys.skips || part.outside == OutsideIds::kSkip;
    next += width + 1;
    full = next == 0;
  }
  if (keys.skips && full) return std::nullopt;
  keys.skipped = next;
  keys.bits = std::max(1, static_cast<int>(std::bit_width(keys.skips ? next : next - 1)));
  return keys;
}

/// Less than the arrays and far more than a sort and a sum need to coordinate their blocks.
int64_t scratch_bytes(int64_t n) { return n + (int64_t{1} << 20); }

}  // namespace

int64_t DeviceDedup::memory_bytes(int64_t ids) {
  constexpr int64_t kArrays = 11;
  return ids * (2 * 8 + 2 * 8 + 2 * 4 + 3 * 4) + static_cast<int64_t>(sizeof(DedupReport)) +
         kArrays * kAlignment + scratch_bytes(ids);
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

bool DeviceDedup::fits(std::span<const IdPart> parts) {
  return parts.size() <= kMostDedupParts && keys_of(parts).has_value();
}

DeviceDedup::Found DeviceDedup::find(const Tensor& ids, IdRange range, bool skip_negative,
                                     const Stream& stream) {
  if (skip_negative) range.smallest = std::max<int64_t>(range.smallest, 0);
  const IdPart part{ids.size(0), range, skip_negative ? OutsideIds::kSkip : OutsideIds::kNever};
  return find(ids, {&part, 1}, stream);
}

DeviceDedup::Found DeviceDedup::find(const Tensor& ids, std::span<const IdPart> parts,
                                     const Stream& stream) {
  SEGUE_ASSERT(ids.dtype == DType::kI64 && ids.rank == 1 && ids.is_contiguous(),
               "ids are a vector of 64-bit integers");
  const int64_t n = ids.size(0);
  SEGUE_ASSERT(n < std::numeric_limits<int32_t>::max(), "places among distinct ids are 32 bit");
  SEGUE_ASSERT(fits(parts), "distinct ids: ranges that fit");
  const DedupKeys keys = *keys_of(parts);
  SEGUE_ASSERT(n == (parts.empty() ? 0 : keys.parts[parts.size() - 1].end), "every id in a part");
  const Device device = stream.device();
  input(n, device);
  constexpr auto kReportWords = static_cast<int64_t>(sizeof(DedupReport) / sizeof(int64_t));
  report_.set_memory(HostMemory::kPinned);
  report_.resize(kReportWords);
  parts_.assign(parts.begin(), parts.end());
  inputs_ = n;
  const DedupArrays a = divide(memory_, n);
  int order = 0, places = 0;
  if (n == 0) {
    counted_.synchronize();  // the last report may be on its way
    std::ranges::fill(report_.span(), 0);
    detail::cuda_zero(device.index, a.starts, 4, 4, 1, &stream);
  } else if constexpr (ops::kHasCuda) {
    const cuda::DedupOrder left =
        cuda::find_distinct(static_cast<const int64_t*>(ids.data), n, keys, a, stream);
    order = left.items;
    places = left.places;
    const size_t used = sizeof(int64_t) + parts.size() * sizeof(DedupReport::Part);
    copy_bytes(report_.data(), Device::cpu(), a.report, device, used, &stream);
  }
  counted_.record(stream);
  const auto view = [&](void* data, DType dtype, int64_t size) {
    return Tensor(data, dtype, device, {size});
  };
  return {view(a.values, DType::kI64, n),       view(a.first, DType::kI32, n),
          view(a.inverse, DType::kI32, n),      view(a.items[order], DType::kI32, n),
          view(a.keys[places], DType::kI32, n), view(a.starts, DType::kI32, n + 1)};
}

int64_t DeviceDedup::count() const {
  counted_.synchronize();
  return report_[0];
}

DeviceDedup::PartFound DeviceDedup::part(size_t number) const {
  counted_.synchronize();
  const auto& report = *reinterpret_cast<const DedupReport*>(report_.data());
  const DedupReport::Part& of = report.parts[number];
  PartFound found;
  found.first = of.first;
  found.count =
      (number + 1 < parts_.size() ? report.parts[number + 1].first : report.count) - of.first;
  found.outside = static_cast<int64_t>(of.outside);
  if (found.outside > 0) found.first_outside = inputs_ - static_cast<int64_t>(of.before_end);
  const auto moved = [](int64_t from, uint64_t by) {
    return static_cast<int64_t>(static_cast<uint64_t>(from) + by);
  };
  const IdRange asked = bounded(parts_[number].range);
  found.range = {moved(asked.smallest, uint64_t{0} - of.below), moved(asked.largest, of.above)};
  return found;
}

}  // namespace segue::sparse
