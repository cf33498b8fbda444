#include <algorithm>
#include <string>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "base/error.h"
#include "comm/codec.h"

namespace segue::comm::detail {
namespace {

// fminf and fmaxf would drop a NaN.
__device__ float clamped(float x, float most) {
  if (x > most) return most;
  return x < -most ? -most : x;
}

template <class To>
__device__ To narrowed(float x);
template <>
__device__ float narrowed<float>(float x) {
  return x;
}
template <>
__device__ bf16 narrowed<bf16>(float x) {
  bf16 y;
  y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(clamped(x, 0x1.fep127f)));
  return y;
}
template <>
__device__ f16 narrowed<f16>(float x) {
  f16 y;
  y.bits = __half_as_ushort(__float2half_rn(clamped(x, 65504.f)));
  return y;
}

__device__ float widened(float x) { return x; }
__device__ float widened(bf16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
__device__ float widened(f16 x) { return __half2float(__ushort_as_half(x.bits)); }

/// kW neighbours, moved by one instruction each way.
template <class T, int kW>
struct alignas(sizeof(T) * kW) Pack {
  T v[kW];
};

template <class From, class To, int kW>
__global__ void convert(const From* from, int64_t from_stride, To* to, int64_t to_stride,
                        int64_t rows, int64_t columns) {
  const int64_t packs = columns / kW, total = rows * packs;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += stride) {
    const int64_t row = i / packs, column = (i - row * packs) * kW;
    const auto in = *reinterpret_cast<const Pack<From, kW>*>(from + row * from_stride + column);
    Pack<To, kW> out;
#pragma unroll
    for (int j = 0; j < kW; ++j) out.v[j] = narrowed<To>(widened(in.v[j]));
    *reinterpret_cast<Pack<To, kW>*>(to + row * to_stride + column) = out;
  }
}

template <class T>
bool in_fours(const Tensor& t) {
  const auto align = 4 * sizeof(T);
  return t.size(1) % 4 == 0 && reinterpret_cast<uintptr_t>(t.data) % align == 0 &&
         (t.size(0) <= 1 || t.stride(0) % 4 == 0);
}

template <class From, class To>
void launch(const Tensor& from, const Tensor& to, const Stream* stream) {
  constexpr int64_t kThreads = 256, kMostBlocks = 4096;
  cudaSetDevice(from.device.index);
  const auto handle = stream != nullptr ? static_cast<cudaStream_t>(stream->handle()) : nullptr;
  const bool fours = in_fours<From>(from) && in_fours<To>(to);
  const int64_t items = from.elements() / (fours ? 4 : 1);
  const auto blocks =
      static_cast<unsigned>(std::min(kMostBlocks, (items + kThreads - 1) / kThreads));
  const auto kernel = fours ? convert<From, To, 4> : convert<From, To, 1>;
  kernel<<<blocks, kThreads, 0, handle>>>(static_cast<const From*>(from.data), from.stride(0),
                                          static_cast<To*>(to.data), to.stride(0), from.size(0),
                                          from.size(1));
  const cudaError_t rc = cudaGetLastError();
  if (rc != cudaSuccess) {
    fail(ErrorCode::kUnsupported, std::string("CUDA: ") + cudaGetErrorString(rc));
  }
}

}  // namespace

void encode_rows_cuda(const Tensor& rows, const Tensor& wire, const Stream* stream) {
  SEGUE_ASSERT(rows.dtype == DType::kF32, "GPU rows are f32");
  if (wire.dtype == DType::kF32) return launch<float, float>(rows, wire, stream);
  if (wire.dtype == DType::kBf16) return launch<float, bf16>(rows, wire, stream);
  SEGUE_ASSERT(wire.dtype == DType::kF16, "the wire is f32, bf16 or f16");
  launch<float, f16>(rows, wire, stream);
}

void decode_rows_cuda(const Tensor& wire, const Tensor& rows, const Stream* stream) {
  SEGUE_ASSERT(rows.dtype == DType::kF32, "GPU rows are f32");
  if (wire.dtype == DType::kF32) return launch<float, float>(wire, rows, stream);
  if (wire.dtype == DType::kBf16) return launch<bf16, float>(wire, rows, stream);
  SEGUE_ASSERT(wire.dtype == DType::kF16, "the wire is f32, bf16 or f16");
  launch<f16, float>(wire, rows, stream);
}

}  // namespace segue::comm::detail
