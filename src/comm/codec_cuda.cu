#include <algorithm>
#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "base/error.h"
#include "comm/codec.h"

namespace segue::comm::detail {
namespace {

struct Plain {
  using Type = float;
  static __device__ float encode(float value) { return value; }
  static __device__ float decode(float value) { return value; }
};
struct Half {
  using Type = __half;
  static __device__ __half encode(float value) {
    constexpr float kMost = 65504.0f;
    return __float2half_rn(value > kMost ? kMost : (value < -kMost ? -kMost : value));
  }
  static __device__ float decode(__half value) { return __half2float(value); }
};
struct Brain {
  using Type = __nv_bfloat16;
  static __device__ __nv_bfloat16 encode(float value) {
    constexpr float kMost = 3.3895313892515355e38f;
    return __float2bfloat16_rn(value > kMost ? kMost : (value < -kMost ? -kMost : value));
  }
  static __device__ float decode(__nv_bfloat16 value) { return __bfloat162float(value); }
};

template <class Wire>
__global__ void encode_kernel(const float* rows, int64_t stride, int64_t columns, int64_t total,
                              typename Wire::Type* to) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t row = i / columns;
    to[i] = Wire::encode(rows[row * stride + (i - row * columns)]);
  }
}

template <class Wire>
__global__ void decode_kernel(const typename Wire::Type* from, int64_t columns, int64_t total,
                              float* rows, int64_t stride) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t row = i / columns;
    rows[row * stride + (i - row * columns)] = Wire::decode(from[i]);
  }
}

void check(cudaError_t rc) {
  if (rc != cudaSuccess) {
    fail(ErrorCode::kUnsupported, std::string("CUDA: wire codec: ") + cudaGetErrorString(rc));
  }
}

template <class Use>
void with_wire(WireType wire, Use&& use) {
  switch (wire) {
    case WireType::kPlain:
      return use(Plain{});
    case WireType::kBf16:
      return use(Brain{});
    case WireType::kF16:
      return use(Half{});
  }
}

constexpr int kThreads = 256;

unsigned blocks_for(int64_t total) {
  constexpr int64_t kMostBlocks = 16 * 132;
  return static_cast<unsigned>(std::min(kMostBlocks, (total + kThreads - 1) / kThreads));
}

cudaStream_t stream_for(const Tensor& rows, const Stream* stream) {
  if (rows.dtype != DType::kF32) fail(ErrorCode::kUnsupported, "a GPU has no double on the wire");
  check(cudaSetDevice(rows.device.index));
  return stream == nullptr ? nullptr : static_cast<cudaStream_t>(stream->handle());
}

}  // namespace

void encode_cuda(const Tensor& rows, WireType wire, void* to, const Stream* stream) {
  const cudaStream_t s = stream_for(rows, stream);
  with_wire(wire, [&](auto kind) {
    using Wire = decltype(kind);
    encode_kernel<Wire><<<blocks_for(rows.elements()), kThreads, 0, s>>>(
        static_cast<const float*>(rows.data), rows.stride(0), rows.size(1), rows.elements(),
        static_cast<typename Wire::Type*>(to));
  });
  check(cudaGetLastError());
}

void decode_cuda(const void* from, WireType wire, const Tensor& rows, const Stream* stream) {
  const cudaStream_t s = stream_for(rows, stream);
  with_wire(wire, [&](auto kind) {
    using Wire = decltype(kind);
    decode_kernel<Wire><<<blocks_for(rows.elements()), kThreads, 0, s>>>(
        static_cast<const typename Wire::Type*>(from), rows.size(1), rows.elements(),
        static_cast<float*>(rows.data), rows.stride(0));
  });
  check(cudaGetLastError());
}

}  // namespace segue::comm::detail
