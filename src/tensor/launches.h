#pragma once

#include <cstdint>

namespace segue {

/// Kernels that the calling thread has started on GPUs so far, those of libraries included; copies
/// and memsets are not counted. What a step costs the host is the difference over it.
int64_t launches();
void count_launches(int64_t kernels);

}  // namespace segue
