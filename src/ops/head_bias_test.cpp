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
