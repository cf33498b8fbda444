#include "ops/head_bias.h"

#include <gtest/gtest.h>

#include "ops/gpu_test_util.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::ModeBed;
using test::Outputs;
using test::TestBed;
using GpuHeadBiasTest = test::GpuTest;

TEST(HeadBiasTest, MatchesTheFormula) {
  TestBed bed(Precision::kF64);
  const int64_t rows = 3, heads = 2, width = 4, columns = heads * width;
  const Tensor x = bed.random(1, {rows, columns + 3}).columns(1, columns);
  const Tensor bias = bed.random(2, {columns}), weights = bed.random(3, {rows, heads});
  const Tensor y = bed.random(4, {rows, columns}), dot = bed.random(5, {rows, heads});
  const Tensor sum = bed.random(6, {rows, columns});
  head_bias_dot(bed.exec, x, 0.5, bias, y, dot);
  head_bias_add(bed.exec, x, weights, bias, 0.5, sum);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      double expected = 0;
      for (int64_t c = h * width; c < (h + 1) * width; ++c) {
        const double value = x.row<double>(r)[c], b = bias.ptr<double>()[c];
        expected += 0.5 * value * b;
        EXPECT_EQ(y.row<double>(r)[c], 0.5 * value);
        EXPECT_NEAR(sum.row<double>(r)[c], 0.5 * (value + weights.row<double>(r)[h] * b), 1e-15);
      }
      EXPECT_NEAR(dot.row<double>(r)[h], expected, 1e-14);
    }
  }
}

TEST(HeadBiasTest, GradientsAreSumsOverRows) {
  TestBed bed(Precision::kF64);
  const int64_t rows = 5, heads = 2, width = 3, columns = heads * width;
  const Tensor x = bed.random(1, {rows, columns + 2}).columns(1, columns);
  const Tensor y = bed.random(2, {rows, 4}), weights = bed.random(3, {rows, heads});
  const Tensor dx = bed.zeros(DType::kF64, {columns}), dy = bed.zeros(DType::kF64, {4});
  for (double& d : dx.span<double>()) d = 7;  // is added to
  const HeadBiasGradient parts[] = {{x, weights, dx}, {y, {}, dy}};
  head_bias_gradients(bed.exec, parts);
  for (int64_t c = 0; c < columns; ++c) {
    double expected = 7;
    for (int64_t r = 0; r < rows; ++r) {
      expected += weights.row<double>(r)[c / width] * x.row<double>(r)[c];
    }
    EXPECT_NEAR(dx.ptr<double>()[c], expected, 1e-14);
  }
  for (int64_t c = 0; c < 4; ++c) {
    double expected = 0;
    for (int64_t r = 0; r < rows; ++r) expected += y.row<double>(r)[c];
    EXPECT_NEAR(dy.ptr<double>()[c], expected, 1e-14);
  }
}

TEST_F(GpuHeadBiasTest, GradientsLikeTheCpu) {
  for (const int64_t rows : {0, 1, 16, 257, 7000}) {
    test::expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const int64_t heads = 4, columns = heads * 72;
      const Tensor x = bed.activation(1, {rows, 2 * columns}).columns(columns, columns);
      const Tensor wide = bed.parameter(2, {rows, columns});
      const Tensor weights = bed.parameter(3, {rows, heads});
      const Tensor dx = bed.parameter(4, {columns}), dwide = bed.parameter(5, {columns});
      const HeadBiasGradient parts[] = {{x, {}, dx}, {wide, weights, dwide}};
      head_bias_gradients(bed.exec, parts);
      return {{"dx", true, bed.values(dx)}, {"dwide", true, bed.values(dwide)}};
    });
  }
}

TEST_F(GpuHeadBiasTest, LikeTheCpu) {
  for (const int64_t rows : {0, 1, 257}) {
    test::expect_like_cpu([&](ModeBed& bed) -> Outputs {
      const int64_t heads = 4, columns = heads * 24;
      const Tensor x = bed.activation(1, {rows, 2 * columns}).columns(columns, columns);
      const Tensor bias = bed.parameter(2, {columns}), weights = bed.parameter(3, {rows, heads});
      const Tensor wide = bed.parameter(4, {rows, columns}), dot = bed.parameter(5, {rows, heads});
      const Tensor y = bed.activation(6, {rows, columns});
      head_bias_dot(bed.exec.with(Precision::kF32), x, 0.3, bias, wide, dot);
      head_bias_add(bed.exec, wide, weights, bias, 0.7, y);
      return {{"wide", false, bed.values(wide)},
              {"dot", false, bed.values(dot)},
              {"y", false, bed.values(y)}};
    });
  }
}

}  // namespace
}  // namespace segue::ops
