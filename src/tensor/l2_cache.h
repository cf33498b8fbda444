#pragma once

#include <cstdint>

namespace segue {

/// Bytes of the second-level cache of a CUDA device; the device must exist.
int64_t cuda_l2_bytes(int index);

}  // namespace segue
