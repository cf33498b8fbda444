#pragma once

#include <cmath>
#include <cstdint>

#include "data/synth/draw.h"

namespace segue::data {

// What the random numbers of the synthetic log are for; each has its own stream.
constexpr DrawPurpose kArtistDraw{16}, kItemDraw{17}, kAlbumDraw{18}, kMappingDraw{19},
    kUserDraw{20}, kFavouriteDraw{21}, kTasteDraw{22}, kSessionDraw{23}, kListenDraw{24},
    kTrackDraw{25}, kUserIdDraw{26};

/// Element for a pair of numbers below 2^32.
inline uint64_t pair_element(int64_t high, int64_t low) {
  return static_cast<uint64_t>(high) << 32 | static_cast<uint32_t>(low);
}

/// Sum of four uniform 16-bit numbers, centred and scaled to variance 1: normal enough (bounded by
/// 3.5), quick, and free of library functions.
inline double bell(uint64_t bits) {
  const auto sum = static_cast<double>((bits & 0xffff) + (bits >> 16 & 0xffff) +
                                       (bits >> 32 & 0xffff) + (bits >> 48));
  constexpr double kMean = 4 * 65535 / 2.0;
  constexpr double kDeviation = 37837.23;  // sqrt(4 (2^32 - 1) / 12)
  return (sum - kMean) / kDeviation;
}

inline double exponential(double uniform) { return -std::log(uniform); }
inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/// Rank in [0, n) by a Zipf-Mandelbrot law of exponent 1:
/// P(k) = ln((k + 1 + shift) / (k + shift)) / ln((n + shift) / shift).
inline int64_t zipf_rank(double uniform, int64_t n, double shift) {
  const double x = shift * std::pow((static_cast<double>(n) + shift) / shift, uniform) - shift;
  const auto rank = static_cast<int64_t>(x);
  return rank < n ? rank : n - 1;
}

}  // namespace segue::data
