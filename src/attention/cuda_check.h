#pragma once

#include <source_location>
#include <string>

#include <cuda_runtime.h>

#include "base/error.h"
#include "tensor/device.h"

namespace segue::attention {

inline void check_cuda(cudaError_t rc, std::source_location at = std::source_location::current()) {
  if (rc == cudaSuccess) return;
  fail(rc == cudaErrorMemoryAllocation ? ErrorCode::kOutOfMemory : ErrorCode::kUnsupported,
       std::string("CUDA: ") + cudaGetErrorString(rc) + " (" + at.file_name() + ":" +
           std::to_string(at.line()) + ")");
}

/// Makes a device current for one scope: launches and events belong to the current one.
class DeviceScope {
 public:
  explicit DeviceScope(Device device) {
    check_cuda(cudaGetDevice(&previous_));
    check_cuda(cudaSetDevice(device.index));
  }
  ~DeviceScope() { cudaSetDevice(previous_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

/// The first number of the device's compute capability.
inline int compute_major(Device device) {
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device.index));
  return major;
}

}  // namespace segue::attention
