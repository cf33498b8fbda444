#pragma once

#include <cmath>
#include <cstdint>

#include "base/rng.h"
#include "ops/initialize.h"

namespace segue::ops {

/// Box-Muller: two words give two independent normal numbers. The first is taken from (0, 1], where
/// the logarithm is finite.
SEGUE_HOST_DEVICE inline void box_muller(uint32_t a, uint32_t b, double* out) {
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  const double radius = sqrt(-2.0 * log((static_cast<double>(a) + 1.0) * 0x1p-32));
  const double angle = kTwoPi * static_cast<double>(b) * 0x1p-32;
  out[0] = radius * cos(angle);
  out[1] = radius * sin(angle);
}

SEGUE_HOST_DEVICE inline void four_normals(const base::PhiloxCounter& bits, double* out) {
  box_muller(bits.x, bits.y, out);
  box_muller(bits.z, bits.w, out + 2);
}

/// Initial values of columns 4 * group ... 4 * group + 3 of a row. Uniform ones and constants have
/// the same bits everywhere; log and cos round differently on a GPU.
SEGUE_HOST_DEVICE inline void four_initial_values(Init kind, double bound, uint64_t seed,
                                                  uint64_t name_hash, uint64_t row, uint32_t group,
                                                  double* out) {
  constexpr double kCut = 2;  // standard deviations
  constexpr uint32_t kTries = 16;
  constexpr int kTryBit = 20;  // above the groups of the widest row
  if (kind == Init::kZeros || kind == Init::kOnes || kind == Init::kConstant) {
    const double value = kind == Init::kConstant ? bound : (kind == Init::kOnes ? 1.0 : 0.0);
    for (int k = 0; k < 4; ++k) out[k] = value;
    return;
  }
  const base::PhiloxCounter bits = base::init_bits(seed, name_hash, row, group);
  if (kind == Init::kUniform) {
    // In [-1, 1), multiples of 2^-23: times a bound it stays below the bound in float, too.
    const uint32_t words[4] = {bits.x, bits.y, bits.z, bits.w};
    for (int k = 0; k < 4; ++k) {
      out[k] = bound * (2.0 * static_cast<double>(base::uniform_f32(words[k])) - 1.0);
    }
    return;
  }
  four_normals(bits, out);
  if (kind == Init::kTruncatedNormal) {
    // What lies outside is drawn again; after so many tries nothing ever is.
    for (uint32_t attempt = 1; attempt < kTries; ++attempt) {
      bool inside = true;
      for (int k = 0; k < 4; ++k) inside = inside && out[k] >= -kCut && out[k] <= kCut;
      if (inside) break;
      double again[4];
      four_normals(base::init_bits(seed, name_hash, row, group | attempt << kTryBit), again);
      for (int k = 0; k < 4; ++k) {
        if (out[k] < -kCut || out[k] > kCut) out[k] = again[k];
      }
    }
    for (int k = 0; k < 4; ++k) out[k] = out[k] < -kCut ? -kCut : (out[k] > kCut ? kCut : out[k]);
  }
  for (int k = 0; k < 4; ++k) out[k] *= bound;
}

}  // namespace segue::ops
