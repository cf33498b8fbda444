#pragma once

#include <cstdint>
#include <span>

#include "tensor/tensor.h"

namespace segue {

/// Rows of many sequences packed one after the other: sequence b owns rows offsets[b] ..
/// offsets[b+1]. Offsets live on the host, where sizes are needed to launch work; `device_offsets`
/// is the copy a kernel reads (the same memory on the CPU).
struct Jagged {
  Tensor values;                     // [total_rows, ...]
  std::span<const int64_t> offsets;  // [sequences + 1]
  Tensor device_offsets;             // i64 [sequences + 1]

  int64_t sequences() const { return static_cast<int64_t>(offsets.size()) - 1; }
  int64_t total_rows() const { return offsets.back() - offsets.front(); }
  int64_t length(int64_t b) const {
    return offsets[static_cast<size_t>(b) + 1] - offsets[static_cast<size_t>(b)];
  }
};

}  // namespace segue
