#pragma once

#include <source_location>
#include <string>

#include <cuda_runtime.h>

#include "base/error.h"

namespace segue::attention {

inline void check_cuda(cudaError_t rc, std::source_location at = std::source_location::current()) {
  if (rc == cudaSuccess) return;
  fail(rc == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported,
       std::string("CUDA: ") + cudaGetErrorString(rc) + " (" + at.file_name() + ":" +
           std::to_string(at.line()) + ")");
}

}  // namespace segue::attention
