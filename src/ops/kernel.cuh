#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <source_location>
#include <string>
#include <type_traits>

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "base/bf16.h"
#include "tensor/exec.h"
#include "tensor/launches.h"

// What the CUDA forms of the ops share. Shape of nearly every kernel here: a warp owns a row, lanes
// own 8 neighbouring columns (16 bytes of bf16, one Philox call), blocks own contiguous rows.

namespace segue::ops::cuda {

inline constexpr int kWarp = 32;
inline constexpr int kWarpsPerBlock = 8;
inline constexpr int kThreads = kWarp * kWarpsPerBlock;
// Constants of the device class, never occupancy queries: the order of sums follows from them.
inline constexpr int64_t kMultiprocessors = 132;
inline constexpr int kPartialBlocksEach = 3;  // one loads while others compute
inline constexpr int64_t kPartialBlocks = kPartialBlocksEach * kMultiprocessors;
inline constexpr int64_t kMaxBlocks = 16 * kMultiprocessors;

inline void check_cuda(cudaError_t rc, std::source_location at = std::source_location::current()) {
  if (rc == cudaSuccess) return;
  fail(ErrorCode::kUnsupported, std::string("CUDA: ") + cudaGetErrorString(rc) + " (" +
                                    at.file_name() + ":" + std::to_string(at.line()) + ")");
}
inline void check_launch(std::source_location at = std::source_location::current()) {
  check_cuda(cudaGetLastError(), at);
  count_launches(1);
}

/// Makes the device of `exec` current and returns its stream.
inline cudaStream_t stream_of(const Exec& exec) {
  check_cuda(cudaSetDevice(exec.device.index));
  return exec.stream != nullptr ? static_cast<cudaStream_t>(exec.stream->handle()) : nullptr;
}

/// Lets a kernel take more shared memory than the 48 KiB that need no asking, some of which it may
/// have of its own.
template <class Kernel>
void allow_shared_memory(Kernel kernel, size_t bytes) {
  if (bytes <= 40 * 1024) return;
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(bytes)));
}

inline int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }
/// Blocks for a warp per row; a function of the rows alone.
inline unsigned row_blocks(int64_t rows, int64_t most = kMaxBlocks) {
  return static_cast<unsigned>(std::clamp<int64_t>(divide_up(rows, kWarpsPerBlock), 1, most));
}

// ---- views ----

template <class T>
T* device_ptr(const Tensor& t) {
  if (!t) return nullptr;
  SEGUE_ASSERT(t.dtype == kDTypeOf<T>, "CUDA op: tensor of another type");
  SEGUE_ASSERT(t.device.is_cuda() || t.elements() == 0, "CUDA op: host memory");
  return static_cast<T*>(t.data);
}

template <class T>
struct Matrix {
  T* data = nullptr;
  int64_t stride = 0;
  __device__ T* row(int64_t r) const { return data + r * stride; }
};
template <class T>
Matrix<T> matrix_of(const Tensor& t) {
  if (!t) return {};
  SEGUE_ASSERT(t.rank == 2 && (t.stride(1) == 1 || t.size(1) <= 1), "CUDA op: a matrix of rows");
  return {device_ptr<T>(t), t.stride(0)};
}
template <class T>
Matrix<const T> input_of(const Tensor& t) {
  const Matrix<T> view = matrix_of<T>(t);
  return {view.data, view.stride};
}

struct IndexView {
  const void* data;
  bool wide;
  __device__ int64_t operator[](int64_t i) const {
    return wide ? static_cast<const int64_t*>(data)[i] : static_cast<const int32_t*>(data)[i];
  }
};
inline IndexView index_of(const Tensor& t) {
  SEGUE_ASSERT(t.rank == 1 && t.is_contiguous(), "an index is a contiguous vector");
  if (t.dtype == DType::kI64) return {device_ptr<int64_t>(t), true};
  return {device_ptr<int32_t>(t), false};
}

/// Rows of all these matrices may be read and written 16 bytes at a time, 8 columns a lane.
inline bool can_vectorize(int64_t columns, std::initializer_list<Tensor> tensors) {
  if (columns % 8 != 0) return false;
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& t) {
    return !t || (reinterpret_cast<uintptr_t>(t.data) % 16 == 0 &&
                  (t.rank < 2 || t.size(0) <= 1 || t.stride(0) * size_of(t.dtype) % 16 == 0));
  });
}

/// Calls f with a value of the element type: float or bf16.
template <class F>
void dispatch_type(DType dtype, F&& f) {
  if (dtype == DType::kF32) return f(float{});
  if (dtype == DType::kBf16) return f(bf16{});
  fail(ErrorCode::kUnsupported, std::string("CUDA ops compute in f32 or bf16, not in ") +
                                    to_string(dtype) + "; use --device cpu");
}
/// The same with IEEE half, which is storage only.
template <class F>
void dispatch_storage(DType dtype, F&& f) {
  if (dtype == DType::kF16) return f(f16{});
  dispatch_type(dtype, f);
}

// ---- numbers ----

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(bf16 x) { return __uint_as_float(uint32_t{x.bits} << 16); }
__device__ inline float to_float(f16 x) { return __half2float(__ushort_as_half(x.bits)); }

template <class T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 from_float<bf16>(float x) {
  bf16 y;
  y.bits = __bfloat16_as_ushort(__float2bfloat16_rn(x));
  return y;
}
template <>
__device__ inline f16 from_float<f16>(float x) {
  f16 y;
  y.bits = __half_as_ushort(__float2half_rn(x));
  return y;
}
/// Two neighbouring elements of a 16-bit type, by one instruction.
template <class T>
__device__ uint32_t packed(float low, float high) {
  if constexpr (std::is_same_v<T, bf16>) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
  }
}
template <class T>
__device__ void unpack_pair(uint32_t pair, float& low, float& high) {
  T value;
  value.bits = static_cast<uint16_t>(pair);
  low = to_float(value);
  value.bits = static_cast<uint16_t>(pair >> 16);
  high = to_float(value);
}
/// x as it would survive being stored as T.
template <class T>
__device__ float rounded(float x) {
  return to_float(from_float<T>(x));
}

/// x, but not below -80; NaN stays. Keeps 1 + exp(-x) finite.
__device__ inline float above_minus_80(float x) {
  float y;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(-80.f));
  return y;
}
/// 1 / (1 + exp(-x)) for x >= -80 or NaN, by the special-function unit: enough where the result is
/// rounded to bf16. The forms that flush take no scaling around it, and nothing here is so small.
__device__ inline float fast_sigmoid(float x) {
  constexpr float kLog2E = 1.4426950408889634f;
  float e, s;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x * -kLog2E));
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(s) : "f"(1.f + e));
  return s;
}

/// All of them at once: two by one instruction, where a single one takes four times as long.
template <class T, int kW>
__device__ void round_all(float (&v)[kW]) {
  if constexpr (sizeof(T) == 2 && kW % 2 == 0) {
#pragma unroll
    for (int j = 0; j < kW; j += 2) unpack_pair<T>(packed<T>(v[j], v[j + 1]), v[j], v[j + 1]);
  } else {
#pragma unroll
    for (int j = 0; j < kW; ++j) v[j] = rounded<T>(v[j]);
  }
}

/// s = sigmoid(x) and its derivative s (1 - s). As exact as the library's for float, where 1 - s
/// would have lost its digits if s is near 1.
template <class T>
struct Sigmoid {
  float value, derivative;
  __device__ explicit Sigmoid(float x) {
    if constexpr (sizeof(T) == 2) {
      value = fast_sigmoid(above_minus_80(x));
      derivative = value * (1.f - value);
    } else {
      const float e = expf(x < 0 ? x : -x), sum = 1.f + e;
      value = (x < 0 ? e : 1.f) / sum;
      derivative = e / (sum * sum);
    }
  }
};
template <class T>
__device__ float sigmoid(float x) {
  return Sigmoid<T>(x).value;
}
template <class T>
struct Silu {
  float value, derivative;
  __device__ explicit Silu(float x) {
    constexpr bool kFast = sizeof(T) == 2;
    // Infinities are kept from meeting a 0: that would be NaN, which only NaN may give.
    const float low = kFast ? above_minus_80(x) : fmaxf(x, -1000.f);
    const float s = kFast ? fast_sigmoid(low) : sigmoid<T>(x);
    value = low * s;
    derivative = s * (1.f + fminf(low, 1000.f) * (1.f - s));
  }
};

__device__ inline float warp_sum(float x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}
__device__ inline double warp_sum(double x) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, offset);
  }
  return x;
}

/// By all threads of a block that has written its part: whether it is the last of `blocks` that
/// count at `done`, and may read the parts of all, with __ldcg. `done` is 0 before and after.
__device__ inline bool is_last_block(int32_t* done, int blocks) {
  __shared__ bool is_last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(done, 1) == blocks - 1;
    if (is_last) *done = 0;
  }
  __syncthreads();
  if (is_last) __threadfence();
  return is_last;
}

// ---- pieces of rows ----

/// kW neighbouring values: 8 or 4 of them lie aligned and move 16 or 8 bytes at a time.
template <int kW, class T>
__device__ void load(const T* from, float (&to)[kW]) {
  if constexpr (kW == 8 && sizeof(T) == 2) {
    const uint4 word = *reinterpret_cast<const uint4*>(from);
    const T* values = reinterpret_cast<const T*>(&word);
#pragma unroll
    for (int j = 0; j < 8; ++j) to[j] = to_float(values[j]);
  } else if constexpr (kW == 8) {
    const float4 low = reinterpret_cast<const float4*>(from)[0];
    const float4 high = reinterpret_cast<const float4*>(from)[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w;
    to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
  } else if constexpr (kW == 4 && sizeof(T) == 2) {
    const uint2 pairs = *reinterpret_cast<const uint2*>(from);
    unpack_pair<T>(pairs.x, to[0], to[1]);
    unpack_pair<T>(pairs.y, to[2], to[3]);
  } else if constexpr (kW == 4) {
    const float4 four = *reinterpret_cast<const float4*>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  } else {
#pragma unroll
    for (int j = 0; j < kW; ++j) to[j] = to_float(from[j]);
  }
}

template <int kW, class T>
__device__ void store(T* to, const float (&from)[kW]) {
  if constexpr (kW == 8 && sizeof(T) == 2) {
    uint4 word;
    uint32_t* pairs = reinterpret_cast<uint32_t*>(&word);
#pragma unroll
    for (int j = 0; j < 4; ++j) pairs[j] = packed<T>(from[2 * j], from[2 * j + 1]);
    *reinterpret_cast<uint4*>(to) = word;
  } else if constexpr (kW == 8) {
    reinterpret_cast<float4*>(to)[0] = make_float4(from[0], from[1], from[2], from[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(from[4], from[5], from[6], from[7]);
  } else if constexpr (kW == 4 && sizeof(T) == 2) {
    *reinterpret_cast<uint2*>(to) =
        make_uint2(packed<T>(from[0], from[1]), packed<T>(from[2], from[3]));
  } else if constexpr (kW == 4) {
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  } else {
#pragma unroll
    for (int j = 0; j < kW; ++j) to[j] = from_float<T>(from[j]);
  }
}

/// How many columns a lane takes at a time and how often, and how many lanes share a row, a warp or
/// several of one block: a row of up to kTeam * kW * kIters columns lies in their registers.
template <int kWidth, int kCount, int kLanes = kWarp>
struct Lanes {
  static constexpr int kW = kWidth, kIters = kCount, kTeam = kLanes;
  static constexpr int kColumns = kTeam * kWidth * kCount;
  static constexpr int kTeams = kThreads / kTeam;  // of a block: rows that it works on at once
  // More would not fit into registers; then arrays live in local memory and nothing is unrolled.
  static constexpr int kUnroll = kCount <= 32 ? kCount : 1;
  float v[kCount][kWidth];

  __device__ static int first(int i) {
    return (i * kTeam + static_cast<int>(threadIdx.x % kTeam)) * kWidth;
  }
  /// f(i, first column) for the pieces of this lane inside [0, columns).
  template <class F>
  __device__ static void for_each(int columns, F&& f) {
#pragma unroll kUnroll
    for (int i = 0; i < kCount; ++i) {
      if (first(i) < columns) f(i, first(i));
    }
  }
  /// A row as it lies in memory: what is loaded ahead of its use.
  template <class T>
  struct Raw {
    static constexpr bool kPacked = kWidth == 8 && sizeof(T) == 2;
    static constexpr int kWords = kPacked ? 4 : kWidth;
    using Word = std::conditional_t<kPacked, uint32_t, float>;
    Word words[kCount][kWords];

    __device__ void load_row(const T* row, int columns) { load_lane(row + first(0), columns); }
    /// The same from where this lane's first piece begins.
    __device__ void load_lane(const T* lane, int columns) {
      for_each(columns, [&](int i, int) {
        const T* piece = lane + i * kTeam * kWidth;
        if constexpr (kPacked) {
          const uint4 word = *reinterpret_cast<const uint4*>(piece);
          words[i][0] = word.x, words[i][1] = word.y, words[i][2] = word.z, words[i][3] = word.w;
        } else {
          load(piece, words[i]);
        }
      });
    }
    __device__ void unpack(int i, float (&to)[kWidth]) const {
      if constexpr (kPacked) {
#pragma unroll
        for (int j = 0; j < 4; ++j) unpack_pair<T>(words[i][j], to[2 * j], to[2 * j + 1]);
      } else {
#pragma unroll
        for (int j = 0; j < kWidth; ++j) to[j] = words[i][j];
      }
    }
    /// A piece as if it had been stored and loaded.
    __device__ void pack(int i, const float (&from)[kWidth]) {
      if constexpr (kPacked) {
#pragma unroll
        for (int j = 0; j < 4; ++j) words[i][j] = packed<T>(from[2 * j], from[2 * j + 1]);
      } else {
        for (int j = 0; j < kWidth; ++j) words[i][j] = rounded<T>(from[j]);
      }
    }
  };
  template <class T>
  __device__ void unpack(const Raw<T>& raw, int columns) {
    for_each(columns, [&](int i, int) { raw.unpack(i, v[i]); });
  }
  template <class T>
  __device__ void load_row(const T* row, int columns) {
    for_each(columns, [&](int i, int c) { load(row + c, v[i]); });
  }
  template <class T>
  __device__ void store_row(T* row, int columns) const {
    for_each(columns, [&](int i, int c) { store(row + c, v[i]); });
  }
};

/// The contiguous rows of this block; its warps, or other teams, take them in turn.
struct BlockRows {
  int64_t begin, end;
  __device__ explicit BlockRows(int64_t rows, int team = kWarp)
      : BlockRows(rows, team, blockIdx.x, gridDim.x) {}
  __device__ BlockRows(int64_t rows, int team, unsigned block, unsigned blocks) {
    const int64_t each = (rows + blocks - 1) / blocks;
    begin = static_cast<int64_t>(block) * each;
    end = begin + each < rows ? begin + each : rows;
    begin += static_cast<int>(threadIdx.x) / team;
  }
};

/// An index that is neither -1 nor inside its table is a broken batch: better no result than a
/// wrong one.
__device__ inline void require_row(int64_t row, int64_t rows) {
  if (row < 0 || row >= rows) __trap();
}

}  // namespace segue::ops::cuda
