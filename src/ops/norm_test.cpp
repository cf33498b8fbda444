#include "ops/norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "ops/test_util.h"
#include "ops/vector_math.h"

namespace segue::ops {
namespace {

using test::bytes_of;
using test::expect_gradient;
using test::expect_independent_of_threads;
using test::TestBed;

// ---- the functions that rows are made of ----

/// Error in units of the last place of a float near `expected`, or of the smallest normal number.
double error_in_ulp(float got, double expected) {
  const int exponent = expected == 0 ? -126 : std::max(std::ilogb(expected), -126);
  return std::abs(static_cast<double>(got) - expected) / std::ldexp(1.0, exponent - 23);
}

double exact_sigmoid(double x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

TEST(VectorMathTest, AccurateOverTheWholeRange) {
  for (double x = -120; x < 88.7; x += 0.00371) {
    const auto f = static_cast<float>(x);
    const auto d = static_cast<double>(f);
    ASSERT_LE(error_in_ulp(fast_exp(f), std::exp(d)), 2) << x;
    ASSERT_LE(error_in_ulp(sigmoid(f), exact_sigmoid(d)), 3) << x;
    ASSERT_LE(error_in_ulp(Sigmoid<float>(f).derivative, exact_sigmoid(d) * exact_sigmoid(-d)), 4)
        << x;
    if (x < -87) continue;  // the factor sigmoid(x) is no longer a normal number
    ASSERT_LE(error_in_ulp(silu(f), d * exact_sigmoid(d)), 4) << x;
    const double s = exact_sigmoid(d);
    ASSERT_NEAR(static_cast<double>(silu_derivative(f)), s * (1 + d * (1 - s)), 1e-6) << x;
  }
}

TEST(VectorMathTest, KnowsTheEnds) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kLargest = std::numeric_limits<float>::max();
  EXPECT_EQ(fast_exp(0.f), 1.f);
  EXPECT_TRUE(std::isnan(fast_exp(std::nanf(""))));
  EXPECT_TRUE(std::isnan(silu(std::nanf(""))));
  for (const float x : {kInf, kLargest, 1000.f}) {
    EXPECT_EQ(fast_exp(x), kInf);
    EXPECT_EQ(fast_exp(-x), 0.f);
    EXPECT_EQ(sigmoid(x), 1.f);
    EXPECT_EQ(sigmoid(-x), 0.f);
    EXPECT_EQ(Sigmoid<float>(x).derivative, 0.f);
    EXPECT_EQ(Sigmoid<float>(-x).derivative, 0.f);
    EXPECT_EQ(silu(x), x);
    EXPECT_EQ(silu(-x), 0.f);
    EXPECT_EQ(silu_derivative(x), 1.f);
    EXPECT_EQ(silu_derivative(-x), 0.f);
  }
}

/// Error in units of the last place of what is expected, a positive normal number.
double ulps(double got, long double expected) {
  const auto rounded = static_cast<double>(expected);
  const double place = std::ldexp(1.0, std::ilogb(rounded) - 52);
  return static_cast<double>(std::abs(got - expected)) / place;
}

TEST(VectorMathTest, FunctionsOfALossInDouble) {
  for (double x = 0; x > -708; x = x * 1.0007 - 1e-5) {
    ASSERT_LE(ulps(exp_of_negative(x), std::exp(static_cast<long double>(x))), 1.1) << x;
  }
  for (double x = 1e-300; x < 1; x = x < 1e-3 ? x * 1.01 : x + 7.3e-6) {
    ASSERT_LE(ulps(log1p_of_unit(x), std::log1p(static_cast<long double>(x))), 3) << x;
  }
  EXPECT_EQ(exp_of_negative(0), 1);
  EXPECT_EQ(log1p_of_unit(0), 0);
  EXPECT_DOUBLE_EQ(log1p_of_unit(1), std::log(2.0));
  for (const double x : {-709.0, -1e300, -std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(exp_of_negative(x), exp_of_negative(-708)) << x;
  }
  EXPECT_LT(exp_of_negative(-708), 1e-307);
  EXPECT_TRUE(std::isnan(exp_of_negative(std::nan(""))));
  EXPECT_TRUE(std::isnan(log1p_of_unit(std::nan(""))));
}

TEST(VectorMathTest, LaneSumTakesEveryElementOnce) {
  for (const int64_t n : {0, 1, 31, 32, 33, 64, 1000}) {
    const auto sum = lane_sum<double>(n, [](int64_t i) { return static_cast<double>(2 * i); });
    EXPECT_EQ(sum, static_cast<double>(n * (n - 1)));
  }
}

// ---- norms ----

/// Parameters near 1 and 0, as they are in a trained model: `weights` of them, or if that is 0 one
/// per column of a layer norm and one per group of a group norm.
NormParams make_params(TestBed& bed, int64_t columns, int64_t groups, int64_t weights = 0) {
  NormParams p;
  p.groups = groups;
  const int64_t count = weights > 0 ? weights : groups == 1 ? columns : groups;
  p.weight = bed.random(101, {count}, 0.5);
  p.bias = bed.random(102, {count}, 0.5);
  dispatch_real(p.weight.dtype, [&](auto zero_value) {
    using T = decltype(zero_value);
    for (T& w : p.weight.span<T>()) w += T(1);
  });
  return p;
}

struct Gradients {
  Tensor dx, dweight, dbias;
};
Gradients make_gradients(TestBed& bed, const NormParams& p, int64_t rows, int64_t columns) {
  const DType type = bed.exec.parameter_dtype();
  return {bed.random(103, {rows, columns}), bed.zeros(type, {p.weight.size(0)}),
          bed.zeros(type, {p.bias.size(0)})};
}

TEST(NormTest, ForwardMatchesTheFormula) {
  for (const int64_t groups : {1, 4}) {
    TestBed bed;
    const int64_t rows = 3, columns = 40, width = columns / groups;
    const NormParams p = make_params(bed, columns, groups);
    const Tensor x = bed.random(1, {rows, columns + 7}, 3).columns(0, columns);
    const Tensor y = bed.random(2, {rows, columns + 2}).columns(0, columns);
    const NormStats stats = make_norm_stats(bed.exec, rows, groups);
    norm_forward(bed.exec, p, x, y, stats);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t g = 0; g < groups; ++g) {
        const float* part = x.row<float>(r) + g * width;
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < width; ++j) mean += part[j] / static_cast<double>(width);
        for (int64_t j = 0; j < width; ++j) {
          variance += (part[j] - mean) * (part[j] - mean) / static_cast<double>(width);
        }
        const double rstd = 1 / std::sqrt(variance + p.eps);
        EXPECT_NEAR(stats.mean.ptr<float>()[r * groups + g], mean, 1e-6);
        EXPECT_NEAR(stats.rstd.ptr<float>()[r * groups + g], rstd, 1e-5 * rstd);
        for (int64_t j = 0; j < width; ++j) {
          const int64_t parameter = groups == 1 ? j : g;
          EXPECT_NEAR(y.row<float>(r)[g * width + j],
                      (part[j] - mean) * rstd * p.weight.ptr<float>()[parameter] +
                          p.bias.ptr<float>()[parameter],
                      1e-5);
        }
      }
    }
  }
}

TEST(NormTest, OneGroupMayHaveOneWeightForAllColumns) {
  // Group norm of a layer with a single head: a layer norm whose weights are all the same.
  TestBed bed(Precision::kF64);
  const int64_t rows = 3, columns = 7;
  const NormParams p = make_params(bed, columns, /*groups=*/1, /*weights=*/1);
  NormParams same = make_params(bed, columns, 1);
  for (double& w : same.weight.span<double>()) w = p.weight.ptr<double>()[0];
  for (double& b : same.bias.span<double>()) b = p.bias.ptr<double>()[0];
  const Tensor x = bed.random(1, {rows, columns}), dy = bed.random(2, {rows, columns});
  const NormStats stats = make_norm_stats(bed.exec, rows);
  const Tensor y = bed.zeros(DType::kF64, {rows, columns});
  const Tensor y_same = bed.zeros(DType::kF64, {rows, columns});
  const auto loss = [&] {
    norm_forward(bed.exec, p, x, y, stats);
    return test::dot(y, dy);
  };
  loss();
  norm_forward(bed.exec, same, x, y_same, stats);
  EXPECT_TRUE(std::ranges::equal(y.span<double>(), y_same.span<double>()));
  const Gradients d = make_gradients(bed, p, rows, columns);
  norm_backward(bed.exec, p, dy, x, stats, Tensor(), d.dx, {d.dweight, d.dbias});
  expect_gradient(x, d.dx, loss);
  expect_gradient(p.weight, d.dweight, loss);
  expect_gradient(p.bias, d.dbias, loss);
}

TEST(NormTest, BackwardMatchesFiniteDifferences) {
  for (const int64_t rows : {0, 1, 5}) {
    for (const int64_t groups : {1, 4}) {
      for (const bool with_residual : {false, true}) {
        TestBed bed(Precision::kF64);
        const int64_t columns = 8;
        const NormParams p = make_params(bed, columns, groups);
        const Tensor x = bed.random(1, {rows, columns}), dy = bed.random(2, {rows, columns});
        const Tensor y = bed.zeros(DType::kF64, {rows, columns});
        const Tensor residual = with_residual ? bed.random(3, {rows, columns}) : Tensor();
        const NormStats stats = make_norm_stats(bed.exec, rows, groups);
        const auto loss = [&] {
          norm_forward(bed.exec, p, x, y, stats);
          return test::dot(y, dy) + (residual ? test::dot(x, residual) : 0);
        };
        loss();
        const Gradients d = make_gradients(bed, p, rows, columns);
        const Tensor dinput_bias = bed.zeros(DType::kF64, {columns});
        norm_backward(bed.exec, p, dy, x, stats, residual, d.dx, {d.dweight, d.dbias, dinput_bias});
        for (int64_t c = 0; c < columns; ++c) {
          double sum = 0;
          for (int64_t r = 0; r < rows; ++r) sum += d.dx.row<double>(r)[c];
          EXPECT_NEAR(dinput_bias.ptr<double>()[c], sum, 1e-14);
        }
        expect_gradient(x, d.dx, loss);
        expect_gradient(p.weight, d.dweight, loss);
        expect_gradient(p.bias, d.dbias, loss);
      }
    }
  }
}

TEST(NormTest, BackwardMayOverwriteItsInputsAndAddsToParameters) {
  TestBed bed;
  const int64_t rows = 5, columns = 24;
  const NormParams p = make_params(bed, columns, 1);
  const Tensor x = bed.random(1, {rows, columns}), y = bed.zeros(DType::kF32, {rows, columns});
  const NormStats stats = make_norm_stats(bed.exec, rows);
  norm_forward(bed.exec, p, x, y, stats);
  const auto dy = [&] { return bed.random(2, {rows, columns}); };
  const auto residual = [&] { return bed.random(3, {rows, columns}); };
  const Gradients d = make_gradients(bed, p, rows, columns);
  norm_backward(bed.exec, p, dy(), x, stats, residual(), d.dx, {d.dweight, d.dbias});

  const Tensor over_dy = dy(), over_residual = residual();
  norm_backward(bed.exec, p, over_dy, x, stats, residual(), over_dy, {});
  EXPECT_EQ(bytes_of(over_dy), bytes_of(d.dx));
  const std::vector<float> once(d.dweight.span<float>().begin(), d.dweight.span<float>().end());
  norm_backward(bed.exec, p, dy(), x, stats, over_residual, over_residual, {d.dweight, d.dbias});
  EXPECT_EQ(bytes_of(over_residual), bytes_of(d.dx));
  for (size_t j = 0; j < once.size(); ++j) EXPECT_FLOAT_EQ(d.dweight.span<float>()[j], 2 * once[j]);
}

TEST(NormTest, SwishBackwardOfOpenGatesKeepsItsDigits) {
  // With a bias of 12 every gate is 1 - 6e-6: a float's difference from 1 has five bits left.
  TestBed bed, exact(Precision::kF64);
  const int64_t rows = 3, columns = 16;
  const auto run = [&](TestBed& b) {
    NormParams p = make_params(b, columns, 1);
    const Tensor x = b.random(1, {rows, columns}), dy = b.random(2, {rows, columns});
    dispatch_real(x.dtype, [&](auto zero_value) {
      using T = decltype(zero_value);
      std::ranges::fill(p.bias.span<T>(), T(12));
    });
    const NormStats stats = make_norm_stats(b.exec, rows);
    swish_norm_forward(b.exec, p, x, b.zeros(x.dtype, {rows, columns}), stats);
    const Gradients d = make_gradients(b, p, rows, columns);
    swish_norm_backward(b.exec, p, dy, x, stats, d.dx, {d.dweight, d.dbias});
    return d;
  };
  const Gradients got = run(bed), expected = run(exact);
  for (const auto& [a, b] :
       {std::pair(got.dweight, expected.dweight), {got.dbias, expected.dbias}}) {
    double largest = 0;
    for (const double value : b.span<double>()) largest = std::max(largest, std::abs(value));
    for (int64_t j = 0; j < columns; ++j) {
      EXPECT_NEAR(static_cast<double>(a.ptr<float>()[j]), b.ptr<double>()[j], 1e-5 * largest);
    }
  }
}

TEST(NormTest, SwishBackwardMatchesFiniteDifferences) {
  for (const int64_t rows : {0, 1, 5}) {
    TestBed bed(Precision::kF64);
    const int64_t columns = 7;
    const NormParams p = make_params(bed, columns, 1);
    const Tensor x = bed.random(1, {rows, columns}), dy = bed.random(2, {rows, columns});
    const Tensor y = bed.zeros(DType::kF64, {rows, columns});
    const NormStats stats = make_norm_stats(bed.exec, rows);
    const auto loss = [&] {
      swish_norm_forward(bed.exec, p, x, y, stats);
      return test::dot(y, dy);
    };
    loss();
    const Gradients d = make_gradients(bed, p, rows, columns);
    swish_norm_backward(bed.exec, p, dy, x, stats, d.dx, {d.dweight, d.dbias});
    expect_gradient(x, d.dx, loss);
    expect_gradient(p.weight, d.dweight, loss);
    expect_gradient(p.bias, d.dbias, loss);
  }
}

TEST(NormTest, L2BackwardMatchesFiniteDifferences) {
  for (const int64_t rows : {0, 1, 5}) {
    for (const double eps : {1e-6, 10.0}) {  // with the second one eps is the divisor
      TestBed bed(Precision::kF64);
      const Tensor x = bed.random(1, {rows, 6}), dy = bed.random(2, {rows, 6});
      const Tensor y = bed.zeros(DType::kF64, {rows, 6}), dx = bed.random(3, {rows, 6});
      const auto loss = [&] {
        l2_normalize_forward(bed.exec, x, eps, y);
        return test::dot(y, dy);
      };
      l2_normalize_backward(bed.exec, dy, x, eps, dx);
      expect_gradient(x, dx, loss);
    }
  }
}

TEST(NormTest, L2OfAZeroRowIsZero) {
  TestBed bed;
  const Tensor x = bed.zeros(DType::kF32, {1, 4}), dy = bed.random(1, {1, 4}),
               y = bed.random(2, {1, 4});
  l2_normalize_forward(bed.exec, x, 0.5, y);
  for (const float v : y.span<float>()) EXPECT_EQ(v, 0.f);
  l2_normalize_backward(bed.exec, dy, x, 0.5, y);
  for (size_t j = 0; j < 4; ++j) EXPECT_EQ(y.span<float>()[j], dy.span<float>()[j] * 2);
}

/// All results of forward and backward of both norms, one after the other.
template <class T>
std::vector<T> run_norms(const TestBed& bed, const NormParams& p, const Tensor& x,
                         const Tensor& dy) {
  const Arena::Mark mark(*bed.exec.arena);
  const int64_t rows = x.size(0), columns = x.size(1), count = p.weight.size(0);
  std::vector<T> all;
  const auto keep = [&](const Tensor& t) {
    all.insert(all.end(), t.span<T>().begin(), t.span<T>().end());
  };
  for (const bool swish : {false, true}) {
    if (swish && p.groups > 1) continue;
    const Tensor y = bed.exec.activation({rows, columns}),
                 dx = bed.exec.activation({rows, columns});
    const Tensor dweight = bed.exec.statistic({count}), dbias = bed.exec.statistic({count});
    zero(dweight);
    zero(dbias);
    const NormStats stats = make_norm_stats(bed.exec, rows, p.groups);
    if (swish) {
      swish_norm_forward(bed.exec, p, x, y, stats);
      swish_norm_backward(bed.exec, p, dy, x, stats, dx, {dweight, dbias});
    } else {
      norm_forward(bed.exec, p, x, y, stats);
      norm_backward(bed.exec, p, dy, x, stats, dy, dx, {dweight, dbias});
    }
    for (const Tensor& t : {y, dx, dweight, dbias}) keep(t);
  }
  return all;
}

TEST(NormTest, FloatMatchesDouble) {
  for (const int64_t groups : {1, 4}) {
    const int64_t rows = 200, columns = 64;
    TestBed f32(Precision::kF32), f64(Precision::kF64);
    const auto single =
        run_norms<float>(f32, make_params(f32, columns, groups), f32.random(1, {rows, columns}),
                         f32.random(2, {rows, columns}));
    const auto twice =
        run_norms<double>(f64, make_params(f64, columns, groups), f64.random(1, {rows, columns}),
                          f64.random(2, {rows, columns}));
    ASSERT_EQ(single.size(), twice.size());
    // The longest sums are the weight gradients, `rows` terms of order one. Their rounding errors
    // walk at random, and how far depends on the order the compiler chose.
    const double bound = 4 * 0x1p-23 * std::sqrt(static_cast<double>(rows));
    for (size_t i = 0; i < single.size(); ++i) {
      ASSERT_NEAR(static_cast<double>(single[i]), twice[i],
                  bound * std::max(1.0, std::abs(twice[i])))
          << i;
    }
  }
}

TEST(NormTest, BitsDoNotDependOnThreads) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    for (const int64_t groups : {1, 4}) {
      TestBed bed(precision);
      const NormParams p = make_params(bed, 100, groups);
      const Tensor x = bed.random(1, {1000, 100}), dy = bed.random(2, {1000, 100});
      expect_independent_of_threads([&] {
        const auto all = run_norms<float>(bed, p, x, dy);
        const auto* bytes = reinterpret_cast<const uint8_t*>(all.data());
        return std::vector<uint8_t>(bytes, bytes + all.size() * sizeof(float));
      });
    }
  }
}

// Mode bf16 computes in float and rounds activations once at the end; weights, and with them their
// gradients, are rounded only if they are used as bf16.
TEST(NormTest, Bf16RoundsResultsOnce) {
  for (const bool round_weights : {false, true}) {
    TestBed bed(Precision::kBf16), plain(Precision::kF32);
    const int64_t rows = 70, columns = 32;
    NormParams p = make_params(plain, columns, 1);  // not representable in bf16
    p.round_weights = round_weights;
    const Tensor x = bed.random(1, {rows, columns}), dy = bed.random(2, {rows, columns});
    const auto rounded = run_norms<float>(bed, p, x, dy);
    if (round_weights) {
      for (const Tensor& t : {p.weight, p.bias}) {
        for (float& w : t.span<float>()) w = round_to_bf16(w);
      }
    }
    const auto exact = run_norms<float>(plain, p, x, dy);
    const auto activations = static_cast<size_t>(2 * rows * columns);
    const size_t one_norm = activations + static_cast<size_t>(2 * columns);
    ASSERT_EQ(exact.size(), 2 * one_norm);
    for (size_t i = 0; i < exact.size(); ++i) {
      const bool is_activation = i % one_norm < activations;
      ASSERT_EQ(rounded[i], is_activation || round_weights ? round_to_bf16(exact[i]) : exact[i])
          << i;
    }
  }
}

}  // namespace
}  // namespace segue::ops
