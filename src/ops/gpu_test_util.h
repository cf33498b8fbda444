#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/rng.h"
#include "tensor/arena.h"
#include "tensor/exec.h"

namespace segue::ops::test {

/// One place and mode to run a case in. The same case builds the same numbers in every one of them:
/// activations are rounded to bf16 and parameters to float even where more would fit, so that
/// results differ by what the op does and by nothing else.
class ModeBed {
 public:
  ModeBed(Device device, Precision precision) : arena_(device, int64_t{1} << 30), stream_(device) {
    exec.arena = &arena_;
    exec.stream = &stream_;
    exec.device = device;
    exec.precision = precision;
    exec.dropout_key = base::philox_key(1, 2);
  }

  Exec exec;

  /// Uniform numbers in [offset - scale, offset + scale) that depend on `seed` alone.
  Tensor activation(uint64_t seed, std::initializer_list<int64_t> shape, double scale = 1,
                    double offset = 0) {
    return filled(exec.dtype(), seed, shape, scale, offset, true);
  }
  Tensor parameter(uint64_t seed, std::initializer_list<int64_t> shape, double scale = 1,
                   double offset = 0) {
    return filled(exec.parameter_dtype(), seed, shape, scale, offset, false);
  }
  /// A parameter that holds one number.
  Tensor scalar(double value) { return upload(DType::kF64, {1}, std::vector<double>{value}); }
  Tensor ints(const std::vector<int32_t>& values) {
    const Tensor t = exec.index({static_cast<int64_t>(values.size())});
    send(t, values.data());
    return t;
  }
  Tensor longs(const std::vector<int64_t>& values) {
    const Tensor t = arena_.tensor(DType::kI64, {static_cast<int64_t>(values.size())});
    send(t, values.data());
    return t;
  }

  /// Elements of a contiguous tensor, or of a matrix with strided rows.
  std::vector<double> values(const Tensor& t) const {
    if (t.rank == 2 && !t.is_contiguous()) {
      std::vector<double> all;
      for (int64_t r = 0; r < t.size(0); ++r) {
        const std::vector<double> row = values(t.rows(r, 1).select(0));
        all.insert(all.end(), row.begin(), row.end());
      }
      return all;
    }
    std::vector<char> bytes(static_cast<size_t>(t.bytes()));
    copy_bytes(bytes.data(), Device::cpu(), t.data, t.device, bytes.size(), &stream_);
    stream_.synchronize();
    std::vector<double> result(static_cast<size_t>(t.elements()));
    for (size_t i = 0; i < result.size(); ++i) result[i] = element(t.dtype, bytes.data(), i);
    return result;
  }

 private:
  static double element(DType dtype, const char* data, size_t i) {
    switch (dtype) {
      case DType::kF64:
        return reinterpret_cast<const double*>(data)[i];
      case DType::kBf16:
        return static_cast<double>(static_cast<float>(reinterpret_cast<const bf16*>(data)[i]));
      default:
        return static_cast<double>(reinterpret_cast<const float*>(data)[i]);
    }
  }

  Tensor filled(DType dtype, uint64_t seed, std::initializer_list<int64_t> shape, double scale,
                double offset, bool rounds) {
    int64_t n = 1;
    for (const int64_t size : shape) n *= size;
    std::vector<double> numbers(static_cast<size_t>(n));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const uint64_t bits = base::splitmix64(base::splitmix64(seed) + i);
      const auto value =
          static_cast<float>(offset + scale * (static_cast<double>(bits >> 11) * 0x1p-52 - 1.0));
      numbers[i] = static_cast<double>(rounds ? round_to_bf16(value) : value);
    }
    return upload(dtype, shape, numbers);
  }

  Tensor upload(DType dtype, std::initializer_list<int64_t> shape,
                const std::vector<double>& numbers) {
    const Tensor t = arena_.tensor(dtype, shape);
    if (dtype == DType::kF64) {
      send(t, numbers.data());
    } else if (dtype == DType::kF32) {
      std::vector<float> narrow(numbers.begin(), numbers.end());
      send(t, narrow.data());
    } else {
      std::vector<bf16> narrow;
      for (const double x : numbers) narrow.emplace_back(static_cast<float>(x));
      send(t, narrow.data());
    }
    return t;
  }

  void send(const Tensor& t, const void* from) {
    copy_bytes(t.data, t.device, from, Device::cpu(), static_cast<size_t>(t.bytes()), &stream_);
    stream_.synchronize();
  }

  Arena arena_;
  Stream stream_;
};

struct Output {
  const char* name;
  bool is_gradient;
  std::vector<double> values;
};
using Outputs = std::vector<Output>;
using Case = std::function<Outputs(ModeBed&)>;

inline Outputs run_in(Device device, Precision precision, const Case& run) {
  ModeBed bed(device, precision);
  return run(bed);
}

inline double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference = std::abs(a[i] - b[i]);
    if (!(difference <= most)) most = difference;  // NaN stays
  }
  return most;
}

/// The GPU may err at most twice as much as the plain CPU form in the same mode (gradients: three
/// times), both measured against double, plus a term for what the plain form gets right by luck:
/// 2^-10 of the largest value in bf16 (a quarter of its rounding), 2^-20 in float (8 ulp:
/// exponential, root and division may differ by 2 ulp each, and sums are added in another order).
/// A second run must give equal bits.
inline void expect_like_cpu(const Case& run, Precision precision) {
  const Outputs exact = run_in(Device::cpu(), Precision::kF64, run);
  const Outputs plain = run_in(Device::cpu(), precision, run);
  const Outputs gpu = run_in(Device::cuda(), precision, run);
  const Outputs again = run_in(Device::cuda(), precision, run);
  const char* mode = precision == Precision::kBf16 ? " in bf16" : " in float";
  const double luck = precision == Precision::kBf16 ? 0x1p-10 : 0x1p-20;
  ASSERT_EQ(gpu.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    ASSERT_EQ(gpu[i].values.size(), exact[i].values.size()) << exact[i].name << mode;
    double largest = 0;
    for (const double x : exact[i].values) largest = std::max(largest, std::abs(x));
    const double factor = exact[i].is_gradient ? 3 : 2;
    const double bound =
        factor * largest_difference(plain[i].values, exact[i].values) + luck * largest;
    EXPECT_LE(largest_difference(gpu[i].values, exact[i].values), bound)
        << exact[i].name << mode << ", largest value " << largest;
    EXPECT_EQ(gpu[i].values, again[i].values) << exact[i].name << mode << ": a second run differs";
  }
}
inline void expect_like_cpu(const Case& run) {
  expect_like_cpu(run, Precision::kF32);
  expect_like_cpu(run, Precision::kBf16);
}

/// GPU and CPU give the same numbers, bit for bit.
inline void expect_equal_to_cpu(const Case& run, Precision precision) {
  const Outputs cpu = run_in(Device::cpu(), precision, run);
  const Outputs gpu = run_in(Device::cuda(), precision, run);
  ASSERT_EQ(gpu.size(), cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) EXPECT_EQ(gpu[i].values, cpu[i].values) << cpu[i].name;
}

class GpuTest : public testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "there is no GPU";
  }
};

}  // namespace segue::ops::test
