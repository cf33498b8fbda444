#pragma once

#include <cstdint>
#include <vector>

#include "tensor/buffer.h"

namespace segue {

/// Memory on one device that grows in place: addresses are reserved once, memory comes as it is
/// asked for, zeroed. What was there stays where it was, so views and queued work stay valid.
class GrowingBuffer {
 public:
  GrowingBuffer() = default;
  GrowingBuffer(Device device, int64_t most_bytes, Purpose purpose);
  ~GrowingBuffer();
  GrowingBuffer(GrowingBuffer&& other) noexcept;
  GrowingBuffer& operator=(GrowingBuffer&& other) noexcept;

  /// At least `bytes` from now on, in steps; Error(kOutOfMemory) leaves it as it was.
  void grow(int64_t bytes);
  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }  // that there are
  int64_t most_bytes() const { return most_bytes_; }

 private:
  void release() noexcept;

  void* data_ = nullptr;
  int64_t bytes_ = 0, most_bytes_ = 0, reserved_ = 0;
  Device device_;
  Purpose purpose_ = Purpose::kScratch;
  struct Piece {
    uint64_t handle = 0;
    int64_t bytes = 0;
  };
  std::vector<Piece> pieces_;  // of a GPU
};

namespace detail {
/// Address space of a GPU, and memory behind parts of it; multiples of cuda_granularity().
int64_t cuda_granularity(int index);
void* cuda_reserve(int index, int64_t bytes);
uint64_t cuda_map(int index, void* at, int64_t bytes);  // zeroed
void cuda_unmap(int index, void* at, int64_t bytes, uint64_t handle) noexcept;
void cuda_unreserve(int index, void* at, int64_t bytes) noexcept;

/// For accounts of live memory.
void count_bytes(Device device, Purpose purpose, int64_t bytes);
}  // namespace detail

}  // namespace segue
