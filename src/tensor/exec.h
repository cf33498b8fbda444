#pragma once

#include <cstdint>

#include "base/rng.h"
#include "tensor/arena.h"
#include "tensor/device.h"
#include "tensor/tensor.h"

namespace segue {

/// How numbers are kept. kF64 exists for tests. On the CPU, kBf16 is the mode "bf16_rounded": float
/// storage and arithmetic, rounded to bf16 exactly where the GPU path stores bf16. It is the plain
/// implementation that GPU results are judged against.
enum class Precision : uint8_t { kF32, kF64, kBf16 };

namespace ops {
class DeferredSums;
}

/// A flat tensor and the same values in another type, made once because many ops want them.
struct TypedCopy {
  Tensor from, to;

  /// The place in `to` of a view into `from`; absent if `t` is none, or not wanted in `dtype`.
  Tensor find(const Tensor& t, DType dtype) const {
    const auto* begin = static_cast<const char*>(from.data);
    const auto* at = static_cast<const char*>(t.data);
    if (!from || dtype != to.dtype || at < begin || at >= begin + from.bytes()) return {};
    Tensor view = t;
    view.data = static_cast<char*>(to.data) + (at - begin) / size_of(from.dtype) * size_of(dtype);
    view.dtype = dtype;
    return view;
  }
};

/// Everything an op needs to know about where and how it runs; the first argument of every op.
/// A small value: copy it to change one thing (`exec.with(Precision::kF32)` for the fp32 item
/// path).
struct Exec {
  Arena* arena = nullptr;
  const Stream* stream = nullptr;
  Device device;
  Precision precision = Precision::kF32;
  base::PhiloxKey dropout_key;  // of this (seed, step)
  // Both may be absent, and change how much a GPU has to do, not what comes out:
  TypedCopy rounded_parameters;       // the model's parameters as products multiply them
  ops::DeferredSums* sums = nullptr;  // collects the last step of sums over rows

  Exec with(Precision p) const {
    Exec copy = *this;
    copy.precision = p;
    return copy;
  }
  bool rounds_to_bf16() const { return precision == Precision::kBf16; }
  /// Type of activations.
  DType dtype() const {
    if (precision == Precision::kF64) return DType::kF64;
    return precision == Precision::kBf16 && device.is_cuda() ? DType::kBf16 : DType::kF32;
  }
  /// Type of parameters, statistics and gradients of parameters.
  DType parameter_dtype() const { return precision == Precision::kF64 ? DType::kF64 : DType::kF32; }
  Tensor activation(std::initializer_list<int64_t> shape) const {
    return arena->tensor(dtype(), shape);
  }
  Tensor statistic(std::initializer_list<int64_t> shape) const {
    return arena->tensor(parameter_dtype(), shape);
  }
  Tensor index(std::initializer_list<int64_t> shape) const {
    return arena->tensor(DType::kI32, shape);
  }
};

/// The activation type's rounding on the CPU: identity, or a trip through bf16 in mode kBf16.
template <class T>
T round_activation(const Exec&, T value) {
  return value;
}
template <>
inline float round_activation<float>(const Exec& exec, float value) {
  return exec.rounds_to_bf16() ? round_to_bf16(value) : value;
}

/// Ops that have no CUDA form yet call this first: Error(kUnsupported) naming the op.
void require_cpu(const Exec& exec, const char* op);

}  // namespace segue
