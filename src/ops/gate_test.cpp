#include "ops/gate.h"

#include <cmath>
#include <vector>

#include "ops/gemm.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::bytes_of;
using test::expect_gradient;
using test::expect_independent_of_threads;
using test::TestBed;

/// Inputs, results and gradients of one gate. u, a, du and da are slices of wider buffers, as they
/// are in an STU layer; `values_of` copies one out.
struct GateCase {
  GateCase(TestBed& bed, int64_t rows, int64_t width, int64_t groups, bool concat, float dropout_p)
      : exec(bed.exec), packed(bed.random(1, {rows, 2 * width + 3})) {
    p.u = packed.columns(0, width);
    p.a = packed.columns(width, width);
    p.concat = concat;
    p.norm.groups = groups;
    p.norm.eps = 1e-6;
    const int64_t count = groups == 1 ? width : groups;
    p.norm.weight = bed.random(2, {count});
    p.norm.bias = bed.random(3, {count});
    std::vector<int32_t> sample, token;
    for (int32_t r = 0; r < rows; ++r) {
      sample.push_back(r / 3 + 7);
      token.push_back(r % 3);
    }
    p.dropout.p = dropout_p;
    p.dropout.site = 5;
    p.dropout.rows = {bed.ints(sample), bed.ints(token)};
    y = bed.zeros(exec.dtype(), {rows, concat ? 3 * width : width});
    dy = bed.random(4, {rows, concat ? 3 * width : width});
    dpacked = bed.random(5, {rows, 2 * width + 3});
    dweight = bed.zeros(exec.parameter_dtype(), {count});
    dbias = bed.zeros(exec.parameter_dtype(), {count});
    u_bias = bed.zeros(exec.parameter_dtype(), {width});
    stats = make_norm_stats(exec, rows, groups);
  }

  void forward() const { gate_forward(exec, p, y, stats); }
  void backward() const {
    const int64_t width = p.a.size(1);
    gate_backward(exec, p, stats, dy, dpacked.columns(0, width), dpacked.columns(width, width),
                  {dweight, dbias, u_bias});
  }

  Exec exec;
  Tensor packed, dpacked;  // [rows, u | a | three columns that the gate must not touch]
  GateParams p;
  NormStats stats;
  Tensor y, dy, dweight, dbias, u_bias;
};

template <class T>
std::vector<T> values_of(const Tensor& t) {
  std::vector<T> values;
  for (int64_t r = 0; r < t.size(0); ++r) {
    values.insert(values.end(), t.row<T>(r), t.row<T>(r) + t.size(1));
  }
  return values;
}

TEST(GateTest, ForwardMatchesTheFormula) {
  for (const bool concat : {true, false}) {
    TestBed bed(Precision::kF64);
    const int64_t rows = 4, width = 10;
    const GateCase gate(bed, rows, width, 1, concat, 0.f);
    gate.forward();
    const Tensor norm = bed.zeros(DType::kF64, {rows, width});
    norm_forward(bed.exec, gate.p.norm, gate.p.a, norm, make_norm_stats(bed.exec, rows));
    for (int64_t r = 0; r < rows; ++r) {
      const double* y = gate.y.row<double>(r);
      for (int64_t j = 0; j < width; ++j) {
        const double raw = gate.p.u.row<double>(r)[j], u = raw / (1 + std::exp(-raw));
        const double gated = u * norm.row<double>(r)[j];
        if (concat) {
          EXPECT_NEAR(y[j], u, 1e-14);
          EXPECT_EQ(y[width + j], gate.p.a.row<double>(r)[j]);
          EXPECT_NEAR(y[2 * width + j], gated, 1e-14);
        } else {
          EXPECT_NEAR(y[j], gated, 1e-14);
        }
      }
    }
  }
}

TEST(GateTest, BackwardMatchesFiniteDifferences) {
  for (const int64_t rows : {0, 1, 5}) {
    for (const int64_t groups : {1, 4}) {
      for (const bool concat : {true, false}) {
        for (const float dropout_p : {0.f, 0.3f}) {
          SCOPED_TRACE(testing::Message() << rows << " rows, " << groups << " groups, concat "
                                          << concat << ", dropout " << dropout_p);
          TestBed bed(Precision::kF64);
          const GateCase gate(bed, rows, 12, groups, concat, dropout_p);
          const auto loss = [&] {
            gate.forward();
            return test::dot(gate.y, gate.dy);
          };
          loss();
          // The columns outside u and a do not matter, and their gradient must be left alone.
          const auto untouched = values_of<double>(gate.dpacked.columns(24, 3));
          gate.backward();
          EXPECT_EQ(values_of<double>(gate.dpacked.columns(24, 3)), untouched);
          for (int64_t r = 0; r < rows; ++r) {
            for (int64_t j = 24; j < 27; ++j) gate.dpacked.row<double>(r)[j] = 0;
          }
          expect_gradient(gate.packed, gate.dpacked, loss);
          expect_gradient(gate.p.norm.weight, gate.dweight, loss);
          expect_gradient(gate.p.norm.bias, gate.dbias, loss);
        }
      }
    }
  }
}

TEST(GateTest, BiasOfUGetsTheSumsOfItsGradient) {
  for (const Precision precision : {Precision::kF32, Precision::kF64, Precision::kBf16}) {
    for (const int64_t rows : {0, 1, 200}) {
      TestBed bed(precision);
      const GateCase gate(bed, rows, 12, 4, true, 0.3f);
      gate.forward();
      gate.backward();
      const Tensor sums = bed.zeros(bed.exec.parameter_dtype(), {12});
      column_sum(bed.exec, gate.dpacked.columns(0, 12), sums);
      EXPECT_EQ(bytes_of(gate.u_bias), bytes_of(sums));
      gate.backward();  // added, not overwritten
      column_sum(bed.exec, gate.dpacked.columns(0, 12), sums);
      EXPECT_EQ(bytes_of(gate.u_bias), bytes_of(sums));
    }
  }
}

TEST(GateTest, DropoutKeepsTheRightShareAndScalesIt) {
  for (const float p : {0.1f, 0.5f}) {
    TestBed bed;
    const GateCase with(bed, 400, 64, 1, true, p), without(bed, 400, 64, 1, true, 0.f);
    with.forward();
    without.forward();
    const auto dropped = values_of<float>(with.y), full = values_of<float>(without.y);
    double kept = 0;
    for (size_t i = 0; i < full.size(); ++i) {
      if (dropped[i] == 0) continue;
      ++kept;
      ASSERT_FLOAT_EQ(dropped[i], full[i] / (1 - p));
    }
    // 5 standard deviations of a binomial share.
    const double n = static_cast<double>(full.size());
    EXPECT_NEAR(kept / n, 1 - p, 5 * std::sqrt(p * (1 - p) / n));
  }
}

TEST(GateTest, DropoutBelongsToTheSampleAndTokenNotToTheRow) {
  TestBed bed;
  const GateCase all(bed, 9, 16, 1, true, 0.4f);
  all.forward();
  GateCase part = all;  // rows 3 to 9 alone
  part.p.u = all.p.u.rows(3, 6);
  part.p.a = all.p.a.rows(3, 6);
  part.p.dropout.rows = {all.p.dropout.rows.sample.rows(3, 6), all.p.dropout.rows.token.rows(3, 6)};
  part.y = bed.zeros(DType::kF32, {6, 48});
  part.stats = make_norm_stats(bed.exec, 6);
  part.forward();
  EXPECT_EQ(values_of<float>(part.y), values_of<float>(all.y.rows(3, 6)));
}

TEST(GateTest, BackwardUsesTheMaskOfForward) {
  TestBed bed;
  const GateCase gate(bed, 20, 16, 1, true, 0.5f);
  // Only the middle third of y reaches the loss: da is dy where y was kept, scaled, and 0
  // elsewhere.
  for (int64_t r = 0; r < 20; ++r) {
    for (int64_t j = 0; j < 48; ++j) gate.dy.row<float>(r)[j] = j / 16 == 1 ? 1.f : 0.f;
  }
  gate.forward();
  gate.backward();
  for (int64_t r = 0; r < 20; ++r) {
    for (int64_t j = 0; j < 16; ++j) {
      const bool kept = gate.y.row<float>(r)[16 + j] != 0;
      EXPECT_EQ(gate.dpacked.row<float>(r)[16 + j], kept ? 2.f : 0.f);
      EXPECT_EQ(gate.dpacked.row<float>(r)[j], 0.f);
    }
  }
}

TEST(GateTest, FloatMatchesDouble) {
  for (const bool concat : {true, false}) {
    TestBed f32(Precision::kF32), f64(Precision::kF64);
    const GateCase single(f32, 150, 32, 4, concat, 0.2f), twice(f64, 150, 32, 4, concat, 0.2f);
    for (const GateCase* gate : {&single, &twice}) {
      gate->forward();
      gate->backward();
    }
    const auto compare = [](const std::vector<float>& got, const std::vector<double>& expected) {
      ASSERT_EQ(got.size(), expected.size());
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(got[i]), expected[i],
                    4e-6 * std::max(1.0, std::abs(expected[i])));
      }
    };
    compare(values_of<float>(single.y), values_of<double>(twice.y));
    compare(values_of<float>(single.dpacked), values_of<double>(twice.dpacked));
    const auto flat = [](const Tensor& t) { return t.reshape({1, t.size(0)}); };
    compare(values_of<float>(flat(single.dweight)), values_of<double>(flat(twice.dweight)));
    compare(values_of<float>(flat(single.dbias)), values_of<double>(flat(twice.dbias)));
  }
}

TEST(GateTest, BitsDoNotDependOnThreads) {
  for (const Precision precision : {Precision::kF32, Precision::kBf16}) {
    TestBed bed(precision);
    expect_independent_of_threads([&] {
      const Arena::Mark mark(*bed.exec.arena);
      const GateCase gate(bed, 700, 40, 1, true, 0.1f);
      gate.forward();
      gate.backward();
      std::vector<uint8_t> all;
      for (const Tensor& t : {gate.y, gate.dpacked, gate.dweight, gate.dbias, gate.u_bias}) {
        const auto bytes = bytes_of(t);
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
      return all;
    });
  }
}

// u is rounded before both of its uses, the norm's value never, y once behind the dropout.
TEST(GateTest, Bf16RoundsWhereAGpuStores) {
  for (const float dropout_p : {0.f, 0.25f}) {
    TestBed bed(Precision::kBf16);
    const int64_t rows = 20, width = 24;
    const GateCase gate(bed, rows, width, 1, true, dropout_p);
    gate.forward();
    gate.backward();
    const Exec f32 = bed.exec.with(Precision::kF32);
    const Tensor u = bed.zeros(DType::kF32, {rows, width}),
                 g = bed.zeros(DType::kF32, {rows, width});
    silu_forward(f32, gate.p.u, u);
    norm_forward(f32, gate.p.norm, gate.p.a, g, make_norm_stats(f32, rows));
    for (int64_t r = 0; r < rows; ++r) {
      const float* y = gate.y.row<float>(r);
      for (int64_t j = 0; j < width; ++j) {
        const float rounded_u = round_to_bf16(u.row<float>(r)[j]);
        const float value[3] = {rounded_u, gate.p.a.row<float>(r)[j],
                                rounded_u * g.row<float>(r)[j]};
        for (int64_t block = 0; block < 3; ++block) {
          const float got = y[block * width + j];
          const float scale = static_cast<float>(1 / (1 - static_cast<double>(dropout_p)));
          if (dropout_p > 0 && got == 0) continue;
          ASSERT_EQ(got, round_to_bf16(value[block] * scale));
        }
      }
    }
    for (const float d : values_of<float>(gate.dpacked)) EXPECT_EQ(d, round_to_bf16(d));
  }
}

TEST(GateTest, SiluBackwardMatchesFiniteDifferences) {
  for (const int64_t rows : {0, 1, 5}) {
    TestBed bed(Precision::kF64);
    const Tensor x = bed.random(1, {rows, 9}, 4), y = bed.zeros(DType::kF64, {rows, 9});
    const Tensor dy = bed.random(2, {rows, 9}), dx = bed.random(3, {rows, 9});
    const auto loss = [&] {
      silu_forward(bed.exec, x, y);
      return test::dot(y, dy);
    };
    silu_backward(bed.exec, dy, x, dx);
    expect_gradient(x, dx, loss);
    const Tensor over_dy = bed.random(2, {rows, 9});
    silu_backward(bed.exec, over_dy, x, over_dy);
    EXPECT_EQ(bytes_of(over_dy), bytes_of(dx));
  }
}

// Where an element falls, in the vector part of a loop or in its rest, must not change it.
TEST(GateTest, SiluDoesNotDependOnThePlaceInMemory) {
  TestBed bed;
  const Tensor wide = bed.random(1, {1, 100}, 10), y = bed.zeros(DType::kF32, {1, 100});
  silu_forward(bed.exec, wide, y);
  for (int64_t first = 0; first < 33; ++first) {
    for (const int64_t count : {1, 7, 16, 40}) {
      const Tensor part = bed.zeros(DType::kF32, {1, count});
      silu_forward(bed.exec, wide.columns(first, count), part);
      ASSERT_EQ(values_of<float>(part), values_of<float>(y.columns(first, count)));
    }
  }
}

}  // namespace
}  // namespace segue::ops
