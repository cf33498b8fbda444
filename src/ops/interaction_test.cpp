#include "ops/interaction.h"

#include <vector>

#include <gtest/gtest.h>

#include "ops/rows.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::bytes_of;
using test::dot;
using test::expect_gradient;
using test::expect_independent_of_threads;
using test::TestBed;

TEST(InteractionTest, CopyThenPairsInOrder) {
  TestBed bed;
  const Tensor x = bed.zeros(DType::kF32, {1, 8}), y = bed.zeros(DType::kF32, {1, 8});
  const float numbers[] = {1, 2, 3, 5, 7, 11, 13, 17};  // four vectors of two
  std::copy(std::begin(numbers), std::end(numbers), x.ptr<float>());
  ASSERT_EQ(dot_interaction_columns(4, 2), 8);
  dot_interaction_forward(bed.exec, x, 4, y);
  const std::vector<float> expected = {1,       2,   // the first vector
                                       13,           // (1, 0)
                                       29,      76,  // (2, 0), (2, 1)
                                       47,      13 * 3 + 17 * 5,
                                       91 + 187};  // (3, 0), (3, 1), (3, 2)
  EXPECT_EQ(std::vector<float>(y.span<float>().begin(), y.span<float>().end()), expected);
  for (int64_t i = 1, place = 0; i < 4; ++i) {
    for (int64_t j = 0; j < i; ++j, ++place) {
      EXPECT_EQ(dot_pair(i, j), place);
      EXPECT_EQ(dot_pair(j, i), place);
    }
  }
}

TEST(InteractionTest, GradientsMatchFiniteDifferences) {
  for (const int64_t count : {1, 2, 4}) {
    for (const int64_t dim : {1, 3}) {
      for (const int64_t rows : {0, 1, 3}) {
        TestBed bed(Precision::kF64);
        const int64_t columns = dot_interaction_columns(count, dim);
        const Tensor x = bed.random(1, {rows, count * dim}), dy = bed.random(2, {rows, columns});
        const Tensor y = bed.zeros(DType::kF64, {rows, columns});
        const Tensor dx = bed.random(3, {rows, count * dim});  // overwritten
        dot_interaction_backward(bed.exec, dy, x, count, dx);
        expect_gradient(x, dx, [&] {
          dot_interaction_forward(bed.exec, x, count, y);
          return dot(y, dy);
        });
      }
    }
  }
}

TEST(InteractionTest, TakesStridedRows) {
  TestBed bed;
  const Tensor wide_x = bed.random(1, {5, 14}), wide_y = bed.random(2, {5, 9});
  const Tensor x = bed.zeros(DType::kF32, {5, 12}), y = bed.zeros(DType::kF32, {5, 7});
  convert(bed.exec, wide_x.columns(1, 12), x);
  dot_interaction_forward(bed.exec, x, 3, y);
  const float left = wide_y.row<float>(4)[0], right = wide_y.row<float>(4)[8];
  dot_interaction_forward(bed.exec, wide_x.columns(1, 12), 3, wide_y.columns(1, 7));
  for (int64_t r = 0; r < 5; ++r) {
    for (int64_t c = 0; c < 7; ++c) EXPECT_EQ(wide_y.row<float>(r)[1 + c], y.row<float>(r)[c]);
  }
  EXPECT_EQ(wide_y.row<float>(4)[0], left);
  EXPECT_EQ(wide_y.row<float>(4)[8], right);
}

TEST(InteractionTest, RoundsEveryProductOnce) {
  TestBed bed(Precision::kBf16);
  const Tensor x = bed.random(1, {6, 10}), y = bed.zeros(DType::kF32, {6, 6});
  const Tensor exact = bed.zeros(DType::kF32, {6, 6});
  dot_interaction_forward(bed.exec, x, 2, y);
  dot_interaction_forward(bed.exec.with(Precision::kF32), x, 2, exact);
  for (size_t i = 0; i < 36; ++i) {
    EXPECT_EQ(y.span<float>()[i], round_to_bf16(exact.span<float>()[i]));
  }
}

TEST(InteractionTest, IndependentOfThreads) {
  TestBed bed;
  const Tensor x = bed.random(1, {2000, 4 * 16}), y = bed.zeros(DType::kF32, {2000, 22});
  const Tensor dx = bed.zeros(DType::kF32, {2000, 4 * 16});
  expect_independent_of_threads([&] {
    dot_interaction_forward(bed.exec, x, 4, y);
    dot_interaction_backward(bed.exec, y, x, 4, dx);
    return bytes_of(dx);
  });
}

}  // namespace
}  // namespace segue::ops
