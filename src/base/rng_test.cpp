#include "base/rng.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <set>

#include <gtest/gtest.h>

namespace segue::base {
namespace {

void expect_philox(PhiloxCounter counter, PhiloxKey key, PhiloxCounter expected) {
  const PhiloxCounter got = philox(counter, key);
  EXPECT_EQ(got.x, expected.x);
  EXPECT_EQ(got.y, expected.y);
  EXPECT_EQ(got.z, expected.z);
  EXPECT_EQ(got.w, expected.w);
}

// Vectors of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds).
TEST(Philox, KnownAnswers) {
  expect_philox({0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  expect_philox({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff},
                {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect_philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0},
                {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Splitmix, UserFractions) {
  const auto fraction = [](uint64_t user) {
    return static_cast<double>(splitmix64(user) >> 11) * 0x1p-53;
  };
  EXPECT_EQ(fraction(0), 0.8833108082136426);
  EXPECT_EQ(fraction(1), 0.5665615751722809);
  EXPECT_EQ(fraction(2), 0.5911897341980794);
  EXPECT_EQ(fraction(123456), 0.22617122565625025);
}

TEST(Uniform, CoversZeroToOneWithoutOne) {
  EXPECT_EQ(uniform_f32(0), 0.0f);
  EXPECT_EQ(uniform_f32(0xffffffff), 1.0f - 0x1p-24f);
  double sum = 0.0;
  constexpr uint32_t kCount = 1 << 16;
  for (uint32_t i = 0; i < kCount; ++i) sum += uniform_f32(philox({i, 0, 0, 0}, {1, 2}).x);
  EXPECT_NEAR(sum / kCount, 0.5, 4.0 / std::sqrt(12.0 * kCount));
}

TEST(Dropout, KeepsTheRightShare) {
  const PhiloxKey key = philox_key(1234, 56);
  for (const float p : {0.1f, 0.2f, 0.5f, 0.9f}) {
    const uint32_t threshold = dropout_threshold(p);
    int64_t kept = 0, total = 0;
    for (uint32_t token = 0; token < 500; ++token) {
      for (uint32_t group = 0; group < 64; ++group) {
        kept += std::popcount(dropout_keep_bits(key, 3, 7, token, group, threshold));
        total += 8;
      }
    }
    const double expected = 1.0 - threshold / 65536.0;
    const double deviation = std::sqrt(expected * (1.0 - expected) / static_cast<double>(total));
    EXPECT_NEAR(static_cast<double>(kept) / static_cast<double>(total), expected, 4 * deviation);
  }
}

TEST(Dropout, EachOfTheEightColumnsIsFair) {
  const PhiloxKey key = philox_key(9, 1);
  constexpr uint32_t kCount = 20000;
  int kept[8] = {};
  for (uint32_t token = 0; token < kCount; ++token) {
    const uint32_t bits = dropout_keep_bits(key, 0, 0, token, 0, dropout_threshold(0.5f));
    EXPECT_EQ(bits >> 8, 0u);
    for (int column = 0; column < 8; ++column)
      kept[column] += static_cast<int>(bits >> column & 1u);
  }
  for (const int count : kept) EXPECT_NEAR(count, kCount / 2.0, 4 * std::sqrt(kCount / 4.0));
}

TEST(Dropout, NothingAtZeroAllAtOne) {
  const PhiloxKey key = philox_key(1, 2);
  EXPECT_EQ(dropout_threshold(0.0f), 0u);
  EXPECT_EQ(dropout_threshold(1.0f), 65536u);
  for (uint32_t token = 0; token < 1000; ++token) {
    EXPECT_EQ(dropout_keep_bits(key, 0, 0, token, 0, 0), 0xffu);
    EXPECT_EQ(dropout_keep_bits(key, 0, 0, token, 0, 65536), 0u);
  }
}

TEST(Dropout, IsAFunctionOfItsPlaceAlone) {
  const uint32_t threshold = dropout_threshold(0.5f);
  const auto mask = [&](uint64_t seed, uint64_t step, uint32_t site, uint32_t sample) {
    uint64_t bits = 0;
    for (uint32_t group = 0; group < 8; ++group) {
      bits =
          bits << 8 | dropout_keep_bits(philox_key(seed, step), site, sample, 11, group, threshold);
    }
    return bits;
  };
  EXPECT_EQ(mask(1, 2, 3, 4), mask(1, 2, 3, 4));
  const std::set<uint64_t> masks = {mask(1, 2, 3, 4), mask(9, 2, 3, 4), mask(1, 9, 3, 4),
                                    mask(1, 2, 9, 4), mask(1, 2, 3, 9), mask(2, 1, 3, 4)};
  EXPECT_EQ(masks.size(), 6u);
}

TEST(InitBits, DifferByEveryArgument) {
  std::set<uint64_t> seen;
  const auto add = [&seen](uint64_t seed, uint64_t name, uint64_t row, uint32_t group) {
    const PhiloxCounter bits = init_bits(seed, name, row, group);
    const PhiloxCounter again = init_bits(seed, name, row, group);
    EXPECT_EQ(bits.w, again.w);
    seen.insert(static_cast<uint64_t>(bits.x) << 32 | bits.y);
  };
  add(1, 2, 3, 4);
  add(9, 2, 3, 4);
  add(1, 9, 3, 4);
  add(1, 2, 9, 4);
  add(1, 2, 3, 9);
  add(1, 2, 3 + (uint64_t{1} << 32), 4);  // a table may have more than 2^32 rows
  EXPECT_EQ(seen.size(), 6u);
}

}  // namespace
}  // namespace segue::base
