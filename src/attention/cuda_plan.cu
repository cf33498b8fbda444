#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include <cuda_runtime.h>

#include "attention/cuda_check.h"
#include "attention/cuda_plan.h"

namespace segue::attention {
namespace {

/// Pinned memory for small uploads: the host never waits, except for an upload kSlots calls ago.
class UploadRing {
 public:
  void upload(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    const std::scoped_lock lock(mutex_);
    Slot& slot = slots_[next_];
    next_ = (next_ + 1) % kSlots;
    if (slot.done == nullptr) {
      check_cuda(cudaEventCreateWithFlags(&slot.done, cudaEventDisableTiming));
    } else {
      check_cuda(cudaEventSynchronize(slot.done));
    }
    if (slot.capacity < bytes) {
      if (slot.memory != nullptr) check_cuda(cudaFreeHost(slot.memory));
      slot = {nullptr, 0, slot.done};
      check_cuda(cudaMallocHost(&slot.memory, 2 * bytes));
      slot.capacity = 2 * bytes;
    }
    std::memcpy(slot.memory, from, bytes);
    check_cuda(cudaMemcpyAsync(to, slot.memory, bytes, cudaMemcpyHostToDevice, stream));
    check_cuda(cudaEventRecord(slot.done, stream));
  }

 private:
  static constexpr size_t kSlots = 32;
  struct Slot {
    void* memory = nullptr;
    size_t capacity = 0;
    cudaEvent_t done = nullptr;
  };
  std::mutex mutex_;
  std::array<Slot, kSlots> slots_;
  size_t next_ = 0;
};

/// One for each device; they live as long as the process, like the driver.
UploadRing& upload_ring(int device) {
  static std::array<UploadRing, 64>* const kRings = new std::array<UploadRing, 64>;
  return (*kRings)[static_cast<size_t>(device)];
}

}  // namespace

KernelMask kernel_mask(const HstuMask& mask) {
  const auto narrow = [](int64_t x) {
    return static_cast<int32_t>(std::min<int64_t>(x, int64_t{1} << 30));
  };
  return {narrow(mask.contextual_len), narrow(mask.window), narrow(mask.min_full),
          narrow(mask.target_group)};
}

CudaPlan::CudaPlan(const Exec& exec, const HstuAttentionParams& p, int tile_rows) {
  const size_t sequences = p.offsets.size() - 1;
  std::vector<SequenceEntry> entries;
  entries.reserve(sequences + 1);
  entries.push_back({0, 0, 0, 0});  // room for the counters
  for (size_t b = 0; b < sequences; ++b) {
    const int64_t n = p.offsets[b + 1] - p.offsets[b];
    const int64_t targets = p.num_targets.empty() ? 0 : p.num_targets[b];
    SEGUE_ASSERT(targets >= 0 && targets <= n, "attention: more targets than rows");
    if (n > 0) {
      entries.push_back({static_cast<int32_t>(p.offsets[b]), static_cast<int32_t>(n),
                         static_cast<int32_t>(targets), 0});
    }
  }
  std::sort(entries.begin() + 1, entries.end(), [](const auto& a, const auto& b) {
    return a.n != b.n ? a.n > b.n : a.first_row < b.first_row;
  });
  const auto heads = static_cast<int32_t>(p.q.size(1));
  for (auto e = entries.begin() + 1; e != entries.end(); ++e) {
    e->first_tile = tiles_;
    tiles_ += heads * ((e->n + tile_rows - 1) / tile_rows);
  }
  sequences_ = static_cast<int32_t>(entries.size()) - 1;
  static_assert(sizeof(SequenceEntry) == kCounters * sizeof(int32_t));
  const size_t bytes = entries.size() * sizeof(SequenceEntry);
  table_ = exec.arena->tensor(DType::kU8, {static_cast<int64_t>(bytes)});
  upload_ring(exec.device.index)
      .upload(table_.data, entries.data(), bytes, static_cast<cudaStream_t>(exec.stream->handle()));
}

WorkList CudaPlan::work(int counter) const {
  auto* table = static_cast<SequenceEntry*>(table_.data);
  return {table + 1, sequences_, tiles_, reinterpret_cast<int32_t*>(table) + counter};
}

}  // namespace segue::attention
