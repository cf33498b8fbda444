#pragma once

#include <algorithm>

#include <cub/device/device_scan.cuh>
#include <thrust/iterator/transform_iterator.h>

#include "ops/kernel.cuh"
#include "sparse/hash_index_runs.cuh"
#include "tensor/buffer.h"
#include "tensor/event.h"
#include "tensor/launches.h"

// For hash_index_cuda.cu alone: rows' numbers, and the memory that a call works in.

namespace segue::sparse::detail {
namespace {

struct IsFresh {
  __host__ __device__ int32_t operator()(uint8_t mark) const { return mark == kFresh ? 1 : 0; }
};

__global__ void number_kernel(const __grid_constant__ IndexCalls calls) {
  const auto& [table, rules, b, expects_evictions, end_block] = calls.mine();
  const int64_t i = calls.first_key() + threadIdx.x;
  if (i >= b.n) return;
  const uint8_t mark = b.marks[i];
  if (mark == kDone) return;
  const uint32_t slot = b.slot_of[i];
  b.is_new[i] = 1;
  if (mark == kTaken) {
    b.rows[i] = table.slots.rows[slot];
    return;
  }
  const int64_t free = b.state[kFreeRows], at = b.place[i] - b.place[0];
  const int64_t row = at < free ? b.free_rows[free - 1 - at] : b.state[kNextRow] + (at - free);
  table.slots.rows[slot] = static_cast<int32_t>(row);
  b.rows[i] = row;
}

/// A thread per call.
__global__ void settle_kernel(const __grid_constant__ IndexCalls calls) {
  if (static_cast<int>(threadIdx.x) >= calls.count) return;
  const BatchArgs& b = calls.calls[threadIdx.x].b;
  const int64_t numbered = b.place[b.n - 1] - b.place[0] + IsFresh()(b.marks[b.n - 1]);
  const int64_t reused = min(numbered, b.state[kFreeRows]);
  b.state[kFreeRows] -= reused;
  b.state[kNextRow] += numbered - reused;
  *b.next_row = b.state[kNextRow];
}

/// Pieces of one buffer, each on a line of its own.
class Layout {
 public:
  int64_t add(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += ops::cuda::divide_up(bytes, 256) * 256;
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

inline auto fresh(const uint8_t* marks) {
  return thrust::make_transform_iterator(marks, IsFresh());
}

/// Memory of a call, kept for the next one.
class IndexScratch {
 public:
  /// Room for `n` keys; `done` is behind the last call.
  void reserve(int64_t n, Device device, const Event& done) {
    if (n <= keys_) return;
    const int64_t keys = std::max(n, std::min<int64_t>(INT32_MAX, keys_ + keys_ / 2));
    scan_bytes_ = 0;
    ops::cuda::check_cuda(cub::DeviceScan::ExclusiveSum(nullptr, scan_bytes_, fresh(nullptr),
                                                        static_cast<int32_t*>(nullptr),
                                                        static_cast<int>(keys)));
    Layout layout;
    marks_at_ = layout.add(keys);
    slot_of_at_ = layout.add(keys * 4);
    place_at_ = layout.add(keys * 4);
    grows_at_ = layout.add(kMostCalls * kMostShards);
    scan_at_ = layout.add(static_cast<int64_t>(scan_bytes_));
    done.synchronize();
    memory_ = {};
    memory_ = Buffer(device, layout.bytes(), Purpose::kScratch);
    keys_ = keys;
  }
  int64_t bytes() const { return memory_.bytes(); }

  /// What an index whose first key is key `first` of the call has of it.
  void give(int64_t first, BatchArgs& b) const {
    b.marks = at<uint8_t>(marks_at_) + first;
    b.slot_of = at<uint32_t>(slot_of_at_) + first;
    b.place = at<int32_t>(place_at_) + first;
  }
  /// A byte for each shard of the call's indices.
  uint8_t* grows() const { return at<uint8_t>(grows_at_); }

  /// BatchArgs::place of all keys, from their marks.
  void count_fresh(int64_t keys, cudaStream_t queue) {
    size_t bytes = scan_bytes_;
    ops::cuda::check_cuda(
        cub::DeviceScan::ExclusiveSum(at<char>(scan_at_), bytes, fresh(at<uint8_t>(marks_at_)),
                                      at<int32_t>(place_at_), static_cast<int>(keys), queue));
    count_launches(2);
  }

 private:
  template <class T>
  T* at(int64_t offset) const {
    return reinterpret_cast<T*>(static_cast<char*>(memory_.data()) + offset);
  }
  Buffer memory_;
  int64_t keys_ = 0, marks_at_ = 0, slot_of_at_ = 0, place_at_ = 0, grows_at_ = 0, scan_at_ = 0;
  size_t scan_bytes_ = 0;
};

}  // namespace
}  // namespace segue::sparse::detail
