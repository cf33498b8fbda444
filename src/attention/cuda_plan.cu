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
          narrow(mask.target_group), narrow(mask.global_prefix)};
}

namespace {

int32_t ceil_div(int32_t a, int32_t b) { return (a + b - 1) / b; }

/// Not empty, long ones first.
std::vector<SequenceEntry> sorted_sequences(const HstuAttentionParams& p) {
  std::vector<SequenceEntry> entries;
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b) {
    const int64_t n = p.offsets[b + 1] - p.offsets[b];
    const int64_t targets = p.num_targets.empty() ? 0 : p.num_targets[b];
    SEGUE_ASSERT(targets >= 0 && targets <= n, "attention: more targets than rows");
    if (n > 0) {
      entries.push_back({static_cast<int32_t>(p.offsets[b]), static_cast<int32_t>(n),
                         static_cast<int32_t>(targets)});
    }
  }
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return a.n != b.n ? a.n > b.n : a.first_row < b.first_row;
  });
  return entries;
}

}  // namespace

int64_t least_spill_bytes(const HstuAttentionParams& p) {
  int64_t longest = 0;
  for (size_t b = 0; b + 1 < p.offsets.size(); ++b) {
    longest = std::max(longest, p.offsets[b + 1] - p.offsets[b]);
  }
  return p.q.size(1) * spill_blocks_of(p.mask, longest) * kSpillBlockBytes;
}

CudaPlan::CudaPlan(const Exec& exec, const HstuAttentionParams& p, int64_t spill_bytes,
                   TileRows tile_rows)
    : tile_rows_(tile_rows), heads_(static_cast<int32_t>(p.q.size(1))) {
  std::vector<SequenceEntry> entries = sorted_sequences(p);
  if (entries.empty()) return;
  Chunk chunk;
  for (SequenceEntry& e : entries) {
    e.spill = static_cast<int32_t>(spill_blocks_of(p.mask, e.n));
    if (spill_bytes > 0 && chunk.end > chunk.begin &&
        (chunk.spill + heads_ * e.spill) * kSpillBlockBytes > spill_bytes) {
      close(chunk, entries);
      chunk = {chunk.end, chunk.end, 0, 0, 0};
    }
    e.first_key_tile = chunk.key_tiles;
    e.first_query_tile = chunk.query_tiles;
    e.first_spill = static_cast<int32_t>(chunk.spill);
    e.sum_row = static_cast<int32_t>(sum_rows_);
    sum_rows_ += ceil_div(e.n, kSummedRows);
    ++chunk.end;
    chunk.key_tiles += heads_ * ceil_div(e.n, tile_rows.keys);
    chunk.query_tiles += heads_ * ceil_div(e.n, tile_rows.queries);
    chunk.spill += int64_t{heads_} * e.spill;
    spill_blocks_ = std::max(spill_blocks_, chunk.spill);
  }
  close(chunk, entries);
  if (chunks_.size() == 1 && entries.size() <= kFewSequences &&
      std::max(chunk.key_tiles, chunk.query_tiles) <= kFewTiles) {
    std::copy(entries.begin(), entries.end(), few_.entries);
    return;
  }
  // Entry c of the table holds the counters of chunk c.
  entries.insert(entries.begin(), chunks_.size(), SequenceEntry{});
  const size_t bytes = entries.size() * sizeof(SequenceEntry);
  table_ = exec.arena->tensor(DType::kU8, {static_cast<int64_t>(bytes)});
  upload_ring(exec.device.index)
      .upload(table_.data, entries.data(), bytes, static_cast<cudaStream_t>(exec.stream->handle()));
}

/// A tail of about two tiles for each multiprocessor evens out what went before.
void CudaPlan::close(Chunk& chunk, const std::vector<SequenceEntry>& entries) {
  constexpr int32_t kTailTiles = 264;
  const auto from_end = [&](int32_t i) { return entries[static_cast<size_t>(chunk.end - i)]; };
  const int32_t n = from_end(1).n;
  const int32_t most =
      std::clamp(kTailTiles / (heads_ * ceil_div(n, tile_rows_.keys)), 1, chunk.end - chunk.begin);
  chunk.tail = 1;
  while (chunk.tail < most && from_end(chunk.tail + 1).n == n) ++chunk.tail;
  chunk.tail_key_tile = from_end(chunk.tail).first_key_tile;
  chunk.tail_query_tile = from_end(chunk.tail).first_query_tile;
  chunks_.push_back(chunk);
}

WorkList CudaPlan::list(int chunk, bool queries, int counter) const {
  const Chunk& c = chunks_[static_cast<size_t>(chunk)];
  WorkList work{};
  work.sequences = c.end - c.begin;
  work.tiles = queries ? c.query_tiles : c.key_tiles;
  work.queries = queries;
  work.heads = heads_;
  work.tail = c.tail;
  work.tail_tile = queries ? c.tail_query_tile : c.tail_key_tile;
  if (!table_) return work;
  auto* table = static_cast<SequenceEntry*>(table_.data);
  work.table = table + chunks_.size() + c.begin;
  work.counter = reinterpret_cast<int32_t*>(table + chunk) + counter;
  return work;
}

WorkList CudaPlan::key_tiles(int chunk, int counter) const { return list(chunk, false, counter); }
WorkList CudaPlan::query_tiles(int chunk, int counter) const { return list(chunk, true, counter); }

}  // namespace segue::attention
