#include <algorithm>
#include <cstdint>
#include <string>

#include <cuda_runtime.h>

#include "base/error.h"
#include "base/rng.h"
#include "ops/initial_values.h"
#include "ops/initialize_cuda.h"

namespace segue::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMostBlocks = 16384;

void check(cudaError_t rc) {
  if (rc == cudaSuccess) return;
  fail(ErrorCode::kUnsupported,
       std::string("CUDA: initialising values: ") + cudaGetErrorString(rc));
}

unsigned blocks_for(int64_t threads) {
  return static_cast<unsigned>(
      std::min(kMostBlocks, std::max<int64_t>(1, (threads + kThreads - 1) / kThreads)));
}

/// Which rows are made, and where they go.
struct Rows {
  int64_t count = 0;
  const int64_t* numbers = nullptr;  // null: from 0
  const int64_t* keys = nullptr;     // instead of numbers: mixed ones
  const int64_t* slots = nullptr;    // null: row i goes to row i
  const uint8_t* is_new = nullptr;   // which rows; null: all, or with `slots` those without one

  __device__ uint64_t number(int64_t i) const {
    if (keys != nullptr) return base::splitmix64_inverse(static_cast<uint64_t>(keys[i]));
    return static_cast<uint64_t>(numbers == nullptr ? i : numbers[i]);
  }
  /// Where row i goes; -1: nowhere.
  __device__ int64_t place(int64_t i) const {
    if (is_new != nullptr) return is_new[i] != 0 ? slots[i] : -1;
    return slots != nullptr && slots[i] >= 0 ? -1 : i;
  }
};

struct Target {
  int64_t columns, stride, groups, first_column;
  bool vectors;  // groups are whole and lie on 16 bytes
};

/// A thread makes four columns of a row, the unit of one Philox call.
template <class T>
__global__ void initialize_kernel(T* data, Target p, Rows rows, RowInit init) {
  const int64_t total = rows.count * p.groups;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t row = i / p.groups;
    const int64_t place = rows.place(row);
    if (place < 0) continue;
    const int64_t group = i - row * p.groups + p.first_column / 4;
    double wide[4];
    four_initial_values(init.kind, init.bound, init.seed, init.name_hash, rows.number(row),
                        static_cast<uint32_t>(group), wide);
    T values[4];
    for (int k = 0; k < 4; ++k) values[k] = static_cast<T>(wide[k]);
    const int64_t first = group * 4 - p.first_column;  // negative: the group begins before us
    T* to = data + place * p.stride + first;
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

template <class T>
__global__ void zero_kernel(T* data, int64_t columns, int64_t stride, Rows rows) {
  const int64_t total = rows.count * columns;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t place = rows.place(i / columns);
    if (place >= 0) data[place * stride + i % columns] = T{0};
  }
}

template <class F>
void dispatch(DType dtype, F f) {
  SEGUE_ASSERT(dtype == DType::kF32 || dtype == DType::kF64, "initialize: float or double");
  if (dtype == DType::kF64) return f(double{});
  f(float{});
}

void launch(const Tensor& matrix, const RowInit& init, const Rows& rows, int64_t first_column,
            cudaStream_t stream) {
  const int64_t columns = matrix.size(1);
  if (rows.count == 0 || columns == 0) return;
  const bool vectors = first_column % 4 == 0 && matrix.stride(0) % 4 == 0 &&
                       reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
  const int64_t groups = (first_column + columns + 3) / 4 - first_column / 4;
  const Target target{columns, matrix.stride(0), groups, first_column, vectors};
  dispatch(matrix.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    initialize_kernel<<<blocks_for(rows.count * groups), kThreads, 0, stream>>>(
        static_cast<T*>(matrix.data), target, rows, init);
  });
  check(cudaGetLastError());
}

void run(const Tensor& matrix, const RowInit& init, const int64_t* row_numbers,
         int64_t first_column) {
  if (matrix.elements() == 0) return;
  int previous = 0;
  check(cudaGetDevice(&previous));
  check(cudaSetDevice(matrix.device.index));
  launch(matrix, init, {.count = matrix.size(0), .numbers = row_numbers}, first_column, nullptr);
  check(cudaStreamSynchronize(nullptr));
  check(cudaSetDevice(previous));
}

cudaStream_t stream_of(const Exec& exec) {
  return exec.stream == nullptr ? nullptr : static_cast<cudaStream_t>(exec.stream->handle());
}

const int64_t* numbers_of(const Tensor& t) {
  SEGUE_ASSERT(t.dtype == DType::kI64 && t.device.is_cuda(), "keys and slots are i64 on the GPU");
  return static_cast<const int64_t*>(t.data);
}

}  // namespace

void initialize(const Tensor& matrix, const RowInit& init) { run(matrix, init, nullptr, 0); }

void initialize_part(const Tensor& to, const RowInit& init, const Tensor& row_numbers,
                     int64_t first_column) {
  run(to, init, static_cast<const int64_t*>(row_numbers.data), first_column);
}

void initialize_new_rows(const Exec& exec, const RowInit& init, const Tensor& keys,
                         const Tensor& slots, const Tensor& is_new, const Tensor& weights,
                         const Tensor& state) {
  const Rows rows{.count = keys.elements(),
                  .keys = numbers_of(keys),
                  .slots = numbers_of(slots),
                  .is_new = static_cast<const uint8_t*>(is_new.data)};
  launch(weights, init, rows, 0, stream_of(exec));
  const int64_t columns = state.size(1);
  if (rows.count == 0 || columns == 0) return;
  dispatch(state.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    zero_kernel<<<blocks_for(rows.count * columns), kThreads, 0, stream_of(exec)>>>(
        static_cast<T*>(state.data), columns, state.stride(0), rows);
  });
  check(cudaGetLastError());
}

void initialize_missing_rows(const Exec& exec, const RowInit& init, const Tensor& keys, bool mixed,
                             const Tensor& slots, const Tensor& to) {
  const Rows rows{.count = keys.elements(),
                  .numbers = mixed ? nullptr : numbers_of(keys),
                  .keys = mixed ? numbers_of(keys) : nullptr,
                  .slots = numbers_of(slots)};
  launch(to, init, rows, 0, stream_of(exec));
}

}  // namespace segue::ops::cuda
