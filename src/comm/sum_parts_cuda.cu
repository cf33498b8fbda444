#include <algorithm>
#include <string>

#include <cuda_runtime.h>

#include "base/error.h"
#include "comm/sum_parts.h"

namespace segue::comm::detail {
namespace {

template <class Real>
__global__ void sum_kernel(Real* out, const Real* parts, int num_parts, int64_t count) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count;
       i += stride) {
    Real sum = parts[i];
    for (int p = 1; p < num_parts; ++p) sum += parts[p * count + i];
    out[i] = sum;
  }
}

}  // namespace

void sum_parts_cuda(void* out, const void* parts, int num_parts, int64_t count, DType dtype,
                    Device device, const Stream* stream) {
  constexpr int64_t kThreads = 256, kMostBlocks = 2048;
  cudaSetDevice(device.index);
  const auto handle = stream != nullptr ? static_cast<cudaStream_t>(stream->handle()) : nullptr;
  const auto blocks =
      static_cast<unsigned>(std::min(kMostBlocks, (count + kThreads - 1) / kThreads));
  if (dtype == DType::kF64) {
    sum_kernel<<<blocks, kThreads, 0, handle>>>(
        static_cast<double*>(out), static_cast<const double*>(parts), num_parts, count);
  } else {
    SEGUE_ASSERT(dtype == DType::kF32, "sums over ranks are of f32 or f64");
    sum_kernel<<<blocks, kThreads, 0, handle>>>(static_cast<float*>(out),
                                                static_cast<const float*>(parts), num_parts, count);
  }
  const cudaError_t rc = cudaGetLastError();
  if (rc != cudaSuccess) {
    fail(ErrorCode::kUnsupported, std::string("CUDA: ") + cudaGetErrorString(rc));
  }
}

}  // namespace segue::comm::detail
