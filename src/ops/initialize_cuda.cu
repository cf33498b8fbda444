#include <algorithm>
#include <cstdint>
#include <string>

#include <cuda_runtime.h>

#include "base/error.h"
#include "base/rng.h"
#include "ops/initialize_cuda.h"

namespace segue::ops::cuda {
namespace {

void check(cudaError_t rc) {
  if (rc == cudaSuccess) return;
  fail(ErrorCode::kUnsupported,
       std::string("CUDA: initialising values: ") + cudaGetErrorString(rc));
}

struct Task {
  int64_t rows, columns, stride, first_row, groups;
  uint64_t seed, name_hash;
  double bound;
  Init kind;
  bool vectors;  // groups lie on 16 bytes
};

/// A thread makes four columns of a row, the unit of one Philox call. The arithmetic is that of the
/// CPU form, every operation of which is exact or rounds the same everywhere.
template <class T>
__global__ void initialize_kernel(T* data, Task p) {
  const int64_t total = p.rows * p.groups;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t row = i / p.groups;
    const int64_t group = i - row * p.groups;
    T values[4];
    if (p.kind == Init::kUniform) {
      const base::PhiloxCounter bits =
          base::init_bits(p.seed, p.name_hash, static_cast<uint64_t>(p.first_row + row),
                          static_cast<uint32_t>(group));
      const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
      for (int k = 0; k < 4; ++k) {
        const double unit = 2.0 * static_cast<double>(base::uniform_f32(words[k])) - 1.0;
        values[k] = static_cast<T>(p.bound * unit);
      }
    } else {
      for (int k = 0; k < 4; ++k) values[k] = p.kind == Init::kOnes ? T{1} : T{0};
    }
    T* to = data + row * p.stride + group * 4;
    const int64_t left = p.columns - group * 4;
    if constexpr (sizeof(T) == 4) {
      if (p.vectors && left >= 4) {
        *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
        continue;
      }
    }
    for (int k = 0; k < 4 && k < left; ++k) to[k] = values[k];
  }
}

}  // namespace

void initialize(const Tensor& matrix, Init kind, double bound, uint64_t seed, uint64_t name_hash,
                int64_t first_row) {
  if (matrix.elements() == 0) return;
  int previous = 0;
  check(cudaGetDevice(&previous));
  check(cudaSetDevice(matrix.device.index));
  const int64_t columns = matrix.size(1);
  const bool vectors =
      matrix.stride(0) % 4 == 0 && reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
  const Task task{
      matrix.size(0), columns, matrix.stride(0), first_row, (columns + 3) / 4, seed, name_hash,
      bound,          kind,    vectors};
  constexpr int kThreads = 256;
  constexpr int64_t kMostBlocks = 16384;
  const auto blocks = static_cast<unsigned>(
      std::min(kMostBlocks, (task.rows * task.groups + kThreads - 1) / kThreads));
  if (matrix.dtype == DType::kF64) {
    initialize_kernel<<<blocks, kThreads>>>(static_cast<double*>(matrix.data), task);
  } else {
    SEGUE_ASSERT(matrix.dtype == DType::kF32, "initialize: float or double");
    initialize_kernel<<<blocks, kThreads>>>(static_cast<float*>(matrix.data), task);
  }
  check(cudaGetLastError());
  check(cudaStreamSynchronize(nullptr));
  check(cudaSetDevice(previous));
}

}  // namespace segue::ops::cuda
