#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "tensor/buffer.h"
#include "tensor/tensor.h"

namespace segue {

/// A growable host array that keeps its memory between batches: after warm-up nothing is allocated.
template <class T>
class HostArray {
 public:
  HostArray() = default;
  // An array that was moved from is empty and may be filled again.
  HostArray(HostArray&& other) noexcept
      : memory_(std::move(other.memory_)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)),
        kind_(other.kind_) {}
  HostArray& operator=(HostArray&& other) noexcept {
    if (this != &other) {
      memory_ = std::move(other.memory_);
      size_ = std::exchange(other.size_, 0);
      capacity_ = std::exchange(other.capacity_, 0);
      kind_ = other.kind_;
    }
    return *this;
  }

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return static_cast<T*>(memory_.data()); }
  const T* data() const { return static_cast<const T*>(memory_.data()); }
  std::span<T> span() { return {data(), static_cast<size_t>(size_)}; }
  std::span<const T> span() const { return {data(), static_cast<size_t>(size_)}; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return data()[i]; }

  /// Keeps the first min(old, new) elements; new ones are unspecified.
  void resize(int64_t size) {
    reserve(size);
    size_ = size;
  }
  void reserve(int64_t capacity) {
    if (capacity <= capacity_) return;
    capacity = std::max(capacity, capacity_ + capacity_ / 2);
    Buffer grown(Device::cpu(), capacity * static_cast<int64_t>(sizeof(T)), Purpose::kBatch, kind_);
    if (size_ > 0)
      std::memcpy(grown.data(), memory_.data(), static_cast<size_t>(size_) * sizeof(T));
    memory_ = std::move(grown);
    capacity_ = capacity;
  }
  void push_back(T value) {
    resize(size_ + 1);
    data()[size_ - 1] = value;
  }
  void assign(std::span<const T> values) {
    size_ = 0;
    resize(static_cast<int64_t>(values.size()));
    if (!values.empty()) std::memcpy(data(), values.data(), values.size_bytes());
  }
  /// What further memory is taken as; what there is stays.
  void set_memory(HostMemory kind) { kind_ = kind; }
  bool pinned() const { return memory_.pinned(); }
  /// A view for ops; valid until the next resize.
  Tensor tensor() const { return Tensor(memory_.data(), kDTypeOf<T>, Device::cpu(), {size_}); }

 private:
  Buffer memory_;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
  HostMemory kind_ = HostMemory::kPageable;
};

}  // namespace segue
