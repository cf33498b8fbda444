#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "data/log/event.h"

namespace segue::data {

/// Where the numbers of events lie: at one place until clear(), which keeps the memory.
class NumberArena {
 public:
  NumberArena() = default;
  NumberArena(NumberArena&& other) noexcept { *this = std::move(other); }
  NumberArena& operator=(NumberArena&& other) noexcept {
    std::swap(chunks_, other.chunks_);
    std::swap(chunk_, other.chunk_);
    std::swap(used_, other.used_);
    return *this;
  }

  std::span<float> add(size_t count) {
    if (chunk_ < chunks_.size() && used_ + count > kChunk) {
      ++chunk_;
      used_ = 0;
    }
    // Whoever fills it writes all of it.
    if (chunk_ == chunks_.size()) chunks_.emplace_back(new float[kChunk]);
    used_ += count;
    return {chunks_[chunk_].get() + used_ - count, count};
  }
  /// The event's numbers lie here from now on.
  void take(Event& event) {
    if (event.num_numbers == 0) return;
    const std::span<float> kept = add(event.num_numbers);
    std::ranges::copy(event.numbers(), kept.begin());
    event.set_numbers(kept);
  }
  void clear() { chunk_ = used_ = 0; }

 private:
  static constexpr size_t kChunk = 1 << 16;  // far more than an event has

  std::vector<std::unique_ptr<float[]>> chunks_;
  size_t chunk_ = 0, used_ = 0;
};

/// Events with what they refer to.
struct EventBlock {
  std::vector<Event> events;
  NumberArena numbers;

  void clear() {
    events.clear();
    numbers.clear();
  }
};

}  // namespace segue::data
