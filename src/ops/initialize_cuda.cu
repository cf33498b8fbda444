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
  int64_t rows, columns, stride, groups;
  const int64_t* row_numbers;  // null: from 0
  int64_t first_column;
  uint64_t seed, name_hash;
  double bound;
  Init kind;
  bool vectors;  // groups are whole and lie on 16 bytes
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
    const int64_t group = i - row * p.groups + p.first_column / 4;
    T values[4];
    if (p.kind == Init::kUniform) {
      const int64_t number = p.row_numbers == nullptr ? row : p.row_numbers[row];
      const base::PhiloxCounter bits = base::init_bits(
          p.seed, p.name_hash, static_cast<uint64_t>(number), static_cast<uint32_t>(group));
      const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
      for (int k = 0; k < 4; ++k) {
        const double unit = 2.0 * static_cast<double>(base::uniform_f32(words[k])) - 1.0;
        values[k] = static_cast<T>(p.bound * unit);
      }
    } else {
      for (int k = 0; k < 4; ++k) values[k] = p.kind == Init::kOnes ? T{1} : T{0};
    }
    const int64_t first = group * 4 - p.first_column;  // negative: the group begins before us
    T* to = data + row * p.stride + first;
    const int64_t left = p.columns - first;
    if constexpr (sizeof(T) == 4) {
      if (p.vectors && left >= 4) {
        *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
        continue;
      }
    }
    for (int k = first < 0 ? static_cast<int>(-first) : 0; k < 4 && k < left; ++k) {
      to[k] = values[k];
    }
  }
}

void run(const Tensor& matrix, Init kind, double bound, uint64_t seed, uint64_t name_hash,
         const int64_t* row_numbers, int64_t first_column) {
  if (matrix.elements() == 0) return;
  int previous = 0;
  check(cudaGetDevice(&previous));
  check(cudaSetDevice(matrix.device.index));
  const int64_t columns = matrix.size(1);
  const bool vectors = first_column % 4 == 0 && matrix.stride(0) % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
  const int64_t groups = (first_column + columns + 3) / 4 - first_column / 4;
  const Task task{matrix.size(0), columns, matrix.stride(0), groups, row_numbers,
                  first_column,   seed,    name_hash,        bound,  kind,
                  vectors};
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

}  // namespace

void initialize(const Tensor& matrix, Init kind, double bound, uint64_t seed, uint64_t name_hash) {
  run(matrix, kind, bound, seed, name_hash, nullptr, 0);
}

void initialize_part(const Tensor& to, double bound, uint64_t seed, uint64_t name_hash,
                     const Tensor& row_numbers, int64_t first_column) {
  run(to, Init::kUniform, bound, seed, name_hash, static_cast<const int64_t*>(row_numbers.data),
      first_column);
}

}  // namespace segue::ops::cuda
