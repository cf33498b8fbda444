#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

// Scalar functions that loops over rows are made of. They have no branches and call nothing, so
// that the compiler turns a loop over them into vector code; fast_exp of a double is the C
// library's.

namespace segue::ops {

/// e^x within 2 ulp; 0, inf and NaN where they belong; gradual underflow.
inline float fast_exp(float x) {
  // x = n ln 2 + r, |r| <= ln 2 / 2. Beyond the clamp the result is 0 or infinite anyway.
  x = x < -105.f ? -105.f : x;
  x = x > 89.f ? 89.f : x;
  constexpr float kRounder = 0x1.8p23f;  // adding it leaves the nearest integer in the low bits
  const float shifted = x * 1.44269504088896341f + kRounder;
  const float n = shifted - kRounder;
  const float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;  // ln 2 in two parts
  // Minimax polynomial of (e^r - 1 - r) / r^2 (Cephes expf).
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.f;
  // 2^n as two factors, because n alone may exceed the exponent range at both ends.
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRounder);
  const int32_t half = exponent >> 1;
  const auto power = [](int32_t e) {
    return std::bit_cast<float>(static_cast<uint32_t>(e + 127) << 23);
  };
  return p * power(half) * power(exponent - half);
}
inline double fast_exp(double x) { return std::exp(x); }

/// e^x for x <= 0 within 1.1 ulp; below -708, near where it is no normal number any more, e^-708.
inline double exp_of_negative(double x) {
  x = x < -708.0 ? -708.0 : x;
  constexpr double kRounder = 0x1.8p52;
  const double shifted = x * 1.4426950408889634 + kRounder;
  const double n = shifted - kRounder;
  const double r = (x - n * 6.93145751953125e-1) - n * 1.42860682030941723e-6;
  double p = 1.0 / 6227020800;  // Taylor: what is left out is below 2^-57
  p = p * r + 1.0 / 479001600;
  p = p * r + 1.0 / 39916800;
  p = p * r + 1.0 / 3628800;
  p = p * r + 1.0 / 362880;
  p = p * r + 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  return p * std::bit_cast<double>((std::bit_cast<uint64_t>(shifted) + 1023) << 52);
}

/// log(1 + x) for 0 <= x <= 1 within 3 ulp.
inline double log1p_of_unit(double x) {
  // log((1 + s) / (1 - s)) is odd in s; a large 1 + x is taken as twice something near 1.
  const bool large = x > 0.41421356;
  const double s = (large ? x - 1 : x) / (large ? x + 3 : x + 2), z = s * s;
  double p = 2.0 / 21;  // Taylor: |s| <= 0.172, so what is left out is below 2^-54
  p = p * z + 2.0 / 19;
  p = p * z + 2.0 / 17;
  p = p * z + 2.0 / 15;
  p = p * z + 2.0 / 13;
  p = p * z + 2.0 / 11;
  p = p * z + 2.0 / 9;
  p = p * z + 2.0 / 7;
  p = p * z + 2.0 / 5;
  p = p * z + 2.0 / 3;
  return (large ? 0.693147180559945309 : 0.0) + s * (2 + p * z);
}

/// s = 1 / (1 + e^-x) and its derivative s (1 - s), from one exponential. Relative accuracy at both
/// ends: a difference 1 - s would have lost it where s is near 1.
template <class T>
struct Sigmoid {
  explicit Sigmoid(T x) {
    const T e = fast_exp(x < 0 ? x : -x);
    const T sum = T(1) + e;
    value = (x < 0 ? e : T(1)) / sum;
    derivative = e / (sum * sum);
  }
  T value, derivative;
};
template <class T>
inline T sigmoid(T x) {
  return Sigmoid<T>(x).value;
}

/// silu(x) = x sigmoid(x) and its derivative s (1 + x (1 - s)), s = sigmoid(x), from one
/// exponential.
template <class T>
struct Silu {
  explicit Silu(T x) {
    const T s = sigmoid(x);
    // 0 times infinity would be NaN; far out, any finite x gives the right limit.
    const T low = x < T(-1000) ? T(-1000) : x;
    const T both = low > T(1000) ? T(1000) : low;
    value = low * s;
    derivative = s * (T(1) + both * (T(1) - s));
  }
  T value, derivative;
};
template <class T>
inline T silu(T x) {
  return Silu<T>(x).value;
}
template <class T>
inline T silu_derivative(T x) {
  return Silu<T>(x).derivative;
}

/// Sum of f(i) for i in [0, n): 32 interleaved partial sums, then pairwise. The order is fixed, and
/// wide enough for the compiler to keep it in vector registers.
template <class T, class F>
inline T lane_sum(int64_t n, F&& f) {
  constexpr int64_t kLanes = 32;
  T sum[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) sum[lane] += f(i + lane);
  }
  for (int64_t lane = 0; lane < n - i; ++lane) sum[lane] += f(i + lane);
  for (int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) sum[lane] += sum[lane + width];
  }
  return sum[0];
}

}  // namespace segue::ops
