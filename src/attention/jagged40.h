#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"

namespace segue::attention {

/// The batch that kernels are compared on: 256 sequences of 1 to 3,276 tokens, 40 % of a budget of
/// 4096 on average, 423,792 tokens in all.
inline std::vector<int64_t> jagged40_lengths() {
  std::vector<int64_t> lengths;
  int64_t total = 0;
  uint64_t state = 1234;
  for (int i = 0; i < 256; ++i) {
    lengths.push_back(1 + static_cast<int64_t>(base::splitmix64(state) % 3276));
    state += 0x9e3779b97f4a7c15;  // base::splitmix64(x) is the output that follows state x
    total += lengths.back();
  }
  *std::max_element(lengths.begin(), lengths.end()) -= total % 16;
  return lengths;
}

}  // namespace segue::attention
