#include "publish/row_codec.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "base/bf16.h"
#include "base/error.h"

namespace segue::publish {
namespace {

std::vector<int8_t> levels(const std::vector<float>& numbers, float& scale) {
  const RowCodec codec(RowType::kInt8, std::ssize(numbers));
  std::vector<int8_t> stored(numbers.size());
  EXPECT_TRUE(codec.encode(numbers, reinterpret_cast<std::byte*>(stored.data()), scale));
  return stored;
}

TEST(RowCodec, ScalesRowsOfInt8ByTheirLargestMagnitude) {
  float scale = 0;
  EXPECT_EQ(levels({127, -254, 1, 0}, scale), (std::vector<int8_t>{64, -127, 0, 0}));
  EXPECT_EQ(scale, 2.f);  // 127 / 2 = 63.5 and 1 / 2 lie in the middle: to the even one
  EXPECT_EQ(levels({0, -0.f}, scale), (std::vector<int8_t>{0, 0}));
  EXPECT_EQ(scale, 0.f);
  // So small that its scale is 0: a row of zeros. A little larger, its scale is hardly a number.
  constexpr float kTiny = std::numeric_limits<float>::denorm_min();
  EXPECT_EQ(levels({kTiny}, scale), std::vector<int8_t>{0});
  EXPECT_EQ(levels({kTiny * 180}, scale), std::vector<int8_t>{127});
}

TEST(RowCodec, ErrsByHalfAStepAtMost) {
  std::vector<float> numbers;
  for (int i = 0; i < 500; ++i) numbers.push_back(std::sin(static_cast<float>(i)) * 3);
  float scale = 0;
  const std::vector<int8_t> stored = levels(numbers, scale);
  for (size_t i = 0; i < numbers.size(); ++i) {
    EXPECT_LE(std::abs(static_cast<float>(stored[i]) * scale - numbers[i]), scale * 0.5001f);
  }
}

TEST(RowCodec, RoundsToBf16) {
  const std::array<float, 2> numbers = {1.00390625f, -3.3f};  // the first lies in the middle
  const RowCodec codec(RowType::kBf16, 2);
  std::array<bf16, 2> stored;
  float scale = 0;
  EXPECT_TRUE(codec.encode(numbers, reinterpret_cast<std::byte*>(stored.data()), scale));
  EXPECT_EQ(static_cast<float>(stored[0]), 1.f);
  EXPECT_EQ(stored[1].bits, bf16(-3.3f).bits);
}

TEST(RowCodec, DigestsDependOnIdNumbersAndScale) {
  RowCodec codec(RowType::kInt8, 3);
  const std::array<std::byte, 3> a = {std::byte{1}, std::byte{2}, std::byte{3}},
                                 b = {std::byte{1}, std::byte{2}, std::byte{4}};
  const uint64_t digest = codec.digest(5, {a.data(), 1.f});
  EXPECT_EQ(codec.digest(5, {a.data(), 1.f}), digest);
  EXPECT_NE(codec.digest(6, {a.data(), 1.f}), digest);
  EXPECT_NE(codec.digest(5, {b.data(), 1.f}), digest);
  EXPECT_NE(codec.digest(5, {a.data(), 2.f}), digest);
  EXPECT_TRUE(codec.same({a.data(), 1.f}, {a.data(), 1.f}));
  EXPECT_FALSE(codec.same({a.data(), 1.f}, {a.data(), 2.f}));
  EXPECT_FALSE(codec.same({a.data(), 1.f}, {b.data(), 1.f}));
}

TEST(RowCodec, KnowsItsNames) {
  for (const RowType type : {RowType::kF32, RowType::kBf16, RowType::kInt8}) {
    EXPECT_EQ(row_type_of(to_string(type)), type);
  }
  EXPECT_THROW(row_type_of("f16"), Error);
}

}  // namespace
}  // namespace segue::publish
