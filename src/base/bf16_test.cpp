#include "base/bf16.h"

#include <cmath>
#include <cstdint>
#include <limits>

#include <gtest/gtest.h>

namespace segue {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }
uint32_t to_bits(float value) { return std::bit_cast<uint32_t>(value); }

TEST(Bf16, EveryPatternSurvivesARoundTrip) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    bf16 value;
    value.bits = static_cast<uint16_t>(pattern);
    const auto wide = static_cast<float>(value);
    ASSERT_EQ(to_bits(wide), pattern << 16);
    if (std::isnan(wide)) {
      ASSERT_EQ(bf16(wide).bits, 0x7fff) << std::hex << pattern;
    } else {
      ASSERT_EQ(bf16(wide).bits, pattern) << std::hex << pattern;
    }
  }
}

// Against distances computed in double; the value after the largest finite one counts as 2^128.
TEST(Bf16, RoundsToNearestEven) {
  for (uint32_t pattern = 0; pattern < 0x7f80; ++pattern) {
    const double low = from_bits(pattern << 16);
    const double high = pattern == 0x7f7f ? 0x1p128 : from_bits((pattern + 1) << 16);
    for (const uint32_t tail : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float value = from_bits(pattern << 16 | tail);
      const double down = static_cast<double>(value) - low;
      const double up = high - static_cast<double>(value);
      const bool rounds_up = up < down || (up == down && pattern % 2 == 1);
      const uint32_t expected = pattern + (rounds_up ? 1 : 0);
      ASSERT_EQ(bf16(value).bits, expected) << std::hex << (pattern << 16 | tail);
      ASSERT_EQ(bf16(-value).bits, expected | 0x8000u) << std::hex << (pattern << 16 | tail);
    }
  }
}

TEST(Bf16, SpecialValues) {
  EXPECT_EQ(bf16(kInfinity).bits, 0x7f80);
  EXPECT_EQ(bf16(-kInfinity).bits, 0xff80);
  EXPECT_EQ(bf16(-0.0f).bits, 0x8000);
  EXPECT_EQ(bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_TRUE(std::isnan(round_to_bf16(from_bits(0x7f800001))));
  EXPECT_EQ(bf16(from_bits(0xffc00000)).bits, 0x7fff);
  EXPECT_EQ(round_to_bf16(1.0f + 0x1p-9f), 1.0f);
}

TEST(F16, EveryPatternSurvivesARoundTrip) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    f16 value;
    value.bits = static_cast<uint16_t>(pattern);
    const auto wide = static_cast<float>(value);
    const uint32_t exponent = pattern >> 10 & 31, mantissa = pattern & 1023;
    const double sign = pattern < 0x8000 ? 1.0 : -1.0;
    if (exponent == 31 && mantissa != 0) {
      ASSERT_TRUE(std::isnan(wide)) << std::hex << pattern;
      ASSERT_EQ(f16(wide).bits, 0x7fff);
      continue;
    }
    if (exponent == 31) {
      ASSERT_EQ(wide, sign * kInfinity);
    } else if (exponent == 0) {
      ASSERT_EQ(wide, sign * std::ldexp(mantissa, -24)) << std::hex << pattern;
    } else {
      ASSERT_EQ(wide, sign * std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25));
    }
    ASSERT_EQ(f16(wide).bits, pattern) << std::hex << pattern;
  }
}

// Every border between neighbours, subnormal ones and the border to infinity (65520) included.
TEST(F16, RoundsToNearestEven) {
  for (uint32_t pattern = 0; pattern < 0x7c00; ++pattern) {
    f16 low, high;
    low.bits = static_cast<uint16_t>(pattern);
    high.bits = static_cast<uint16_t>(pattern + 1);
    const double above = pattern == 0x7bff ? 65536.0 : static_cast<float>(high);
    const auto middle =
        static_cast<float>((static_cast<double>(static_cast<float>(low)) + above) / 2);
    const uint32_t even = pattern % 2 == 0 ? pattern : pattern + 1;
    ASSERT_EQ(f16(middle).bits, even) << std::hex << pattern;
    ASSERT_EQ(f16(-middle).bits, even | 0x8000u) << std::hex << pattern;
    ASSERT_EQ(f16(std::nextafter(middle, 0.0f)).bits, pattern) << std::hex << pattern;
    ASSERT_EQ(f16(std::nextafter(middle, kInfinity)).bits, pattern + 1) << std::hex << pattern;
  }
}

TEST(F16, SpecialValues) {
  EXPECT_EQ(f16(65504.0f).bits, 0x7bff);
  EXPECT_EQ(f16(1e30f).bits, 0x7c00);
  EXPECT_EQ(f16(-1e30f).bits, 0xfc00);
  EXPECT_EQ(f16(-kInfinity).bits, 0xfc00);
  EXPECT_EQ(f16(from_bits(1)).bits, 0);
  EXPECT_EQ(f16(-0.0f).bits, 0x8000);
  EXPECT_EQ(f16(std::numeric_limits<float>::quiet_NaN()).bits, 0x7fff);
}

}  // namespace
}  // namespace segue
