#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <numbers>

#include "base/rng.h"

namespace segue::data {

/// 128 random bits that are a pure function of what they are for.
struct Draw {
  uint64_t a = 0, b = 0;

  /// Uniform in (0, 1), never an end: safe for logarithms and powers.
  double uniform_a() const { return (static_cast<double>(a >> 12) + 0.5) * 0x1p-52; }
  double uniform_b() const { return (static_cast<double>(b >> 12) + 0.5) * 0x1p-52; }
  /// One of four 32-bit words.
  uint32_t word(int64_t i) const {
    return static_cast<uint32_t>((i < 2 ? a : b) >> (i % 2 == 0 ? 0 : 32));
  }
};

enum class DrawPurpose : uint32_t {
  kDistribution = 1,
  kEvent = 2,
  kTime = 3,
  kInteraction = 4,
  kFactor = 5
};

/// `number` tells apart several draws for one element.
inline Draw draw(DrawPurpose purpose, uint64_t key, uint64_t element, uint32_t number) {
  const base::PhiloxCounter r =
      base::philox({static_cast<uint32_t>(element), static_cast<uint32_t>(element >> 32), number,
                    static_cast<uint32_t>(purpose)},
                   {static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32)});
  return {uint64_t{r.y} << 32 | r.x, uint64_t{r.w} << 32 | r.z};
}

/// Two independent numbers from N(0, 1), by Box and Muller.
inline std::array<double, 2> normals(const Draw& d) {
  const double length = std::sqrt(-2 * std::log(d.uniform_a()));
  const double angle = 2 * std::numbers::pi * d.uniform_b();
  return {length * std::cos(angle), length * std::sin(angle)};
}

/// floor(bits / 2^64 * range): shares differ by at most range / 2^64, far below what a sample
/// shows.
inline uint64_t scale_to(uint64_t bits, uint64_t range) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>(static_cast<Wide>(bits) * range >> 64);
}

}  // namespace segue::data
