#include <algorithm>
#include <cstdint>
#include <string>

#include <cuda_runtime.h>

#include "base/error.h"
#include "base/rng.h"
#include "ops/initial_values.h"
#include "ops/initialize_cuda.h"
#include "tensor/launches.h"

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

struct Target {
  int64_t columns, stride, groups, first_column;
  bool vectors;  // groups are whole and lie on 16 bytes
};

/// A thread makes four columns of a row, the unit of one Philox call.
template <class T>
__global__ void initialize_kernel(T* data, Target p, int64_t rows, const int64_t* numbers,
                                  RowInit init) {
  const int64_t total = rows * p.groups;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < total;
       i += step) {
    const int64_t row = i / p.groups;
    const auto number = static_cast<uint64_t>(numbers == nullptr ? row : numbers[row]);
    const int64_t group = i - row * p.groups + p.first_column / 4;
    double wide[4];
    four_initial_values(init.kind, init.bound, init.seed, init.name_hash, number,
                        static_cast<uint32_t>(group), wide);
    T values[4];
    for (int k = 0; k < 4; ++k) values[k] = static_cast<T>(wide[k]);
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

constexpr int kWarp = 32;
constexpr int kMaxTables = 16;  // of one launch: their list is a kernel parameter

/// Which rows of one table are made, and where they go.
struct SomeRows {
  RowInit init;
  const int64_t* keys;
  bool mixed;
  const int64_t* slots;
  const uint8_t* is_new;  // null: rows without a slot are made
  const int32_t* of;      // row i stands for key of[i] - first; null: for key i
  int64_t first;
  void* to;
  int64_t stride, columns;
  bool vectors;
  void* state;
  int64_t state_columns;  // they lie without gaps
  int64_t rows;
  int64_t end;  // one past its last warp, counted through all tables
};
struct SomeRowsList {
  SomeRows tables[kMaxTables];
};

/// A warp looks at 32 rows and makes those that are wanted, most often none, one after the other.
template <class T>
__global__ void __launch_bounds__(kThreads)
    initialize_some_kernel(const __grid_constant__ SomeRowsList list, int64_t warps) {
  const int64_t warp = static_cast<int64_t>(blockIdx.x) * (kThreads / kWarp) + threadIdx.x / kWarp;
  if (warp >= warps) return;
  int which = 0;
  while (warp >= list.tables[which].end) ++which;
  const SomeRows& t = list.tables[which];
  const auto lane = static_cast<int>(threadIdx.x % kWarp);
  const int64_t i = (warp - (which == 0 ? 0 : list.tables[which - 1].end)) * kWarp + lane;
  int64_t place = -1;
  uint64_t number = 0;
  int64_t at = i < t.rows ? i : -1;
  if (at >= 0 && t.of != nullptr) at = t.of[i] < 0 ? -1 : t.of[i] - t.first;
  if (at >= 0 && (t.is_new == nullptr || t.is_new[at] != 0)) {
    const int64_t slot = t.slots[at];
    if (t.is_new != nullptr) place = slot;
    if (t.is_new == nullptr && slot < 0) place = i;
    if (place >= 0) {
      const auto key = static_cast<uint64_t>(t.keys[at]);
      number = t.mixed ? base::splitmix64_inverse(key) : key;
    }
  }
  for (unsigned todo = __ballot_sync(~0u, place >= 0); todo != 0; todo &= todo - 1) {
    const int from = __ffs(static_cast<int>(todo)) - 1;
    const int64_t row = __shfl_sync(~0u, place, from);
    const uint64_t own = __shfl_sync(~0u, number, from);
    T* const to = static_cast<T*>(t.to) + row * t.stride;
    for (int64_t first = lane * 4; first < t.columns; first += kWarp * 4) {
      double wide[4];
      four_initial_values(t.init.kind, t.init.bound, t.init.seed, t.init.name_hash, own,
                          static_cast<uint32_t>(first / 4), wide);
      if constexpr (sizeof(T) == 4) {
        if (t.vectors && first + 4 <= t.columns) {
          *reinterpret_cast<float4*>(to + first) =
              make_float4(static_cast<float>(wide[0]), static_cast<float>(wide[1]),
                          static_cast<float>(wide[2]), static_cast<float>(wide[3]));
          continue;
        }
      }
      for (int k = 0; k < 4 && first + k < t.columns; ++k) to[first + k] = static_cast<T>(wide[k]);
    }
    T* const state = static_cast<T*>(t.state) + row * t.state_columns;
    for (int64_t c = lane; c < t.state_columns; c += kWarp) state[c] = T{0};
  }
}

template <class F>
void dispatch(DType dtype, F f) {
  SEGUE_ASSERT(dtype == DType::kF32 || dtype == DType::kF64, "initialize: float or double");
  if (dtype == DType::kF64) return f(double{});
  f(float{});
}

/// Groups of four columns lie on 16 bytes.
bool on_vectors(const Tensor& matrix) {
  return matrix.stride(0) % 4 == 0 && reinterpret_cast<uintptr_t>(matrix.data) % 16 == 0;
}

void launch(const Tensor& matrix, const RowInit& init, const int64_t* numbers, int64_t first_column,
            cudaStream_t stream) {
  const int64_t rows = matrix.size(0), columns = matrix.size(1);
  if (rows == 0 || columns == 0) return;
  const bool vectors = first_column % 4 == 0 && on_vectors(matrix);
  const int64_t groups = (first_column + columns + 3) / 4 - first_column / 4;
  const Target target{columns, matrix.stride(0), groups, first_column, vectors};
  dispatch(matrix.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    initialize_kernel<<<blocks_for(rows * groups), kThreads, 0, stream>>>(
        static_cast<T*>(matrix.data), target, rows, numbers, init);
  });
  check(cudaGetLastError());
}

void run(const Tensor& matrix, const RowInit& init, const int64_t* row_numbers,
         int64_t first_column) {
  if (matrix.elements() == 0) return;
  int previous = 0;
  check(cudaGetDevice(&previous));
  check(cudaSetDevice(matrix.device.index));
  launch(matrix, init, row_numbers, first_column, nullptr);
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

DType dtype_of(const NewRows& t) { return t.weights.dtype; }
DType dtype_of(const MissingRows& t) { return t.to.dtype; }

SomeRows rows_of(const RowInit& init, const Tensor& keys, const Tensor& slots, const Tensor& to) {
  SomeRows s{};
  s.init = init;
  s.keys = numbers_of(keys);
  s.slots = numbers_of(slots);
  s.to = to.data;
  s.stride = to.stride(0);
  s.columns = to.size(1);
  s.vectors = on_vectors(to);
  return s;
}

/// Tables of one type.
template <class Table, class Describe>
void make_some(const Exec& exec, std::span<const Table> tables, Describe describe) {
  while (!tables.empty()) {
    const auto some = tables.first(std::min<size_t>(tables.size(), kMaxTables));
    tables = tables.subspan(some.size());
    SomeRowsList list{};
    int64_t warps = 0;
    for (size_t i = 0; i < some.size(); ++i) {
      list.tables[i] = describe(some[i]);
      warps += (list.tables[i].rows + kWarp - 1) / kWarp;
      list.tables[i].end = warps;
    }
    if (warps == 0) continue;
    const int64_t blocks = (warps * kWarp + kThreads - 1) / kThreads;
    dispatch(dtype_of(some.front()), [&](auto zero_value) {
      initialize_some_kernel<decltype(zero_value)>
          <<<static_cast<unsigned>(blocks), kThreads, 0, stream_of(exec)>>>(list, warps);
    });
    check(cudaGetLastError());
    count_launches(1);
  }
}

}  // namespace

void initialize(const Tensor& matrix, const RowInit& init) { run(matrix, init, nullptr, 0); }

void initialize_part(const Tensor& to, const RowInit& init, const Tensor& row_numbers,
                     int64_t first_column, const Stream* stream) {
  const auto* numbers = static_cast<const int64_t*>(row_numbers.data);
  if (stream == nullptr) return run(to, init, numbers, first_column);
  launch(to, init, numbers, first_column, static_cast<cudaStream_t>(stream->handle()));
}

void initialize_new_rows(const Exec& exec, std::span<const NewRows> tables) {
  make_some(exec, tables, [](const NewRows& t) {
    SEGUE_ASSERT(t.state.is_contiguous() && t.state.dtype == t.weights.dtype,
                 "the state of rows lies without gaps, in their type");
    SomeRows s = rows_of(t.init, t.keys, t.slots, t.weights);
    s.mixed = true;
    s.is_new = static_cast<const uint8_t*>(t.is_new.data);
    s.rows = t.keys.elements();
    s.state = t.state.data;
    s.state_columns = t.state.size(1);
    return s;
  });
}

void initialize_missing_rows(const Exec& exec, std::span<const MissingRows> tables) {
  make_some(exec, tables, [](const MissingRows& t) {
    SomeRows s = rows_of(t.init, t.keys, t.slots, t.to);
    s.mixed = t.mixed;
    s.of = t.of ? static_cast<const int32_t*>(t.of.data) : nullptr;
    s.first = t.first;
    s.rows = t.to.size(0);
    return s;
  });
}

}  // namespace segue::ops::cuda
