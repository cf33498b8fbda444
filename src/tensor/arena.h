#pragma once

#include <cstdint>
#include <initializer_list>

#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace segue {

/// Scratch and activation memory: one block taken once, handed out by a moving pointer, never
/// grown. A Mark remembers a position; leaving its scope gives back everything taken since. On the
/// CPU the block is reserved address space, so only what a step really touches becomes resident.
class Arena {
 public:
  Arena(Device device, int64_t capacity_bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Uninitialised, 256-byte aligned. Error(kOutOfMemory) says how much is missing and which key to
  /// raise.
  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape);

  Device device() const { return device_; }
  int64_t used() const { return used_; }
  int64_t high_water() const { return high_water_; }
  int64_t capacity() const { return capacity_; }

  class Mark {
   public:
    explicit Mark(Arena& arena) : arena_(arena), used_(arena.used_) {}
    ~Mark() { arena_.used_ = used_; }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    Arena& arena_;
    int64_t used_;
  };

 private:
  Device device_;
  char* base_ = nullptr;
  int64_t capacity_ = 0;
  int64_t used_ = 0;
  int64_t high_water_ = 0;
  Buffer device_block_;  // backs the arena on a GPU
};

}  // namespace segue
