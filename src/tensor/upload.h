#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "tensor/event.h"
#include "tensor/exec.h"
#include "tensor/host_array.h"

namespace segue {

/// Host arrays that ops will read, side by side in one block, so that all of them reach a GPU in
/// one copy. Filled on the host, by any one thread; memory, also that of the copy, is kept when it
/// is filled again.
class UploadBlock {
 public:
  /// Names one array of the block.
  template <class T>
  struct Part {
    int64_t at = 0, count = 0;  // bytes, elements
  };

  /// Where ops find the arrays: the host block itself, or its copy on a GPU.
  class Placed {
   public:
    template <class T>
    Tensor tensor(Part<T> part) const {
      return {base_ + part.at, kDTypeOf<T>, device_, {part.count}};
    }

   private:
    friend class UploadBlock;
    char* base_ = nullptr;
    Device device_;
  };

  void clear() {
    bytes_.resize(0);
    sent_ = false;
  }
  /// What further memory is taken as; copies out of pinned memory do not wait.
  void set_memory(HostMemory kind) { bytes_.set_memory(kind); }

  /// An array of `count` unspecified elements.
  template <class T>
  Part<T> add(int64_t count) {
    const Part<T> part{(bytes_.size() + kAlignment - 1) / kAlignment * kAlignment, count};
    bytes_.resize(part.at + count * static_cast<int64_t>(sizeof(T)));
    return part;
  }
  template <class T>
  Part<T> add(std::span<const T> values) {
    const Part<T> part = add<T>(static_cast<int64_t>(values.size()));
    std::ranges::copy(values, span(part).begin());
    return part;
  }
  /// Valid until the next add().
  template <class T>
  std::span<T> span(Part<T> part) {
    return {reinterpret_cast<T*>(bytes_.data() + part.at), static_cast<size_t>(part.count)};
  }
  template <class T>
  std::span<const T> span(Part<T> part) const {
    return {reinterpret_cast<const T*>(bytes_.data() + part.at), static_cast<size_t>(part.count)};
  }

  /// Starts the one copy, on `stream`, behind whatever still reads the last one (see release); the
  /// block must not change before it is done. On the CPU nothing moves.
  void send(const Stream& stream);
  /// For ops on exec's stream, which waits for the copy; send() goes before where nobody called it.
  Placed place(const Exec& exec);
  /// What `stream` has been given so far is the last to read the copy. Needed where send() uses
  /// another stream.
  void release(const Stream& stream) { released_.record(stream); }
  /// Memory of the copy, to be taken at once rather than when it is needed.
  void reserve_copy(Device device, int64_t bytes);

 private:
  static constexpr int64_t kAlignment = 256;
  HostArray<uint8_t> bytes_;
  Buffer copy_;
  bool sent_ = false;
  Event arrived_, released_;
};

}  // namespace segue
