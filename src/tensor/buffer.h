#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/device.h"

namespace segue {

/// Why memory was taken; `segue plan` and out-of-memory messages add up by it.
enum class Purpose : uint8_t {
  kTable,
  kOptimizer,
  kParameter,
  kActivation,
  kComm,
  kBatch,
  kScratch
};
inline constexpr int kNumPurposes = 7;
const char* to_string(Purpose purpose);

/// Kinds of CPU memory. Pinned memory can be copied to a GPU while the CPU goes on; taking it is
/// slow and starts the CUDA runtime. Without a GPU it is the same as pageable memory.
enum class HostMemory : uint8_t { kPageable, kPinned };

/// Owns memory on one device; 256-byte aligned and zeroed. Move-only.
class Buffer {
 public:
  Buffer() = default;
  /// `host` matters for the CPU only.
  Buffer(Device device, int64_t bytes, Purpose purpose, HostMemory host = HostMemory::kPageable);
  ~Buffer();
  Buffer(Buffer&& other) noexcept;
  Buffer& operator=(Buffer&& other) noexcept;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  Purpose purpose() const { return purpose_; }
  bool pinned() const { return pinned_; }

  /// Bytes that all live buffers of this process hold for one purpose.
  static int64_t live_bytes(Purpose purpose);

 private:
  void release() noexcept;

  void* data_ = nullptr;
  int64_t bytes_ = 0;
  Device device_;
  Purpose purpose_ = Purpose::kScratch;
  bool pinned_ = false;
};

namespace detail {
// The only door to the CUDA allocator and copies; a build without CUDA has the same functions.
void* cuda_allocate(int index, int64_t bytes);
void cuda_free(int index, void* data) noexcept;
/// `rows` rows of `row_bytes`, `pitch` bytes apart; without a stream it is finished on return.
void cuda_zero(int index, void* data, int64_t pitch, int64_t row_bytes, int64_t rows,
               const Stream* stream);
void* cuda_allocate_pinned(int64_t bytes);  // null when there is no GPU
void cuda_free_pinned(void* data) noexcept;
}  // namespace detail

}  // namespace segue
