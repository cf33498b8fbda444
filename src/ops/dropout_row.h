#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rng.h"
#include "ops/dropout.h"

namespace segue::ops {

/// The CPU form of dropout for the rows of one tensor.
class DropoutRows {
 public:
  DropoutRows(const Exec& exec, const Dropout& dropout)
      : key_(exec.dropout_key),
        site_(dropout.site),
        active_(dropout.p > 0),
        threshold_(base::dropout_threshold(dropout.p)),
        scale_(1.0 / (1.0 - static_cast<double>(dropout.p))) {
    SEGUE_ASSERT(dropout.p >= 0 && dropout.p < 1, "dropout probability outside [0, 1)");
    if (!active_) return;
    sample_ = dropout.rows.sample.ptr<int32_t>();
    token_ = dropout.rows.token.ptr<int32_t>();
  }

  bool active() const { return active_; }

  /// y[c] = round(x[c] * scale) where column c is kept, else 0; forward and backward are the same
  /// map. y may be x.
  template <class T, class Rounding>
  void apply(int64_t row, int64_t columns, const T* x, T* y, Rounding round) const {
    const T scale = static_cast<T>(scale_);
    alignas(64) uint32_t words[kBlock];
    for (int64_t first = 0; first < columns; first += kBlock) {
      draw(row, first / 8, words);
      const int64_t count = std::min(kBlock, columns - first);
      const T* from = x + first;
      T* to = y + first;
#pragma GCC ivdep
      for (int64_t i = 0; i < count; ++i) {
        to[i] = words[i] >= threshold_ ? round(from[i] * scale) : T{0};
      }
    }
  }

 private:
  static constexpr int64_t kGroups = 16;  // Philox calls at a time
  static constexpr int64_t kBlock = 8 * kGroups;

  /// The 16-bit words of columns 8 * first_group and following: what base::dropout_keep_bits
  /// compares with the threshold. One call of Philox after the other is most of the cost of
  /// dropout; side by side they fill vector registers.
  void draw(int64_t row, int64_t first_group, uint32_t* words) const {
    const auto sample = static_cast<uint32_t>(sample_[row]);
    const auto token = static_cast<uint32_t>(token_[row]);
    uint32_t x[kGroups], y[kGroups], z[kGroups], w[kGroups];
    for (int64_t g = 0; g < kGroups; ++g) {
      const auto group = static_cast<uint32_t>(first_group + g);
      const base::PhiloxCounter r = base::philox({group, token, sample, site_}, key_);
      x[g] = r.x;
      y[g] = r.y;
      z[g] = r.z;
      w[g] = r.w;
    }
    for (int64_t g = 0; g < kGroups; ++g) {
      const uint32_t four[4] = {x[g], y[g], z[g], w[g]};
      for (int64_t i = 0; i < 4; ++i) {
        words[8 * g + 2 * i] = four[i] & 0xffffu;
        words[8 * g + 2 * i + 1] = four[i] >> 16;
      }
    }
  }

  base::PhiloxKey key_;
  uint32_t site_;
  bool active_;
  uint32_t threshold_;
  double scale_;
  const int32_t* sample_ = nullptr;
  const int32_t* token_ = nullptr;
};

}  // namespace segue::ops
