#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <vector>

#include <gtest/gtest.h>

#include "base/parallel.h"
#include "base/rng.h"
#include "tensor/arena.h"
#include "tensor/exec.h"
#include "tensor/tensor.h"

namespace segue::ops::test {

/// Memory and Exec for one test; its tensors live as long as it does.
class TestBed {
 public:
  explicit TestBed(Precision precision = Precision::kF32, int64_t bytes = int64_t{256} << 20)
      : arena_(Device::cpu(), bytes) {
    exec.arena = &arena_;
    exec.precision = precision;
    exec.dropout_key = base::philox_key(1, 2);
  }

  Exec exec;

  Tensor zeros(DType dtype, std::initializer_list<int64_t> shape) {
    const Tensor t = arena_.tensor(dtype, shape);
    zero(t);
    return t;
  }
  /// Activation type of `exec`, filled with numbers in [-scale, scale) that depend on `seed` alone.
  /// In mode kBf16 they are already rounded, as real activations are.
  Tensor random(uint64_t seed, std::initializer_list<int64_t> shape, double scale = 1) {
    const Tensor t = arena_.tensor(exec.dtype(), shape);
    dispatch_real(t.dtype, [&](auto zero_value) {
      using T = decltype(zero_value);
      int64_t i = 0;
      for (T& x : t.span<T>()) {
        x = round_activation(exec, static_cast<T>(scale * number(seed, i++)));
      }
    });
    return t;
  }
  Tensor ints(std::initializer_list<int32_t> values) { return ints(std::vector<int32_t>(values)); }
  Tensor ints(const std::vector<int32_t>& values) {
    const Tensor t = arena_.tensor(DType::kI32, {static_cast<int64_t>(values.size())});
    std::copy(values.begin(), values.end(), t.ptr<int32_t>());
    return t;
  }

  /// Uniform in [-1, 1).
  static double number(uint64_t seed, int64_t i) {
    const uint64_t bits = base::splitmix64(base::splitmix64(seed) + static_cast<uint64_t>(i));
    return static_cast<double>(bits >> 11) * 0x1p-52 - 1.0;
  }

 private:
  Arena arena_;
};

/// Checks `dx` = d f / d x by central differences for every element of the contiguous double tensor
/// `x`. `f()` runs the forward pass and returns a scalar.
template <class F>
void expect_gradient(const Tensor& x, const Tensor& dx, F&& f, double tolerance = 1e-6,
                     double step = 1e-5) {
  ASSERT_EQ(x.elements(), dx.elements());
  const auto values = x.span<double>();
  const auto gradient = dx.span<double>();
  for (size_t i = 0; i < values.size(); ++i) {
    const double saved = values[i];
    values[i] = saved + step;
    const double above = f();
    values[i] = saved - step;
    const double below = f();
    values[i] = saved;
    const double expected = (above - below) / (2 * step);
    ASSERT_NEAR(gradient[i], expected, tolerance * std::max(1.0, std::abs(expected)))
        << "element " << i << " of " << x.shape_string();
  }
}

/// Sum of a * b over all elements of two contiguous double tensors: turns an output into a scalar
/// whose gradient with respect to the output is `b`.
inline double dot(const Tensor& a, const Tensor& b) {
  const auto x = a.span<double>();
  const auto y = b.span<double>();
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) sum += x[i] * y[i];
  return sum;
}

/// Bytes of a contiguous tensor, for comparisons of bits.
inline std::vector<uint8_t> bytes_of(const Tensor& t) {
  std::vector<uint8_t> bytes(static_cast<size_t>(t.bytes()));
  if (!bytes.empty()) std::memcpy(bytes.data(), t.data, bytes.size());
  return bytes;
}

/// Runs `f`, which returns bytes, with 1, 2 and 3 threads and demands equal bits.
template <class F>
void expect_independent_of_threads(F&& f) {
  const int before = base::num_threads();
  base::set_num_threads(1);
  const std::vector<uint8_t> expected = f();
  for (int threads : {2, 3}) {
    base::set_num_threads(threads);
    EXPECT_EQ(f(), expected) << threads << " threads";
  }
  base::set_num_threads(before);
}

}  // namespace segue::ops::test
