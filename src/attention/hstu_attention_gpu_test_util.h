#pragma once

// For tests only: HSTU attention on a GPU beside the exact and the plain bf16 form.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention/hstu_attention.h"
#include "base/bf16.h"
#include "base/hash.h"
#include "base/rng.h"
#include "base/test_util.h"
#include "ops/test_util.h"

namespace segue::attention {

using ops::test::TestBed;

struct Case {
  std::string name;
  std::vector<int64_t> lengths;
  std::vector<int64_t> targets;  // empty: none
  HstuMask mask;
  int64_t heads = 2;
  int64_t dim = 128;
  double alpha_factor = 1;
  Kernel kernel = Kernel::kAuto;
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

inline constexpr float kUntouched = -77;
inline constexpr int64_t kRowsBefore = 3, kRowsAfter = 2;

/// What both sides are computed from: packed rows u, v, q, k as a layer has them, in bf16 numbers.
struct Inputs {
  explicit Inputs(const Case& test_case, uint64_t seed = 1) : c(test_case) {
    offsets.push_back(kRowsBefore);
    int64_t longest = 1;
    for (const int64_t n : c.lengths) {
      offsets.push_back(offsets.back() + n);
      longest = std::max(longest, n);
    }
    rows = offsets.back() + kRowsAfter;
    width = c.heads * c.dim;
    packed = numbers(seed, rows * 4 * width);
    grad_o = numbers(seed + 1, rows * width);
    // Rows of no sequence hold what must never be looked at.
    const auto poison = [&](std::vector<float>& x, int64_t columns) {
      std::fill(x.end() - kRowsAfter * columns, x.end(), std::nanf(""));
    };
    poison(packed, 4 * width);
    poison(grad_o, width);
    alpha = c.alpha_factor / std::sqrt(static_cast<double>(c.dim));
    scale = 1.0 / static_cast<double>(longest);
  }

  /// Sums of four uniform numbers: near enough to normal ones, of deviation 1.
  static std::vector<float> numbers(uint64_t seed, int64_t count) {
    std::vector<float> x(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < 4; ++k) sum += TestBed::number(seed, 4 * i + k);
      x[static_cast<size_t>(i)] = round_to_bf16(static_cast<float>(sum * 0.866));
    }
    return x;
  }

  const Case& c;
  std::vector<int64_t> offsets;
  int64_t rows = 0, width = 0;
  double alpha = 1, scale = 1;
  std::vector<float> packed, grad_o;
};

struct Results {
  std::vector<double> o, dq, dk, dv;  // rows x width, kUntouched where nothing was written
  std::vector<double> dbias;          // v, q, k
};

inline constexpr double kBiasBefore = 0.5;

/// dbias is what was there before and the sums of the stored columns. A sum of floats passes at
/// most 32 additions on its way, 17 of them inside a product (16 rows and what came before), which
/// cuts off where others round; the rest is four warps, rows of one warp, eight warps and the
/// result. Mode kBf16 of the CPU rounds the sum.
inline void expect_bias(const Inputs& in, const Results& r, bool rounds) {
  const std::vector<double>* parts[] = {&r.dv, &r.dq, &r.dk};
  ASSERT_EQ(r.dbias.size(), static_cast<size_t>(3 * in.width));
  for (int64_t i = 0; i < 3 * in.width; ++i) {
    const std::vector<double>& x = *parts[i / in.width];
    double sum = 0, size = 0;
    for (int64_t row = in.offsets.front(); row < in.offsets.back(); ++row) {
      const double value = x[static_cast<size_t>(row * in.width + i % in.width)];
      sum += value;
      size += std::abs(value);
    }
    const double bound =
        32 * 0x1p-23 * size + 0x1p-23 * kBiasBefore + (rounds ? 0x1p-8 * std::abs(sum) : 0);
    ASSERT_NEAR(r.dbias[static_cast<size_t>(i)], kBiasBefore + sum, bound) << "column " << i;
  }
}

/// A parameter that holds kBiasBefore everywhere, and its values as they are now.
inline Tensor make_bias(const Exec& exec, int64_t size) {
  const Tensor t = exec.statistic({size});
  dispatch_real(t.dtype, [&](auto zero) {
    const std::vector<decltype(zero)> values(static_cast<size_t>(size),
                                             static_cast<decltype(zero)>(kBiasBefore));
    copy_bytes(t.data, t.device, values.data(), Device::cpu(), static_cast<size_t>(t.bytes()),
               exec.stream);
    if (exec.stream != nullptr) exec.stream->synchronize();
  });
  return t;
}
inline std::vector<double> read_bias(const Exec& exec, const Tensor& t) {
  return dispatch_real(t.dtype, [&](auto zero) {
    std::vector<decltype(zero)> values(static_cast<size_t>(t.elements()));
    copy_bytes(values.data(), Device::cpu(), t.data, t.device, static_cast<size_t>(t.bytes()),
               exec.stream);
    if (exec.stream != nullptr) exec.stream->synchronize();
    return std::vector<double>(values.begin(), values.end());
  });
}

/// Runs forward and backward with tensors on `bed`; `load(values)` puts numbers there and
/// `read(tensor)` gets them back.
template <class Load, class Read>
inline Results run(const Exec& exec, const Inputs& in, Load&& load, Read&& read) {
  const int64_t w = in.width;
  const auto part = [&](const Tensor& t, int64_t i) {
    return t.columns(i * w, w).split_columns(in.c.heads);
  };
  const Tensor packed = load(in.packed, 4 * w);
  const Tensor grad_o = load(in.grad_o, w);
  const Tensor o = load(std::vector<float>(static_cast<size_t>(in.rows * w), kUntouched), w);
  const Tensor grads =
      load(std::vector<float>(static_cast<size_t>(in.rows * 4 * w), kUntouched), 4 * w);
  HstuAttentionParams p;
  p.v = part(packed, 1);
  p.q = part(packed, 2);
  p.k = part(packed, 3);
  p.offsets = in.offsets;
  p.num_targets = in.c.targets;
  p.mask = in.c.mask;
  p.alpha = in.alpha;
  p.scale = in.scale;
  p.kernel = in.c.kernel;  // of no meaning on the CPU
  const Tensor dbias = make_bias(exec, 3 * w);
  const int64_t used = exec.arena->used();
  hstu_attention_forward(exec, p, o.split_columns(in.c.heads));
  hstu_attention_backward(exec, p, grad_o.split_columns(in.c.heads), part(grads, 2), part(grads, 3),
                          part(grads, 1), dbias);
  EXPECT_EQ(exec.arena->used(), used) << "scratch was kept";
  const std::vector<double> all = read(grads);
  const auto columns = [&](int64_t i) {
    std::vector<double> x;
    for (int64_t r = 0; r < in.rows; ++r) {
      const auto at = all.begin() + r * 4 * w + i * w;
      x.insert(x.end(), at, at + w);
    }
    return x;
  };
  for (const double x : columns(0)) EXPECT_EQ(x, double{kUntouched}) << "u was written";
  const Results r{read(o), columns(2), columns(3), columns(1), read_bias(exec, dbias)};
  expect_bias(in, r, exec.device.is_cpu() && exec.rounds_to_bf16());
  return r;
}

inline Results run_cpu(const Inputs& in, Precision precision) {
  TestBed bed(precision, int64_t{8} << 30);
  const auto load = [&](const std::vector<float>& values, int64_t columns) {
    const Tensor t = bed.zeros(bed.exec.dtype(), {in.rows, columns});
    dispatch_real(t.dtype, [&](auto zero) {
      std::copy(values.begin(), values.end(), t.span<decltype(zero)>().begin());
    });
    return t;
  };
  const auto read = [](const Tensor& t) {
    return dispatch_real(t.dtype, [&](auto zero) {
      const auto x = t.span<decltype(zero)>();
      return std::vector<double>(x.begin(), x.end());
    });
  };
  return run(bed.exec, in, load, read);
}

class GpuBed {
 public:
  explicit GpuBed(int64_t bytes) : stream_(Device::cuda()), arena_(Device::cuda(), bytes) {
    exec.arena = &arena_;
    exec.stream = &stream_;
    exec.device = Device::cuda();
    exec.precision = Precision::kBf16;
  }
  Exec exec;

 private:
  Stream stream_;
  Arena arena_;
};

/// `spare`: what the arena has beside the tensors; 0: plenty.
template <class T = bf16>
inline Results run_gpu(const Inputs& in, int64_t spare = 0) {
  const int64_t tensors = in.rows * in.width * 10 * 2 + 3 * in.width * 4 + 5 * 256;
  GpuBed bed(spare > 0 ? tensors + spare : int64_t{2} << 30);
  const auto load = [&](const std::vector<float>& values, int64_t columns) {
    std::vector<T> bits;
    for (const float x : values) bits.emplace_back(x);
    const Tensor t = bed.exec.arena->tensor(kDTypeOf<T>, {in.rows, columns});
    copy_bytes(t.data, t.device, bits.data(), Device::cpu(), bits.size() * 2, bed.exec.stream);
    bed.exec.stream->synchronize();
    return t;
  };
  const auto read = [&](const Tensor& t) {
    std::vector<T> bits(static_cast<size_t>(t.elements()));
    copy_bytes(bits.data(), Device::cpu(), t.data, t.device, bits.size() * 2, bed.exec.stream);
    bed.exec.stream->synchronize();
    std::vector<double> x;
    for (const T b : bits) x.push_back(double{static_cast<float>(b)});
    return x;
  };
  return run(bed.exec, in, load, read);
}

struct Errors {
  double plain, gpu, largest;
};

inline Errors errors(const std::vector<double>& exact, const std::vector<double>& plain,
                     const std::vector<double>& gpu, const char* what) {
  Errors e{0, 0, 0};
  size_t reported = 0;
  for (size_t i = 0; i < exact.size(); ++i) {
    if (exact[i] == double{kUntouched}) {
      if (gpu[i] != exact[i] && reported++ < 5) {
        ADD_FAILURE() << what << ": written outside of all sequences, element " << i;
      }
      continue;
    }
    if (!std::isfinite(gpu[i]) && reported++ < 5) {
      ADD_FAILURE() << what << ": " << gpu[i] << " at element " << i;
    }
    e.plain = std::max(e.plain, std::abs(plain[i] - exact[i]));
    e.gpu = std::max(e.gpu, std::abs(gpu[i] - exact[i]));
    e.largest = std::max(e.largest, std::abs(exact[i]));
  }
  return e;
}

/// `finer`: by how much the type that the GPU rounds to is finer than the plain one's.
inline void expect_near(const Results& exact, const Results& plain, const Results& gpu,
                        double finer = 1) {
  const Errors o = errors(exact.o, plain.o, gpu.o, "o");
  EXPECT_LE(o.gpu, 2 * o.plain / finer + 0x1p-10 * o.largest) << "o, plain " << o.plain;
  const auto gradient = [&](const auto& e, const char* what) {
    EXPECT_LE(e.gpu, 3 * e.plain / finer + 0x1p-10 * e.largest) << what << ", plain " << e.plain;
  };
  gradient(errors(exact.dq, plain.dq, gpu.dq, "dq"), "dq");
  gradient(errors(exact.dk, plain.dk, gpu.dk, "dk"), "dk");
  gradient(errors(exact.dv, plain.dv, gpu.dv, "dv"), "dv");
}

/// Longer than what the forward kernel for short sequences takes.
inline constexpr int64_t kLong = 1600;

}  // namespace segue::attention
