#include "ops/gemm.h"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "ops/gemm_fallback.h"
#include "ops/test_util.h"

#if SEGUE_HAS_ONEDNN
#include <oneapi/dnnl/dnnl_config.h>
#endif

namespace segue::ops {
namespace {

using test::bytes_of;
using test::expect_independent_of_threads;
using test::TestBed;

/// Forces the fallback for the life of the object.
struct ForcedFallback {
  explicit ForcedFallback(bool force) { force_gemm_fallback(force); }
  ~ForcedFallback() { force_gemm_fallback(false); }
};

struct Shape {
  int64_t m, n, k;
};
std::ostream& operator<<(std::ostream& out, const Shape& s) {
  return out << s.m << " x " << s.n << " x " << s.k;
}

/// A [rows, columns] view with `gap` unused columns behind each row.
Tensor random_matrix(TestBed& bed, uint64_t seed, int64_t rows, int64_t columns, int64_t gap) {
  return bed.random(seed, {rows, columns + gap}).columns(0, columns);
}

/// Transposed as the flag says, so that op() of the result is [rows, columns].
Tensor random_operand(TestBed& bed, uint64_t seed, Trans trans, int64_t rows, int64_t columns,
                      int64_t gap) {
  return trans == Trans::kYes ? random_matrix(bed, seed, columns, rows, gap)
                              : random_matrix(bed, seed, rows, columns, gap);
}

template <class T>
double element(const Tensor& t, Trans trans, int64_t row, int64_t column) {
  return static_cast<double>(trans == Trans::kYes ? t.row<T>(column)[row] : t.row<T>(row)[column]);
}

/// One product with everything random, compared element by element with the sum in double. A sum of
/// k + 3 terms in any order is off by at most (k + 3) eps times the sum of their magnitudes.
template <class T>
void check_product(TestBed& bed, const Shape& s, Trans trans_a, Trans trans_b, int64_t gap,
                   bool with_extra, bool accumulate) {
  SCOPED_TRACE(testing::Message() << s << (trans_a == Trans::kYes ? " T" : " N")
                                  << (trans_b == Trans::kYes ? "T" : "N") << " gap " << gap
                                  << " extra " << with_extra << " accumulate " << accumulate);
  const Arena::Mark mark(*bed.exec.arena);
  const Tensor a = random_operand(bed, 1, trans_a, s.m, s.k, gap);
  const Tensor b = random_operand(bed, 2, trans_b, s.k, s.n, gap);
  const Tensor c = random_matrix(bed, 3, s.m, s.n, gap);
  GemmExtra extra;
  extra.accumulate = accumulate;
  if (with_extra) {
    extra.bias = bed.random(4, {s.n});
    extra.residual = random_matrix(bed, 5, s.m, s.n, gap);
  }
  std::vector<double> before;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      before.push_back(accumulate ? static_cast<double>(c.row<T>(i)[j]) : 0);
      if (!accumulate) c.row<T>(i)[j] = std::numeric_limits<T>::quiet_NaN();  // must not be read
    }
  }
  gemm(bed.exec, trans_a, a, trans_b, b, c, extra);

  const double eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      double sum = before[static_cast<size_t>(i * s.n + j)], magnitude = std::abs(sum);
      const auto add = [&](double term) {
        sum += term;
        magnitude += std::abs(term);
      };
      for (int64_t p = 0; p < s.k; ++p) {
        add(element<T>(a, trans_a, i, p) * element<T>(b, trans_b, p, j));
      }
      if (with_extra) {
        add(static_cast<double>(extra.bias.ptr<T>()[j]));
        add(static_cast<double>(extra.residual.row<T>(i)[j]));
      }
      const double bound = static_cast<double>(s.k + 3) * eps * magnitude;
      ASSERT_NEAR(static_cast<double>(c.row<T>(i)[j]), sum, bound) << "at " << i << ", " << j;
    }
  }
}

template <class T>
void check_many_products(Precision precision) {
  TestBed bed(precision);
  const Trans both[] = {Trans::kNo, Trans::kYes};
  for (const Shape s :
       {Shape{0, 3, 2}, Shape{3, 0, 2}, Shape{3, 4, 0}, Shape{1, 1, 1}, Shape{5, 7, 3},
        Shape{1, 70, 100}, Shape{64, 1, 130}, Shape{17, 33, 19}, Shape{40, 66, 300}}) {
    for (const Trans trans_a : both) {
      for (const Trans trans_b : both) {
        for (const int64_t gap : {0, 5}) {
          check_product<T>(bed, s, trans_a, trans_b, gap, false, false);
          check_product<T>(bed, s, trans_a, trans_b, gap, true, false);
          check_product<T>(bed, s, trans_a, trans_b, gap, false, true);
          check_product<T>(bed, s, trans_a, trans_b, gap, true, true);
        }
      }
    }
  }
  // Several tiles, and k in several pieces.
  check_product<T>(bed, {150, 600, 40}, Trans::kNo, Trans::kYes, 3, true, false);
  check_product<T>(bed, {530, 24, 256}, Trans::kNo, Trans::kNo, 0, true, false);
  for (const bool accumulate : {false, true}) {
    check_product<T>(bed, {13, 21, 5000}, Trans::kYes, Trans::kNo, 2, true, accumulate);
    check_product<T>(bed, {2, 3, 70001}, Trans::kYes, Trans::kNo, 0, false, accumulate);
  }
}

TEST(GemmTest, FloatMatchesTripleLoop) { check_many_products<float>(Precision::kF32); }

TEST(GemmTest, FloatFallbackMatchesTripleLoop) {
  const ForcedFallback forced(true);
  check_many_products<float>(Precision::kF32);
}

TEST(GemmTest, DoubleMatchesTripleLoop) { check_many_products<double>(Precision::kF64); }

TEST(GemmTest, DoubleNeverUsesALibrary) {
  TestBed bed(Precision::kF64);
  const Tensor a = bed.random(1, {37, 90}), b = bed.random(2, {90, 41}),
               c = bed.zeros(DType::kF64, {37, 41});
  gemm(bed.exec, Trans::kNo, a, Trans::kNo, b, c);
  const Tensor d = bed.zeros(DType::kF64, {37, 41});
  gemm_fallback(GemmProblem<double>{false, false, 37, 41, 90, 1.0, a.ptr<double>(), 90,
                                    b.ptr<double>(), 41, 0.0, d.ptr<double>(), 41});
  EXPECT_EQ(bytes_of(c), bytes_of(d));
}

TEST(GemmTest, AllInstructionSetsGiveTheSameBits) {
  if (best_gemm_isa() == GemmIsa::kBaseline) GTEST_SKIP() << "this CPU runs the baseline only";
#if !defined(__FMA__)
  GTEST_SKIP() << "the baseline has no fused multiply-add";
#endif
  const auto check = [](auto zero_value, Precision precision) {
    using T = decltype(zero_value);
    TestBed bed(precision);
    for (const Shape s : {Shape{1, 1, 1}, Shape{29, 70, 600}, Shape{300, 530, 33}}) {
      for (const bool trans : {false, true}) {
        const Tensor a = bed.random(1, {s.m, s.k}), b = bed.random(2, {s.k, s.n});
        GemmProblem<T> q{trans,      trans,
                         s.m,        s.n,
                         s.k,        T(0.7),
                         a.ptr<T>(), trans ? s.m : s.k,
                         b.ptr<T>(), trans ? s.k : s.n,
                         T(0.3),     nullptr,
                         s.n};
        const Tensor narrow = bed.random(3, {s.m, s.n}), wide = bed.random(3, {s.m, s.n});
        q.c = narrow.ptr<T>();
        gemm_fallback(q, GemmIsa::kBaseline);
        q.c = wide.ptr<T>();
        gemm_fallback(q, GemmIsa::kAvx512);
        EXPECT_EQ(bytes_of(narrow), bytes_of(wide)) << s;
      }
    }
  };
  check(float{}, Precision::kF32);
  check(double{}, Precision::kF64);
}

// Narrow rows that lie one after another take the bias together: the same sums, to the last bit.
TEST(GemmTest, BiasesOfNarrowRows) {
  TestBed bed;
  for (const int64_t n : {1, 3, 8, 16, 63, 64, 65}) {
    for (const int64_t gap : {0, 2}) {
      const int64_t m = 1201, k = 5;  // several tiles, the last one small
      const Tensor x = bed.random(1, {m, k}), weight = bed.random(2, {n, k});
      const Tensor bias = bed.random(3, {n}), c = random_matrix(bed, 4, m, n, gap);
      const Tensor bare = random_matrix(bed, 5, m, n, gap);
      gemm(bed.exec, Trans::kNo, x, Trans::kYes, weight, bare);
      linear_forward(bed.exec, x, weight, bias, c);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          ASSERT_EQ(c.row<float>(i)[j], bare.row<float>(i)[j] + bias.ptr<float>()[j])
              << n << " columns at " << i << ", " << j;
        }
      }
    }
  }
}

TEST(GemmTest, BitsDoNotDependOnThreads) {
  for (const bool fallback : {false, true}) {
    const ForcedFallback forced(fallback);
    for (const Precision precision : {Precision::kF32, Precision::kBf16, Precision::kF64}) {
      TestBed bed(precision);
      for (const Shape s : {Shape{300, 256, 24}, Shape{600, 530, 300}, Shape{1, 700, 512},
                            Shape{64, 48, 9000}, Shape{512, 1, 512}}) {
        SCOPED_TRACE(testing::Message() << s << " fallback " << fallback);
        const Arena::Mark mark(*bed.exec.arena);
        const Tensor a = bed.random(1, {s.k, s.m}), b = bed.random(2, {s.k, s.n});
        GemmExtra extra;
        extra.accumulate = true;
        extra.bias = bed.random(4, {s.n});
        expect_independent_of_threads([&] {
          const Tensor c = bed.random(3, {s.m, s.n});
          gemm(bed.exec, Trans::kYes, a, Trans::kNo, b, c, extra);
          return bytes_of(c);
        });
      }
    }
  }
}

TEST(GemmTest, TileGivesTheSameBitsInsideAndOutsideALoop) {
  TestBed bed;
  const int64_t m = 200, n = 300, k = 400;
  const Tensor a = bed.random(1, {m, k}), b = bed.random(2, {k, n});
  const auto run = [&] {
    std::vector<float> c(static_cast<size_t>(m * n));
    gemm_tile(Trans::kNo, Trans::kNo, m, n, k, 1.f, a.ptr<float>(), k, b.ptr<float>(), n, 0.f,
              c.data(), n);
    return c;
  };
  const auto outside = run();
  std::vector<float> inside[3];
  base::parallel_for(3, 1, [&](int64_t begin, int64_t) { inside[begin] = run(); });
  for (const auto& c : inside) EXPECT_EQ(c, outside);
}

// Inputs are multiples of 1/64 that need ten bits, so rounding to the eight of bf16 matters, while
// sums of products of the rounded ones are exact in float: the result must match bit for bit.
TEST(GemmTest, Bf16RoundsInputsOnceAndTheResultOnce) {
  TestBed bed(Precision::kBf16);
  const int64_t m = 9, n = 20, k = 32;
  const auto coarse = [&](uint64_t seed, std::initializer_list<int64_t> shape) {
    const Tensor t = bed.zeros(DType::kF32, shape);
    int64_t i = 0;
    for (float& x : t.span<float>()) {
      x = static_cast<float>(std::floor(512 * TestBed::number(seed, i++)) / 64);
    }
    return t;
  };
  const Tensor a = coarse(1, {m, k}), b = coarse(2, {k, n});
  for (const auto& [accumulate, wide] :
       {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
    GemmExtra extra;
    extra.bias = coarse(3, {n});
    extra.residual = coarse(4, {m, n});
    extra.accumulate = accumulate;
    extra.wide = wide;
    const Tensor before = coarse(5, {m, n}), c = coarse(5, {m, n});
    gemm(bed.exec, Trans::kNo, a, Trans::kNo, b, c, extra);
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        float sum = round_to_bf16(extra.bias.ptr<float>()[j]) + extra.residual.row<float>(i)[j];
        for (int64_t p = 0; p < k; ++p) {
          sum += round_to_bf16(a.row<float>(i)[p]) * round_to_bf16(b.row<float>(p)[j]);
        }
        const float expected =
            (accumulate ? before.row<float>(i)[j] : 0.f) + (wide ? sum : round_to_bf16(sum));
        ASSERT_EQ(c.row<float>(i)[j], expected)
            << i << ", " << j << " accumulate " << accumulate << " wide " << wide;
      }
    }
  }
}

TEST(GemmTest, EachIsOneProductAfterTheOther) {
  TestBed bed;
  const Tensor a = bed.random(1, {3, 5, 4}), b = bed.random(2, {3, 6, 4});
  const Tensor c = bed.random(3, {3, 5, 6}), expected = bed.random(3, {3, 5, 6});
  for (const bool accumulate : {false, true}) {
    gemm_each(bed.exec, Trans::kNo, a, Trans::kYes, b, c, accumulate);
    for (int64_t i = 0; i < 3; ++i) {
      gemm(bed.exec, Trans::kNo, a.select(i), Trans::kYes, b.select(i), expected.select(i),
           {.accumulate = accumulate});
    }
    EXPECT_EQ(test::bytes_of(c), test::bytes_of(expected));
  }
}

TEST(GemmTest, ScratchIsGivenBack) {
  TestBed bed(Precision::kBf16);
  const Tensor a = bed.random(1, {5000, 8}), b = bed.random(2, {5000, 8}),
               c = bed.random(3, {8, 8});
  const int64_t used = bed.exec.arena->used();
  gemm(bed.exec, Trans::kYes, a, Trans::kNo, b, c,
       {.bias = {}, .residual = {}, .accumulate = true});
  EXPECT_EQ(bed.exec.arena->used(), used);
}

TEST(GemmTest, LinearBackwardMatchesFiniteDifferences) {
  for (const int64_t rows : {0, 1, 5}) {
    TestBed bed(Precision::kF64);
    const Tensor x = bed.random(1, {rows, 6}), weight = bed.random(2, {4, 6}),
                 bias = bed.random(3, {4});
    const Tensor y = bed.zeros(DType::kF64, {rows, 4}), dy = bed.random(4, {rows, 4});
    const Tensor dx = bed.random(5, {rows, 6});
    const Tensor dweight = bed.zeros(DType::kF64, {4, 6}), dbias = bed.zeros(DType::kF64, {4});
    const auto loss = [&] {
      linear_forward(bed.exec, x, weight, bias, y);
      return test::dot(y, dy);
    };
    linear_backward(bed.exec, dy, x, weight, dx, dweight, dbias);
    test::expect_gradient(x, dx, loss);
    test::expect_gradient(weight, dweight, loss);
    test::expect_gradient(bias, dbias, loss);

    // Parameters' gradients are added; dx may be left out.
    linear_backward(bed.exec, dy, x, weight, {}, dweight, {});
    linear_backward(bed.exec, dy, x, weight, {}, dweight, dbias);
    const Tensor once = bed.zeros(DType::kF64, {4});
    column_sum(bed.exec, dy, once);
    for (int64_t j = 0; j < 4; ++j) {
      EXPECT_DOUBLE_EQ(dbias.ptr<double>()[j], 2 * once.ptr<double>()[j]);
    }
  }
}

TEST(GemmTest, ColumnSumAddsRowsInFixedOrder) {
  TestBed bed;
  const int64_t rows = 1000, columns = 70;
  const Tensor x = random_matrix(bed, 1, rows, columns, 3);
  const auto run = [&](const Exec& exec) {
    const Tensor out = bed.random(2, {columns});
    column_sum(exec, x, out);
    return out;
  };
  const Tensor plain = run(bed.exec), start = bed.random(2, {columns});
  const Tensor rounded = run(bed.exec.with(Precision::kBf16));
  for (int64_t j = 0; j < columns; ++j) {
    double sum = 0;
    for (int64_t r = 0; r < rows; ++r) sum += static_cast<double>(x.row<float>(r)[j]);
    const float before = start.ptr<float>()[j];
    // 64 additions in float, the rest in double; a random walk of numbers below 1.
    EXPECT_NEAR(static_cast<double>(plain.ptr<float>()[j]), before + sum, 1e-4);
    const double quantum = std::abs(sum) / 128;  // bf16 keeps 8 bits
    EXPECT_NEAR(static_cast<double>(rounded.ptr<float>()[j]), before + sum, 0.51 * quantum + 1e-4);
  }
  expect_independent_of_threads([&] { return bytes_of(run(bed.exec)); });
}

TEST(GemmTest, BackendHasAName) {
  EXPECT_NE(std::string(gemm_backend()), "");
#if SEGUE_HAS_ONEDNN && DNNL_CPU_RUNTIME == DNNL_RUNTIME_OMP
  // A build that says that it has the library uses it.
  EXPECT_EQ(std::string(gemm_backend()).rfind("oneDNN ", 0), 0u) << gemm_backend();
#endif
  const ForcedFallback forced(true);
  EXPECT_EQ(std::string(gemm_backend()).rfind("fallback (", 0), 0u);
}

}  // namespace
}  // namespace segue::ops
