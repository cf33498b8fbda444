#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>

#include "base/bf16.h"
#include "base/error.h"
#include "tensor/device.h"

namespace segue {

enum class DType : uint8_t { kF32, kF64, kBf16, kF16, kI32, kI64, kU8 };

int64_t size_of(DType dtype);
const char* to_string(DType dtype);

template <class T>
inline constexpr DType kDTypeOf = DType::kU8;
template <>
inline constexpr DType kDTypeOf<float> = DType::kF32;
template <>
inline constexpr DType kDTypeOf<double> = DType::kF64;
template <>
inline constexpr DType kDTypeOf<bf16> = DType::kBf16;
template <>
inline constexpr DType kDTypeOf<f16> = DType::kF16;
template <>
inline constexpr DType kDTypeOf<int32_t> = DType::kI32;
template <>
inline constexpr DType kDTypeOf<int64_t> = DType::kI64;

/// A view: pointer, type, up to four sizes and strides (in elements), device. It never owns, is
/// cheap to copy, and an empty one (`!t`) stands for "absent".
struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  int rank = 0;
  std::array<int64_t, kMaxRank> sizes{};
  std::array<int64_t, kMaxRank> strides{};

  Tensor() = default;
  /// Contiguous view of `data`.
  Tensor(void* data, DType dtype, Device device, std::initializer_list<int64_t> shape);

  /// A tensor with no elements still exists; only a default-constructed one is absent.
  explicit operator bool() const { return rank > 0; }
  int64_t size(int dim) const { return sizes[static_cast<size_t>(dim)]; }
  int64_t stride(int dim) const { return strides[static_cast<size_t>(dim)]; }
  int64_t elements() const;
  int64_t bytes() const { return elements() * size_of(dtype); }  // of the elements, not of the span
  bool is_contiguous() const;

  /// Typed access; asserts that the type is right and the memory is the CPU's (host code reads it).
  template <class T>
  T* ptr() const {
    SEGUE_ASSERT(dtype == kDTypeOf<T>, "tensor read as another type");
    SEGUE_ASSERT(device.is_cpu(), "device memory read on the host");
    return static_cast<T*>(data);
  }
  /// Row `r` of a tensor of rank >= 1.
  template <class T>
  T* row(int64_t r) const {
    return ptr<T>() + r * strides[0];
  }
  template <class T>
  std::span<T> span() const {
    SEGUE_ASSERT(is_contiguous(), "span of a strided tensor");
    return {ptr<T>(), static_cast<size_t>(elements())};
  }

  /// Sub-views.
  Tensor narrow(int dim, int64_t begin, int64_t count) const;
  Tensor rows(int64_t begin, int64_t count) const { return narrow(0, begin, count); }
  Tensor columns(int64_t begin, int64_t count) const { return narrow(rank - 1, begin, count); }
  Tensor column(int64_t index) const;  // one column of a matrix, strided, rank 1
  Tensor select(int64_t index) const;  // drops dimension 0
  Tensor reshape(std::initializer_list<int64_t> shape) const;  // contiguous tensors only
  /// [rows, heads * dim] seen as [rows, heads, dim]; keeps the row stride.
  Tensor split_columns(int64_t heads) const;

  std::string shape_string() const;
};

/// Host memory seen as a flat CPU tensor.
template <class T>
Tensor host_view(std::span<T> values) {
  using Value = std::remove_const_t<T>;
  return {const_cast<Value*>(values.data()),
          kDTypeOf<Value>,
          Device::cpu(),
          {static_cast<int64_t>(values.size())}};
}

/// Calls f with a value of the C++ type of a real CPU tensor: float or double.
template <class F>
decltype(auto) dispatch_real(DType dtype, F&& f) {
  if (dtype == DType::kF64) return f(double{});
  SEGUE_ASSERT(dtype == DType::kF32, "CPU ops compute in float or double");
  return f(float{});
}

/// Contiguous tensors of equal type and number of elements.
void copy(const Tensor& to, const Tensor& from, const Stream* stream = nullptr);
/// Contiguous, or a matrix of unit column stride. With a stream it is ordered there, like a copy.
void zero(const Tensor& t, const Stream* stream = nullptr);

}  // namespace segue
