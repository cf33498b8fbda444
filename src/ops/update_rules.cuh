#pragma once

#include "ops/kernel.cuh"

// What updates of rows share.

namespace segue::ops::cuda {

inline constexpr int kMaxTables = 16;  // of one launch: their list is a kernel parameter

/// Values that must all be finite for anything to change.
struct Finite {
  const double* values;
  int64_t count;

  explicit Finite(const Tensor& t) : values(device_ptr<double>(t)), count(t ? t.elements() : 0) {}
  __device__ bool all() const {
    bool good = true;
    for (int64_t i = 0; i < count; ++i) good = good && isfinite(values[i]);
    return good;
  }
};

/// What is left of a gradient after a trip over the wire.
enum class WireRounding { kNone, kF16, kBf16 };
__device__ inline float through(WireRounding wire, float x) {
  if (wire == WireRounding::kF16) return rounded<f16>(x);
  return wire == WireRounding::kBf16 ? rounded<bf16>(x) : x;
}

inline WireRounding rounding_of(DType wire) {
  if (wire == DType::kF16) return WireRounding::kF16;
  return wire == DType::kBf16 ? WireRounding::kBf16 : WireRounding::kNone;
}

}  // namespace segue::ops::cuda
