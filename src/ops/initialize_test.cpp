#include "ops/initialize.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/hash.h"
#include "ops/test_util.h"

namespace segue::ops {
namespace {

using test::bytes_of;
using test::expect_independent_of_threads;
using test::TestBed;

struct Moments {
  double mean = 0, deviation = 0, lowest = 0, highest = 0;

  explicit Moments(const Tensor& t) {
    const auto values = t.span<float>();
    const auto n = static_cast<double>(values.size());
    for (const float x : values) mean += x / n;
    for (const float x : values) deviation += (x - mean) * (x - mean) / n;
    deviation = std::sqrt(deviation);
    lowest = *std::min_element(values.begin(), values.end());
    highest = *std::max_element(values.begin(), values.end());
  }
};

TEST(InitializeTest, Constants) {
  TestBed bed;
  const Tensor t = bed.random(1, {3, 5});
  initialize(t, Init::kOnes, 0, 1, "norm.weight");
  for (const float x : t.span<float>()) EXPECT_EQ(x, 1.f);
  initialize(t.columns(1, 2), Init::kZeros, 0, 1, "norm.bias");
  EXPECT_EQ(t.row<float>(2)[0], 1.f);
  EXPECT_EQ(t.row<float>(2)[1], 0.f);
  EXPECT_EQ(t.row<float>(2)[2], 0.f);
  EXPECT_EQ(t.row<float>(2)[3], 1.f);
}

TEST(InitializeTest, Uniform) {
  TestBed bed;
  const Tensor t = bed.zeros(DType::kF32, {2000, 100});
  const double bound = std::sqrt(1.0 / 8192);
  initialize(t, Init::kUniform, bound, 7, "position");
  const Moments m(t);
  // Errors of the estimates over 200,000 values are about 0.0013 and 0.001 of the bound.
  EXPECT_NEAR(m.mean / bound, 0, 0.006);
  EXPECT_NEAR(m.deviation / bound, std::sqrt(1.0 / 3), 0.005);
  EXPECT_GE(m.lowest, -bound);
  EXPECT_LT(m.highest, bound);
  EXPECT_LT(m.lowest, -0.999 * bound);
  EXPECT_GT(m.highest, 0.999 * bound);
}

TEST(InitializeTest, Normal) {
  TestBed bed;
  const Tensor t = bed.zeros(DType::kF32, {2000, 100});
  initialize(t, Init::kNormal, 0.1, 7, "action");
  const Moments m(t);
  EXPECT_NEAR(m.mean, 0, 0.001);
  EXPECT_NEAR(m.deviation, 0.1, 0.001);
  EXPECT_GT(m.highest, 0.4);
  EXPECT_LT(m.highest, 0.67);  // Box-Muller from 32 bits ends at 6.7 standard deviations
  int64_t inside = 0;
  for (const float x : t.span<float>()) inside += std::abs(x) < 0.1f ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(inside) / 200000, 0.6827, 0.005);
  // Neighbours, which share their random words, are not correlated.
  double product = 0;
  for (size_t i = 0; i < 200000; i += 2) product += t.span<float>()[i] * t.span<float>()[i + 1];
  EXPECT_NEAR(product / 100000 / 0.01, 0, 0.015);
}

TEST(InitializeTest, DependsOnSeedAndNameAlone) {
  TestBed bed;
  const auto values = [&](uint64_t seed, std::string_view name) {
    const Tensor t = bed.zeros(DType::kF32, {11, 7});
    initialize(t, Init::kUniform, 1, seed, name);
    return bytes_of(t);
  };
  const std::vector<uint8_t> first = values(1, "a");
  EXPECT_EQ(values(1, "a"), first);
  EXPECT_NE(values(2, "a"), first);
  EXPECT_NE(values(1, "b"), first);
}

TEST(InitializeTest, AShardHoldsTheRowsOfTheWhole) {
  TestBed bed;
  std::vector<int64_t> numbers;
  for (const Init kind : {Init::kUniform, Init::kNormal, Init::kTruncatedNormal, Init::kConstant}) {
    const Tensor whole = bed.zeros(DType::kF32, {100, 10});
    initialize(whole, kind, 0.5, 3, "item_id");
    const RowInit init{kind, 0.5, 3, base::xxh64("item_id")};
    numbers = {99, 0, 37, 38};
    for (const int64_t first : {0, 1, 3, 4, 7}) {
      for (const int64_t width : {1, 2, 3}) {
        const Tensor shard = bed.zeros(DType::kF32, {4, width});
        initialize_part(shard, init, host_view(std::span<int64_t>(numbers)), first);
        for (int64_t r = 0; r < 4; ++r) {
          const float* expected = whole.row<float>(numbers[static_cast<size_t>(r)]) + first;
          for (int64_t c = 0; c < width; ++c) EXPECT_EQ(shard.row<float>(r)[c], expected[c]);
        }
      }
    }
  }
  // Rows are 64 bit: row 2^32 is not row 0.
  numbers = {0, int64_t{1} << 32};
  const Tensor rows = bed.zeros(DType::kF32, {2, 4});
  initialize_part(rows, {Init::kUniform, 1, 3, base::xxh64("x")},
                  host_view(std::span<int64_t>(numbers)), 0);
  EXPECT_NE(bytes_of(rows.rows(0, 1)), bytes_of(rows.rows(1, 1)));
}

TEST(InitializeTest, ShapesAndTypesShareTheirValues) {
  TestBed bed;
  const Tensor matrix = bed.zeros(DType::kF32, {6, 5}), cube = bed.zeros(DType::kF32, {2, 3, 5});
  initialize(matrix, Init::kNormal, 1, 1, "w");
  initialize(cube, Init::kNormal, 1, 1, "w");
  EXPECT_EQ(bytes_of(cube), bytes_of(matrix));
  const Tensor flat = bed.zeros(DType::kF32, {5}), wide = bed.zeros(DType::kF64, {5});
  initialize(flat, Init::kNormal, 1, 1, "w");
  initialize(wide, Init::kNormal, 1, 1, "w");
  for (int64_t c = 0; c < 5; ++c) {
    EXPECT_EQ(flat.ptr<float>()[c], matrix.row<float>(0)[c]);
    EXPECT_EQ(static_cast<float>(wide.ptr<double>()[c]), flat.ptr<float>()[c]);
  }
  initialize(bed.zeros(DType::kF32, {0, 4}), Init::kNormal, 1, 1, "empty");
}

TEST(InitializeTest, IndependentOfThreads) {
  TestBed bed;
  const Tensor t = bed.zeros(DType::kF32, {3000, 33});
  expect_independent_of_threads([&] {
    initialize(t, Init::kNormal, 1, 5, "table");
    return bytes_of(t);
  });
}

}  // namespace
}  // namespace segue::ops
